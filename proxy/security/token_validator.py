"""Validates JWTs for SASL OAUTHBEARER (RFC 7628) and HTTP's Bearer (RFC 6750).

The keys come from a JWKS URL, read in a thread. Known keys stay valid for a while when the URL
cannot be reached. An unknown key id causes a read at most every few seconds.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import httpx
import jwt
import structlog

from proxy.security.security_config import TokenConfig

_log = structlog.get_logger(__name__)

#: Only signatures with a public key: with an HMAC, any client could sign by the public key.
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
_REQUIRED: Final = ("exp", "aud", "iss")
TOKEN_BYTES_MAX: Final = 32 << 10
_JWKS_BYTES_MAX: Final = 1 << 20
_KEYS_MAX: Final = 100
_READ_SECONDS: Final = 10.0
#: How long to wait before the next read, when a key is not known or a read has failed.
_PAUSE_SECONDS: Final = 10.0
#: How long known keys count when the URL cannot be reached.
_STALE_SECONDS: Final = 24 * 3600.0
_PRINCIPAL_LENGTH_MAX: Final = 249


class TokenError(Exception):
    """A token is invalid; the message says why, and holds nothing of the token."""


class Validated(NamedTuple):
    """The user of a token, and when it expires, in s since 1970."""

    user: str
    expires: float


def _fetch(url: str) -> bytes:
    """Read a JWKS. Blocks."""
    with httpx.stream("GET", url, timeout=_READ_SECONDS, follow_redirects=False) as response:
        response.raise_for_status()
        body = b""
        for part in response.iter_bytes():
            body += part
            if len(body) > _JWKS_BYTES_MAX:
                raise ValueError(f"more than {_JWKS_BYTES_MAX} bytes")
        return body


class TokenValidator:
    """Validates tokens by the keys of their issuer.

    Parameters:
        fetch: reads a JWKS; blocks.
        clock: the monotonic clock, in seconds.
    """

    def __init__(
        self,
        config: TokenConfig,
        fetch: Callable[[str], bytes] = _fetch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config: Final = config
        self._fetch: Final = fetch
        self._clock: Final = clock
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._read_at = -float("inf")
        self._tried_at = -float("inf")
        self._reading = asyncio.Lock()

    async def validate(self, token: str) -> Validated:
        """Return the user of a token.

        Raises:
            TokenError: the token is invalid, or the issuer's keys are not known.
        """
        algorithm, key_id = self._header(token)
        return self._validated(token, algorithm, await self._key(key_id))

    def validate_now(self, token: str) -> Validated | None:
        """Return the user of a token; None: the issuer's keys must be read first.

        Raises:
            TokenError: the token is invalid.
        """
        algorithm, key_id = self._header(token)
        if not self._is_fresh(key_id):
            return None
        return self._validated(token, algorithm, self._keys[key_id])

    @staticmethod
    def _header(token: str) -> tuple[str, str]:
        """Return the algorithm and the key id of a token.

        Raises:
            TokenError: the token cannot be valid.
        """
        if len(token) > TOKEN_BYTES_MAX:
            raise TokenError("the token is too long")
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise TokenError("this is no JWT") from None
        algorithm, key_id = header.get("alg"), header.get("kid", "")
        if algorithm not in ALGORITHMS or not isinstance(key_id, str):
            raise TokenError("the token is not signed by an allowed algorithm")
        return algorithm, key_id

    def _validated(self, token: str, algorithm: str, key: jwt.PyJWK) -> Validated:
        if key.algorithm_name != algorithm:
            raise TokenError("the token's algorithm is not that of the issuer's key")
        return self._claims(token, key)

    def _claims(self, token: str, key: jwt.PyJWK) -> Validated:
        config = self._config
        try:
            claims: dict[str, Any] = jwt.decode(
                token, key.key, algorithms=[key.algorithm_name], audience=config.audiences,
                issuer=config.issuer, leeway=config.skew_seconds,
                options={"require": list(_REQUIRED)},
            )  # fmt: skip
        except jwt.PyJWTError as error:
            # The classes name the fault; some of the texts repeat what the client sent.
            raise TokenError(f"the token is invalid: {type(error).__name__}") from None
        user = claims.get(config.user_claim)
        if (
            not isinstance(user, str)
            or not 0 < len(user) <= _PRINCIPAL_LENGTH_MAX
            or not user.isprintable()
            or user == "ANONYMOUS"
        ):
            raise TokenError(f"the token's claim {config.user_claim} is no name of a user")
        return Validated(user, float(claims["exp"]))

    async def _key(self, key_id: str) -> jwt.PyJWK:
        """Return a key of the issuer; read the keys if they are old, or do not have it.

        Raises:
            TokenError: there is no such key.
        """
        if not self._is_fresh(key_id):
            async with self._reading:
                await self._read(key_id)
        if self._age > max(_STALE_SECONDS, self._config.refresh_seconds):
            raise TokenError("the issuer's keys cannot be read now")
        try:
            return self._keys[key_id]
        except KeyError:
            raise TokenError("the token is signed by a key that the issuer does not list") from None

    @property
    def skew_seconds(self) -> float:
        """How far clocks may be apart."""
        return self._config.skew_seconds

    @property
    def _age(self) -> float:
        return self._clock() - self._read_at

    def _is_fresh(self, key_id: str) -> bool:
        return key_id in self._keys and self._age <= self._config.refresh_seconds

    async def _read(self, key_id: str) -> None:
        if self._is_fresh(key_id) or self._clock() - self._tried_at < _PAUSE_SECONDS:
            return  # another login has read them meanwhile, or just tried to
        self._tried_at = self._clock()
        url = self._config.jwks_url
        try:
            self._keys = _keys(await asyncio.to_thread(self._fetch, url))
            self._read_at = self._clock()
        except (httpx.HTTPError, OSError, ValueError, jwt.PyJWTError) as error:
            # PyJWT's messages may repeat a key.
            shown = type(error).__name__ if isinstance(error, jwt.PyJWTError) else str(error)
            _log.warning("the issuer's keys cannot be read; known keys stay in force",
                         url=url, error=shown, known=len(self._keys))  # fmt: skip


def _keys(body: bytes) -> dict[str, jwt.PyJWK]:
    """Return the keys of a JWKS that sign by an allowed algorithm.

    Raises:
        ValueError: this is no JWKS.
        jwt.PyJWTError: there is no usable key in it.
    """
    found = {}
    listed = json.loads(body)
    if not isinstance(listed, dict) or not isinstance(listed.get("keys"), list):
        raise ValueError("not a JSON object with keys")  # noqa: TRY004 - as for other broken bodies
    keys = jwt.PyJWKSet.from_dict(listed).keys
    for key in keys[:_KEYS_MAX]:
        if key.public_key_use in (None, "sig") and key.algorithm_name in ALGORITHMS:
            found[key.key_id or ""] = key
    return found
