"""TLS and login of a command at a server: from a file, as Kafka's tools have it.

Or from the environment. No option has a password or a token: a list of processes shows options.
"""

import os
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer

from pidlease.kafka.client.connection_security import ConnectionSecurity
from pidlease.kafka.client.kafka_options import (
    NAMES,
    PREFIX,
    TokenFile,
    connection_options,
    read_security,
    refuse_unmapped,
)
from pidlease.kafka.client.settings import OAUTHBEARER, TokenProvider
from pidlease.kafka.errors import OptionError
from proxy.cli.console import cannot_run

PROTOCOL_VARIABLE: Final = "PIDLEASE_SECURITY_PROTOCOL"
MECHANISM_VARIABLE: Final = "PIDLEASE_SASL_MECHANISM"
USER_VARIABLE: Final = "PIDLEASE_USER"
PASSWORD_VARIABLE: Final = "PIDLEASE_PASSWORD"  # noqa: S105 - a variable's name
TOKEN_VARIABLE: Final = "PIDLEASE_TOKEN"  # noqa: S105 - a variable's name
TOKEN_FILE_VARIABLE: Final = "PIDLEASE_TOKEN_FILE"  # noqa: S105 - a variable's name
#: What to do if the login or TLS does not fit.
LOGIN_HINT: Final = (
    f"; see --command-config, or {PROTOCOL_VARIABLE}, {USER_VARIABLE} and SSL_CERT_FILE"
)
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        envvar="PIDLEASE_COMMAND_CONFIG",
        help="File with TLS and login, as Kafka's tools have it.",
    ),
]
_USER: Final = "sasl.username"
_PASSWORD: Final = "sasl.password"  # noqa: S105 - a setting's name
_LINE: Final = re.compile(r"((?:[^\\=:\s]|\\.)+)\s*[=:\s]\s*(.*)", re.DOTALL)
_OURS: Final = ("security.", "sasl.", "ssl.")
_OTHER_LOGINS: Final = frozenset(("sasl.jaas.config", "sasl.oauthbearer.token.endpoint.url"))
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_FILE_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True)
class CommandSecurity:
    """TLS and login of a command.

    Attributes:
        connection: to the Kafka listener; its TLS also counts for https.
        login: for https, if `connection` has none: user and password, or a token; None: none.
    """

    connection: ConnectionSecurity = field(default_factory=ConnectionSecurity)
    login: tuple[str, str] | TokenProvider | None = field(default=None, repr=False)

    def http_login(self, url: str) -> tuple[str, str] | TokenProvider | None:
        """Return user and password, or a token, for a URL; None: send no login."""
        if not url.startswith("https://"):
            return None
        return self.connection.http_login(url) or self.login

    def login_name(self, url: str) -> str:
        """Return the user at a URL, for messages."""
        login = self.http_login(url)
        if login is None:
            return "requests without a login"
        return f"user {login[0]!r}" if isinstance(login, tuple) else "the token"


class _Token:
    """A token from the environment."""

    def __init__(self, token: str) -> None:
        self._token: Final = token

    async def token(self) -> str:
        return self._token


def command_security(path: Path | None, login: tuple[str, str] | None = None) -> CommandSecurity:
    """Return TLS and login from a file and the environment; end the command if they are invalid.

    Parameters:
        path: the file; None: there is none.
        login: user and password, unless the file has them; None: those of the environment.
    """
    user, password = login or (
        os.environ.get(USER_VARIABLE, ""), os.environ.get(PASSWORD_VARIABLE, "")
    )  # fmt: skip
    if path is None:
        return _of_environment(user, password)
    try:
        given = {name: value for name, value in _properties(path).items()
                 if name.startswith(_OURS)}  # fmt: skip
        is_login = given.get("security.protocol", "").upper().startswith("SASL")
        is_other = given.get("sasl.mechanism") == OAUTHBEARER or bool(_OTHER_LOGINS & given.keys())
        if is_login and not is_other:
            named = {_USER: user, _PASSWORD: password}
            given = {name: value for name, value in named.items() if value} | given
        connection = _connection(given)
    except (OSError, ValueError) as error:
        # The library speaks of options of Spark, which begin with `kafka.`.
        text = str(error).replace(PREFIX, "")
        raise cannot_run(f"--command-config {path}: {text}") from None
    return CommandSecurity(connection, (user, password) if user else _token())


def _of_environment(user: str, password: str) -> CommandSecurity:
    """Return TLS and login from the environment; end the command if they are invalid.

    The authority of the server's certificate comes from SSL_CERT_FILE, which openssl reads.
    """
    protocol = os.environ.get(PROTOCOL_VARIABLE, "PLAINTEXT").upper()
    mechanism = os.environ.get(MECHANISM_VARIABLE, "SCRAM-SHA-512").upper()
    token = _token()
    if protocol.startswith("SASL"):
        if mechanism == OAUTHBEARER and token is None:
            raise cannot_run(
                f"{MECHANISM_VARIABLE} is {mechanism}: {TOKEN_FILE_VARIABLE} or {TOKEN_VARIABLE} is"
                " needed"
            )
        if mechanism != OAUTHBEARER and not (user and password):
            raise cannot_run(
                f"{PROTOCOL_VARIABLE} is {protocol}: {USER_VARIABLE} and {PASSWORD_VARIABLE} are"
                " needed"
            )
    connection = ConnectionSecurity(
        security_protocol=protocol,  # type: ignore[arg-type]  # validated below
        ssl_context=ssl.create_default_context() if protocol.endswith("SSL") else None,
        sasl_mechanism=mechanism,  # type: ignore[arg-type]
        sasl_plain_username=user,
        sasl_plain_password=password,
        sasl_oauth_token_provider=token,
    )
    if problem := connection.security_problem:
        names = {"security_protocol": PROTOCOL_VARIABLE, "sasl_mechanism": MECHANISM_VARIABLE}
        for name, variable in names.items():
            problem = problem.replace(name, variable)
        raise cannot_run(problem)
    return CommandSecurity(connection, (user, password) if user else token)


def _token() -> TokenProvider | None:
    """Return the token of the environment; None: there is none."""
    if path := os.environ.get(TOKEN_FILE_VARIABLE):
        if not Path(path).is_file():
            raise cannot_run(f"{TOKEN_FILE_VARIABLE}: there is no file {path}")
        return TokenFile(Path(path))
    token = os.environ.get(TOKEN_VARIABLE)
    return _Token(token) if token else None


def _connection(given: dict[str, str]) -> ConnectionSecurity:
    """Return the options of a file.

    Raises:
        ValueError: one is unknown or invalid.
    """
    refuse_unmapped(PREFIX + name for name in given)
    if unknown := given.keys() - set(NAMES):
        raise OptionError(f"{min(unknown)} is not known; there are {', '.join(NAMES)}")
    security = read_security({PREFIX + name: value for name, value in given.items()})
    found = ConnectionSecurity(**connection_options(security))
    if found.security_problem:
        raise OptionError(found.security_problem)
    return found


def _properties(path: Path) -> dict[str, str]:
    """Read a file of Java's properties: NAME=VALUE, `#` begins a comment, a backslash escapes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such file; the text names the line, but does not show it.
    """
    with path.open("rb") as file:
        text = file.read(_FILE_BYTES_MAX).decode()
    found: dict[str, str] = {}
    line = ""
    for number, each in enumerate(text.splitlines(), 1):
        line += each.strip() if not line else each.lstrip()
        if not line or line[0] in "#!":
            line = ""
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1]
            continue
        parts = _LINE.fullmatch(line)
        if parts is None:
            raise ValueError(f"line {number} is not NAME=VALUE")
        name, value = (re.sub(r"\\(.)", _unescaped, part) for part in parts.groups())
        found[name] = value
        line = ""
    return found


def _unescaped(found: "re.Match[str]") -> str:
    return _ESCAPED.get(found[1], found[1])
