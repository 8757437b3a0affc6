"""The SCRAM credentials of users (RFC 5802): never a password, only what verifies one.

They stand in `security/users` of the data directory, one checked line for each user and mechanism.
`security/stand-ins` has what the salts of unknown users are made of.
"""

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from scramp import ScramException
from scramp.utils import saslprep

from proxy.security.entry_file import EntryKind

SHA_256: Final = "SCRAM-SHA-256"
SHA_512: Final = "SCRAM-SHA-512"
#: Kafka's numbers of the mechanisms (KIP-554).
MECHANISMS: Final = {1: SHA_256, 2: SHA_512}
_HASHES: Final = {SHA_256: "sha256", SHA_512: "sha512"}
#: As in Kafka: at least 4096 (RFC 7677), at most so many that a login takes milliseconds.
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16_384
ITERATIONS_DEFAULT: Final = 10_000
_SALT_BYTES: Final = 24
_SECRET_BYTES: Final = 32
_SALT_BYTES_MIN: Final = 12
_SALT_BYTES_MAX: Final = 256
USER_LENGTH_MAX: Final = 249
PASSWORD_BYTES_MAX: Final = 1024


class CredentialError(ValueError):
    """A user's name, password or number of iterations is invalid; the message says why."""


class Credential(NamedTuple):
    """What verifies a password (RFC 5802, section 3).

    Attributes:
        iterations: of PBKDF2.
    """

    user: str
    mechanism: str
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


Credentials = Mapping[tuple[str, str], Credential]


def check_user(user: str) -> str:
    """Return a user's name if it is valid.

    Raises:
        CredentialError: it is not.
    """
    if not 0 < len(user) <= USER_LENGTH_MAX or not user.isprintable() or user != user.strip():
        raise CredentialError(
            f"a user's name has 1 to {USER_LENGTH_MAX} printable characters, and no space around it"
        )
    if user in ("ANONYMOUS", "*"):
        raise CredentialError(f"{user} is no name that a user can have")
    try:
        prepared = saslprep(user)
    except (ScramException, UnicodeError):
        prepared = ""
    if prepared != user:
        raise CredentialError("the user's name has characters that SASLprep forbids or changes")
    return user


def check_iterations(iterations: int) -> int:
    """Return a number of iterations if it is within the bounds.

    Raises:
        CredentialError: it is not.
    """
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise CredentialError(
            f"{iterations} iterations; from {ITERATIONS_MIN} to {ITERATIONS_MAX} are allowed"
        )
    return iterations


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Hash a password as SCRAM does (PBKDF2). It takes milliseconds: call it in a thread.

    Raises:
        CredentialError: the password is empty, too long, or has characters that SASLprep forbids.
    """
    if not password or len(password.encode(errors="replace")) > PASSWORD_BYTES_MAX:
        raise CredentialError(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes")
    try:
        prepared = saslprep(password).encode()
    except (ScramException, UnicodeError):
        raise CredentialError("the password has characters that SASLprep forbids") from None
    return hashlib.pbkdf2_hmac(_HASHES[mechanism], prepared, salt, iterations)


def credential_of(
    user: str, mechanism: str, salted: bytes, salt: bytes, iterations: int
) -> Credential:
    """Make a credential from a salted password, as AlterUserScramCredentials gives it.

    Raises:
        CredentialError: the name, the salt, the iterations or the length is invalid.
    """
    check_user(user)
    check_iterations(iterations)
    kind = _HASHES[mechanism]
    if not _SALT_BYTES_MIN <= len(salt) <= _SALT_BYTES_MAX:
        raise CredentialError(f"a salt has {_SALT_BYTES_MIN} to {_SALT_BYTES_MAX} bytes")
    if len(salted) != hashlib.new(kind).digest_size:
        raise CredentialError(f"a salted password of {mechanism} has another length")
    client_key = hmac.digest(salted, b"Client Key", kind)
    stored_key = hashlib.new(kind, client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", kind)
    return Credential(user, mechanism, iterations, salt, stored_key, server_key)


def credential_for(
    user: str, mechanism: str, password: str, iterations: int = ITERATIONS_DEFAULT
) -> Credential:
    """Make a credential from a password, with a new salt. It takes milliseconds.

    Raises:
        CredentialError: an argument is invalid.
    """
    check_iterations(iterations)
    salt = secrets.token_bytes(_SALT_BYTES)
    salted = salted_password(mechanism, password, salt, iterations)
    return credential_of(user, mechanism, salted, salt, iterations)


def verifies(credential: Credential, password: str) -> bool:
    """Whether a password is a credential's. It takes milliseconds: call it in a thread.

    It takes the same time for all credentials, so that no attacker learns which user exists: each
    hash is computed as often as any credential needs it.
    """
    mechanism = credential.mechanism
    for each, kind in _HASHES.items():
        rest = ITERATIONS_MAX - (credential.iterations if each == mechanism else 0)
        if rest:
            hashlib.pbkdf2_hmac(kind, b"", credential.salt, rest)
    try:
        salted = salted_password(mechanism, password, credential.salt, credential.iterations)
    except CredentialError:
        return False
    client_key = hmac.digest(salted, b"Client Key", _HASHES[mechanism])
    stored_key = hashlib.new(_HASHES[mechanism], client_key).digest()
    return hmac.compare_digest(stored_key, credential.stored_key)


def new_secret() -> bytes:
    """Return a secret of stand-ins."""
    return secrets.token_bytes(_SECRET_BYTES)


class StandIns:
    """Credentials of users that do not exist, the same for the same name.

    An attacker learns from no response whether a user exists: the salt of an unknown user does not
    change from login to login, nor by a restart, and is the same at all servers with common users.
    """

    def __init__(self) -> None:
        self._secret = new_secret()

    def use(self, secret: bytes) -> None:
        """Make the credentials of a secret that is stored, from now on."""
        self._secret = secret

    def of(self, user: str, mechanism: str) -> Credential:
        """Return the credential of a user that does not exist; no password fits it."""
        kind = _HASHES[mechanism]
        seed = hmac.digest(self._secret, f"{mechanism}:{user}".encode(errors="replace"), "sha512")
        key = hmac.digest(self._secret, b"key" + seed, kind)
        return Credential(user, mechanism, ITERATIONS_DEFAULT, seed[:_SALT_BYTES], key, key)


def credential_from(fields: Mapping[str, Any]) -> Credential:
    """Return the credential of a line of the file.

    Raises:
        CredentialError: it is none.
    """
    try:
        mechanism, iterations = fields["mechanism"], check_iterations(fields["iterations"])
        salt, stored, server = (
            b64decode(fields[name], validate=True) for name in ("salt", "stored_key", "server_key")
        )
        _HASHES[mechanism]
        user = check_user(fields["user"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CredentialError(f"the line is no credential ({error!r})") from error
    return Credential(user, mechanism, iterations, salt, stored, server)


def fields_of(credential: Credential) -> dict[str, object]:
    """Return the line of a credential, as `credential_from` reads it."""

    def text(data: bytes) -> str:
        return b64encode(data).decode()

    return {
        "user": credential.user,
        "mechanism": credential.mechanism,
        "iterations": credential.iterations,
        "salt": text(credential.salt),
        "stored_key": text(credential.stored_key),
        "server_key": text(credential.server_key),
    }


def by_user(credentials: Iterable[Credential]) -> dict[tuple[str, str], Credential]:
    """Return credentials by user and mechanism."""
    return {(each.user, each.mechanism): each for each in credentials}


def changed(
    credentials: Iterable[Credential],
    upserted: Iterable[Credential],
    deleted: Iterable[tuple[str, str]] = (),
) -> Iterable[Credential]:
    """Return credentials after a change.

    Parameters:
        deleted: users and mechanisms.
    """
    found = by_user(credentials)
    for key in deleted:
        found.pop(key, None)
    return (found | by_user(upserted)).values()


def _secret_from(fields: Mapping[str, Any]) -> bytes:
    """Return the secret of a line of the file.

    Raises:
        ValueError: it has none.
    """
    try:
        secret = b64decode(fields["secret"], validate=True)
    except (KeyError, TypeError) as error:
        raise ValueError(f"the line is no secret ({error!r})") from error
    if len(secret) != _SECRET_BYTES:
        raise ValueError(f"a secret has {_SECRET_BYTES} bytes")
    return secret


#: The file of the secret of stand-ins.
STAND_IN_FILE: Final = EntryKind(
    "stand-ins", "secrets of stand-ins", 1, _secret_from,
    lambda secret: {"secret": b64encode(secret).decode()}, key=lambda _: None, checked=True,
)  # fmt: skip
#: The file of the credentials.
USER_FILE: Final = EntryKind(
    "users", "credentials", 100_000, credential_from, fields_of,
    key=lambda each: (each.user, each.mechanism), checked=True,
)  # fmt: skip
