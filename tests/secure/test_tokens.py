"""Tokens (attack 3): on the validator, and by SASL OAUTHBEARER."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from pidlease.client import LeaseClient, LeaseRefusedError, LeaseUnavailableError
from pidlease.kafka.client.bootstrap import connect
from pidlease.kafka.client.cluster import Cluster
from pidlease.kafka.client.settings import UpstreamConfig
from pidlease.kafka.errors import UpstreamAwayError, UpstreamLoginError
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.security.security_config import ListenerSecurity, SecurityConfig, TokenConfig
from proxy.security.token_validator import TokenError, TokenValidator
from tests.kafka_listener.client import WireClient
from tests.secure.secured import authenticate, handshake, secured
from tests.secure.tokens import AUDIENCE, ISSUER, Issuer, unsigned

_CONFIG = TokenConfig("https://issuer.test/keys", (AUDIENCE, "other-name"), ISSUER)


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


class _Keys:
    """The JWKS of an issuer, which may be away; its clock."""

    def __init__(self, issuer: Issuer) -> None:
        self.body = issuer.jwks()
        self.away = False
        self.reads = 0
        self.now = 1000.0

    def fetch(self, _: str) -> bytes:
        self.reads += 1
        if self.away:
            raise httpx.ConnectError("away")
        return self.body

    def validator(self, config: TokenConfig = _CONFIG) -> TokenValidator:
        return TokenValidator(config, self.fetch, lambda: self.now)


async def test_a_valid_token(issuer: Issuer) -> None:
    validator = _Keys(issuer).validator()
    for token in (
        issuer.token(), issuer.token(aud=["x", "other-name"]),
        issuer.token(kid="ec", algorithm="ES256"), issuer.token(exp=time.time() - 5),
    ):  # fmt: skip
        assert (await validator.validate(token)).user == "alice"
    named = _Keys(issuer).validator(_CONFIG._replace(user_claim="azp"))
    assert (await named.validate(issuer.token(azp="app"))).user == "app"


def _bad(issuer: Issuer, other: Issuer) -> dict[str, str]:
    now = time.time()
    claims = {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "exp": now + 600}
    return {
        "empty": "",
        "no JWT": "a.b.c",
        "two parts": "a.b",
        "long": "a" * 40_000,
        "none": unsigned({"alg": "none", "kid": "rsa"}, claims),
        "None": unsigned({"alg": "None", "kid": "rsa"}, claims),
        "HS256 with the public key": unsigned(
            {"alg": "HS256", "kid": "rsa"}, claims, issuer.public_pem()
        ),
        "RS256 signed by HMAC": unsigned(
            {"alg": "RS256", "kid": "rsa"}, claims, issuer.public_pem()
        ),
        "kid is no text": unsigned({"alg": "RS256", "kid": 5}, claims),
        "alg is no text": unsigned({"alg": ["RS256"], "kid": "rsa"}, claims),
        "another issuer's key": other.token(),
        "a key of another kind": issuer.token(kid="ec"),
        "another algorithm of the key": issuer.token(algorithm="RS512"),
        "PSS": issuer.token(algorithm="PS256"),
        "an unknown key": issuer.token(kid="unknown"),
        "another audience": issuer.token(aud="someone"),
        "no audience": issuer.token(aud=None),
        "another issuer": issuer.token(iss="https://evil.test/"),
        "no issuer": issuer.token(iss=None),
        "no expiry": issuer.token(exp=None),
        "expired": issuer.token(exp=now - 60),
        "not yet valid": issuer.token(nbf=now + 120),
        "no subject": issuer.token(sub=None),
        "an empty subject": issuer.token(sub=""),
        "a subject with a line": issuer.token(sub="a\nb"),
        "anonymous": issuer.token(sub="ANONYMOUS"),
        "a long subject": issuer.token(sub="a" * 500),
        "changed": issuer.token()[:-8] + "AAAAAAAA",
    }


async def test_invalid_tokens(issuer: Issuer) -> None:
    validator = _Keys(issuer).validator()
    await validator.validate(issuer.token())
    for what, token in _bad(issuer, Issuer()).items():
        with pytest.raises(TokenError) as found:
            await validator.validate(token)
        assert len(str(found.value)) < 200, what
        assert not token or token[:30] not in str(found.value), what


async def test_known_keys_stay_while_the_issuer_is_away(issuer: Issuer) -> None:
    keys = _Keys(issuer)
    validator = keys.validator()
    token = issuer.token()
    await validator.validate(token)
    keys.away = True
    keys.now += 2 * 3600
    assert (await validator.validate(token)).user == "alice"
    keys.now += 25 * 3600
    with pytest.raises(TokenError, match="cannot be read now"):
        await validator.validate(token)
    keys.away = False
    keys.now += 60
    assert (await validator.validate(token)).user == "alice"


async def test_unknown_keys_do_not_flood_the_issuer(issuer: Issuer) -> None:
    keys = _Keys(issuer)
    validator = keys.validator()
    for _ in range(50):
        with pytest.raises(TokenError):
            await validator.validate(issuer.token(kid="unknown"))
    assert keys.reads == 1
    other = Issuer()
    keys.body = other.jwks()
    keys.now += 11
    with pytest.raises(TokenError):
        await validator.validate(issuer.token(kid="unknown"))
    # The issuer has changed its keys: the old ones count no more.
    assert (await validator.validate(other.token())).user == "alice"
    with pytest.raises(TokenError):
        await validator.validate(issuer.token())


@pytest.mark.parametrize("body", [
    b"", b"[]", b"{}", b'{"keys": []}', b"\xff", b'{"keys": 5}',
    b'{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "rsa"}]}',
])  # fmt: skip
async def test_a_broken_list_of_keys(issuer: Issuer, body: bytes) -> None:
    keys = _Keys(issuer)
    keys.body = body
    with pytest.raises(TokenError):
        await keys.validator().validate(issuer.token())


_SASL = SecurityConfig(kafka=ListenerSecurity(login=True), mechanisms=("OAUTHBEARER",),
                       tokens=_CONFIG)  # fmt: skip


async def _login(client: WireClient, message: bytes) -> Any:
    await handshake(client, "OAUTHBEARER")
    return await authenticate(client, message)


async def test_oauthbearer(tmp_path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = _Keys(issuer)
    async with secured(tmp_path, _SASL) as running:
        assert running.security.tokens is not None
        monkeypatch.setattr(running.security.tokens, "_fetch", keys.fetch)
        async with await running.connect() as client:
            token = issuer.token(exp=time.time() + 300)
            body = await _login(client, f"n,,\x01auth=Bearer {token}\x01\x01".encode())
            assert body.error_code == 0
            # The session ends with the token (KIP-368).
            assert 200 < body.session_lifetime.total_seconds() <= 300
            assert (await client.metadata()).brokers
            renewed = issuer.token(sub="bob")
            body = await _login(client, f"n,,\x01auth=Bearer {renewed}\x01\x01".encode())
            assert body.error_code == 58
            assert await client.is_closed()
        for message in (
            b"", b"\x01", b"n,,\x01auth=Bearer x\x01\x01", b"n,,\x01auth=Basic x\x01\x01",
            f"n,a=bob,\x01auth=Bearer {issuer.token()}\x01\x01".encode(),
            f"n,,\x01auth=Bearer {issuer.token()}".encode(), b"n,,\x01\x01\x01", b"\xff\xfe",
            f"n,,\x01auth=Bearer {issuer.token(exp=time.time() - 10)}\x01\x01".encode(),
        ):  # fmt: skip
            async with await running.connect() as client:
                assert (await _login(client, message)).error_code == 58, message
                assert await client.is_closed()
        text = (tmp_path / "audit.log").read_text()
    assert token not in text


class _Provider:
    """Provides tokens as aiokafka's users write it."""

    def __init__(self, made: Callable[[], str]) -> None:
        self._made = made

    async def token(self) -> str:
        return self._made()


async def test_own_clients_send_tokens(
    tmp_path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [issuer.token()]

    def token() -> str:
        if not made:
            raise OSError("Planted-secret")
        return made.pop()

    async with secured(tmp_path, _SASL) as running:
        assert running.security.tokens is not None
        monkeypatch.setattr(running.security.tokens, "_fetch", _Keys(issuer).fetch)
        address = LOOPBACK, running.server.port
        config = UpstreamConfig(
            (address,), mechanism="OAUTHBEARER", token_provider=_Provider(token)
        )
        cluster = Cluster(config)
        await cluster.start()
        assert cluster.view.brokers
        await cluster.close()
        made.append("no.token")
        with pytest.raises(UpstreamLoginError, match="refuses the token") as refused:
            await connect(config, address)
        with pytest.raises(UpstreamAwayError, match="provider of tokens failed: OSError") as away:
            await connect(config, address)
        assert "Planted" not in f"{refused.value}{away.value}{config}"


async def test_leases_by_a_token() -> None:
    """A new token with each request; none over http."""
    seen: list[str] = []
    made = ["second", "first"]

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["Authorization"])
        return httpx.Response(401, json={"detail": "the token has expired"})

    provider = _Provider(made.pop)
    transport = httpx.MockTransport(answer)
    async with LeaseClient("https://a", transport=transport, login=provider) as leases:
        for _ in range(2):
            with pytest.raises(LeaseRefusedError, match="the token has expired; the token"):
                await leases.lease_pid("t", 0)
        with pytest.raises(LeaseUnavailableError, match="provider of tokens failed: IndexError"):
            await leases.lease_pid("t", 0)
    assert seen == ["Bearer first", "Bearer second"]
    with pytest.raises(ValueError, match="a login goes with https://"):
        LeaseClient("http://a", login=provider)
