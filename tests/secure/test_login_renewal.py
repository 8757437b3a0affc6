"""KIP-368 in our clients: a connection logs in again before its login ends."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from kio.schema.errors import ErrorCode

from pidlease.kafka.api import API_API_VERSIONS, API_METADATA, API_SASL_HANDSHAKE
from pidlease.kafka.client import bootstrap
from pidlease.kafka.client.bootstrap import connect
from pidlease.kafka.client.settings import UpstreamConfig
from pidlease.kafka.codec.messages import Request, Response
from pidlease.kafka.errors import UpstreamLoginError, UpstreamLostError
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.kafka.access.secure_connection import SecureConnection
from proxy.security.security_config import SecurityConfig
from tests.kafka_backend.test_link import broker, frame, linked, read, request
from tests.secure.secured import LOGIN, PASSWORDS, Secured, secured
from tests.servers.waiting import WAIT_S

_HANG_S = WAIT_S
_RENEWALS = 5
_METADATA = Request(API_METADATA, 9).encode(
    topics=[], allow_auto_topic_creation=False, include_cluster_authorized_operations=False,
    include_topic_authorized_operations=False,
)  # fmt: skip
_CONFIG = SecurityConfig(kafka=LOGIN, reauth_seconds=3600)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logins are renewed at once, not after most of an hour."""
    monkeypatch.setattr(bootstrap, "_LOGIN_EVERY_S", 0.01)
    monkeypatch.setattr(bootstrap, "_LOGIN_PART", (0.0, 0.0))


def _address(running: Secured) -> tuple[str, int]:
    return LOOPBACK, running.server.port


def _config(running: Secured, mechanism: str) -> UpstreamConfig:
    return UpstreamConfig(
        (_address(running),), mechanism=mechanism,  # type: ignore[arg-type]
        username="alice", password=PASSWORDS["alice"],
    )  # fmt: skip


async def _until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(_HANG_S):
        while not happened():  # noqa: ASYNC110 - it is no event
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
async def test_requests_go_on_while_a_connection_logs_in_again(
    tmp_path: Path, mechanism: str
) -> None:
    config = SecurityConfig(kafka=LOGIN, reauth_seconds=3600, mechanisms=(mechanism,))
    async with secured(tmp_path, config) as running:
        connection = await connect(_config(running, mechanism), _address(running))
        (there,) = running.server.door.connections
        ends = {cast(SecureConnection, there)._expires}

        async def ask() -> None:
            while len(ends) <= _RENEWALS:
                answer = await connection.ask(_METADATA)
                assert Request(API_METADATA, 9).decode(answer).brokers
                ends.add(cast(SecureConnection, there)._expires)

        await asyncio.wait_for(asyncio.gather(*(ask() for _ in range(8))), _HANG_S)
        assert connection.open
        assert list(running.server.door.connections) == [there]
        connection.close()
    logins = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert {each["outcome"] for each in logins} == {"success"}


@pytest.mark.usefixtures("soon")
async def test_a_login_that_cannot_be_renewed_ends_the_connection(tmp_path: Path) -> None:
    """A user was removed, or an issuer of tokens is away. No request is lost without an error."""
    async with secured(tmp_path, _CONFIG) as running:
        config = _config(running, "SCRAM-SHA-256")
        connection = await connect(config, _address(running))
        object.__setattr__(config, "password", "another")
        await _until(lambda: not connection.open)
        with pytest.raises(UpstreamLostError):
            await connection.ask(_METADATA)


async def test_without_a_lifetime_there_is_one_login(tmp_path: Path) -> None:
    async with secured(tmp_path, SecurityConfig(kafka=LOGIN)) as running:
        connection = await connect(_config(running, "SCRAM-SHA-256"), _address(running))
        assert connection._beside is None
        connection.close()


# ---------------------------------------------------------------------- the order of requests


async def test_requests_wait_for_the_end_of_a_login() -> None:
    seen: list[int] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                asked = await read(reader)
            except asyncio.IncompleteReadError:
                return
            seen.append(int.from_bytes(asked[4:8], "big"))
            writer.write(frame(asked[4:]))

    changes: list[bool] = []
    async with linked(note) as link:
        link.on_change = lambda: changes.append(link.paused)
        before = link.begin(request(1))
        with link.exclusive():
            assert link.paused
            later = [link.begin(request(number)) for number in (4, 5)]
            link.pause_writing()
            link.resume_writing()
            assert link.paused, "a socket with room does not end a login"
            for number in (2, 3):
                await link.ask_first(request(number))
            assert not any(each.done() for each in later)
        await asyncio.gather(before, *later)
        assert not link.paused
    assert seen == [1, 2, 3, 4, 5]
    assert changes[0] is False, "who waited is woken"


async def test_a_socket_that_is_full_stays_so_after_a_login() -> None:
    async with linked(_silent) as link:
        with link.exclusive():
            link.pause_writing()
        assert link.paused
        link.resume_writing()
        assert not link.paused


async def test_requests_that_wait_fail_with_the_connection() -> None:
    async with linked(_silent) as link:
        with pytest.raises(UpstreamLostError), link.exclusive():  # noqa: PT012 - the block is it
            waits = link.begin(request(2))
            first = asyncio.ensure_future(link.ask_first(request(1)))
            await asyncio.sleep(0)
            link.close()
            await first
        with pytest.raises(UpstreamLostError):
            await waits


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


# ---------------------------------------------------------------------- Kafka refuses a token


class _Token:
    async def token(self) -> str:
        return "Planted-token"


@pytest.mark.parametrize("code", [ErrorCode.none, ErrorCode.sasl_authentication_failed])
async def test_a_token_that_is_refused_by_a_message(code: ErrorCode) -> None:
    """Kafka names the failure first, and refuses the next message (RFC 7628, section 3.2.3)."""
    messages: list[bytes] = []

    async def kafka(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                asked = await read(reader)
            except asyncio.IncompleteReadError:
                return
            key, version = (int.from_bytes(asked[at : at + 2], "big") for at in (0, 2))
            number, response = int.from_bytes(asked[4:8], "big"), Response(key, version)
            if key == API_API_VERSIONS:
                body = response.encode(number, error_code=ErrorCode.none, api_keys=())
            elif key == API_SASL_HANDSHAKE:
                body = response.encode(number, error_code=ErrorCode.none, mechanisms=())
            else:
                messages.append(asked)
                body = response.encode(
                    number, error_code=code if messages[1:] else ErrorCode.none,
                    error_message=None, auth_bytes=b'{"status":"invalid_token"}',
                )  # fmt: skip
            writer.write(frame(body))

    async with broker(kafka) as port:
        address = LOOPBACK, port
        config = UpstreamConfig((address,), mechanism="OAUTHBEARER", token_provider=_Token())
        with pytest.raises(UpstreamLoginError, match="refuses the token") as refused:
            await connect(config, address)
    assert b"auth=Bearer Planted-token" in messages[0]
    assert messages[1].endswith(b"\0\0\0\1\1")
    assert "Planted" not in str(refused.value)
