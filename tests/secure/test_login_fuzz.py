"""Random bytes and random orders of login steps: no traceback, no login, nothing upstream."""

import asyncio
import struct
from pathlib import Path
from typing import Any

import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pidlease.observability.repeated_lines import LINES
from proxy.security.acls import Operation, ResourceKind
from proxy.security.certificate_names import PrincipalMapper, distinguished_name
from proxy.security.scram_credentials import SHA_256, StandIns, credential_for
from proxy.security.scram_exchange import LoginRefusedError, ScramExchange
from proxy.security.security_config import SecurityConfig
from tests.crash.seeds import SOAK
from tests.kafka_listener.messages import encode_request
from tests.secure.secured import LOGIN, SASL_AUTHENTICATE, SASL_HANDSHAKE, allow, secured
from tests.servers.waiting import WAIT_S

_EXAMPLES = 2000 if SOAK else 60
_ALICE = credential_for("alice", SHA_256, "alice-secret", 4096)
_PART = st.one_of(
    st.sampled_from([b"n,,", b"y,,", b"p=tls-unique,,", b"n=alice", b"r=x", b"c=biws", b"p=", b",",
                     b"=2C", b"=3D", b"m=1", b"a=alice", b"i=1", b"s=", b"\x00", b"\xff"]),
    st.binary(max_size=20),
)  # fmt: skip
_MESSAGE = st.lists(_PART, max_size=8).map(b"".join)


@settings(max_examples=_EXAMPLES * 5, deadline=None, derandomize=not SOAK)
@given(st.lists(_MESSAGE, min_size=1, max_size=3))
def test_scram_messages(messages: list[bytes]) -> None:
    exchange = ScramExchange(SHA_256, lambda: {("alice", SHA_256): _ALICE}, StandIns())
    for message in messages:
        try:
            _, complete = exchange.step(message)
        except LoginRefusedError:
            return
        assert not complete


@settings(max_examples=_EXAMPLES * 5, deadline=None, derandomize=not SOAK)
@given(st.lists(st.tuples(st.sampled_from(["commonName", "organizationName", "x"]), st.text()),
                max_size=4), st.text(max_size=5))  # fmt: skip
def test_a_value_of_a_certificate_never_becomes_another_part(
    parts: list[tuple[str, str]], value: str
) -> None:
    """A rule for one part of a name sees only that part, whatever stands in the others."""
    subject = [((kind, text),) for kind, text in parts]
    name = distinguished_name({"subject": (*subject, (("commonName", value),))})
    found = PrincipalMapper(r"RULE:^CN=((?:[^,\\]|\\.)*)(?:,.*)?$/$1/").user(name)
    bare = PrincipalMapper(r"RULE:^CN=((?:[^,\\]|\\.)*)$/$1/").user(
        distinguished_name({"subject": ((("commonName", value),),)})
    )
    if "\n" not in name and len(name) <= 1024:
        assert found == bare


_FRAME = st.one_of(
    st.binary(min_size=8, max_size=60),
    st.builds(lambda mechanism: encode_request(SASL_HANDSHAKE, 1, {"mechanism": mechanism}),
              st.sampled_from(["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER", "x"])),
    st.builds(lambda data: encode_request(SASL_AUTHENTICATE, 2, {"auth_bytes": data}), _MESSAGE),
    st.builds(lambda key, version: struct.pack(">hhih", key, version, 1, -1) + bytes(20),
              st.integers(-1, 80), st.integers(-1, 14)),
)  # fmt: skip


async def test_random_requests_before_the_login(tmp_path: Path) -> None:
    """Fuzzing before the login: the handlers see nothing, and nothing fails or leaks."""
    config = SecurityConfig(
        kafka=LOGIN, mechanisms=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"), acls=True
    )
    acls = [allow("*", Operation.ALL, ResourceKind.TOPIC, "*")]
    async with secured(tmp_path, config, acls) as running:
        door: Any = running.server.door
        seen: list[Any] = []
        door._apis.answer = lambda *given: seen.append(given)
        door._apis.produce = lambda *given: seen.append(given)

        async def attack(frames: list[bytes]) -> None:
            async with await running.connect() as client:
                for frame in frames:
                    client.send_frame(frame)
                client.writer.write_eof()
                async with asyncio.timeout(60):
                    await client.reader.read()

        loop = asyncio.get_running_loop()

        @settings(max_examples=_EXAMPLES, deadline=None, derandomize=not SOAK,
                  suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
        @given(st.lists(_FRAME, max_size=6))
        def attacks(frames: list[bytes]) -> None:
            asyncio.run_coroutine_threadsafe(attack(frames), loop).result(WAIT_S)

        with structlog.testing.capture_logs() as lines:
            await asyncio.to_thread(attacks)
            LINES.flush(everything=True)
        assert seen == []
        assert [line for line in lines if line["log_level"] in ("error", "critical")] == []
        while door.connections:  # noqa: ASYNC110 - the test has a timeout
            await asyncio.sleep(0.01)
        assert door.budget.used == 0
