"""TLS and login of a command towards a server: from a file, as Kafka's tools have it.

Or from the environment. No option has a password or a token: a list of processes shows options.
"""

import os
import re
import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pidlease.kafka.client.connection_security import ConnectionSecurity
from pidlease.kafka.client.kafka_options import (
    NAMES,
    OptionError,
    connection_security,
    read_security,
    refuse_unmapped,
)
from proxy.cli.console import cannot_run

PROTOCOL_VARIABLE: Final = "PIDLEASE_SECURITY_PROTOCOL"
MECHANISM_VARIABLE: Final = "PIDLEASE_SASL_MECHANISM"
USER_VARIABLE: Final = "PIDLEASE_USER"
PASSWORD_VARIABLE: Final = "PIDLEASE_PASSWORD"  # noqa: S105 - a variable's name
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        envvar="PIDLEASE_COMMAND_CONFIG",
        help="File with TLS and login, as Kafka's tools have it.",
    ),
]
_PREFIX: Final = "kafka."
_LINE: Final = re.compile(r"((?:[^\\=:\s]|\\.)+)\s*[=:\s]\s*(.*)", re.DOTALL)
_OURS: Final = ("security.", "sasl.", "ssl.")
_LOGIN: Final = ("sasl.username", "sasl.password")
_OTHER_LOGINS: Final = frozenset(("sasl.jaas.config", "sasl.oauthbearer.token.endpoint.url"))
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_FILE_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True)
class CommandSecurity:
    """TLS and login of a command.

    Attributes:
        connection: to the Kafka listener; its TLS also counts for https.
        user: for https, if `connection` has no login; empty: none.
        password: of `user`.
    """

    connection: ConnectionSecurity = field(default_factory=ConnectionSecurity)
    user: str = ""
    password: str = field(default="", repr=False)

    @property
    def login_name(self) -> str:
        """The user, for messages."""
        if self.connection.is_login:
            return self.connection.login_name
        return f"user {self.user!r}" if self.user else "requests without a login"


def command_security(
    path: Path | None, user: str = USER_VARIABLE, password: str = PASSWORD_VARIABLE
) -> CommandSecurity:
    """Return TLS and login from a file and the environment; end the command if they are invalid.

    Parameters:
        path: the file; None: there is none.
        user: the variable with the user, unless the file has one.
        password: the variable with the user's password.
    """
    named = {name: os.environ.get(each, "") for name, each in zip(_LOGIN, (user, password),
                                                                  strict=True)}  # fmt: skip
    if path is None:
        return _of_environment(named[_LOGIN[0]], named[_LOGIN[1]])
    try:
        given = {name: value for name, value in _properties(path).items()
                 if name.startswith(_OURS)}  # fmt: skip
        if given.get("security.protocol", "").upper().startswith("SASL"):
            if given.get("sasl.mechanism") != "OAUTHBEARER" and not _OTHER_LOGINS & given.keys():
                given = {name: value for name, value in named.items() if value} | given
        elif named[_LOGIN[0]]:
            return replace(
                CommandSecurity(_connection(given)),
                user=named[_LOGIN[0]], password=named[_LOGIN[1]],
            )  # fmt: skip
        return CommandSecurity(_connection(given))
    except (OSError, ValueError) as error:
        # The library speaks of options of Spark, which begin with `kafka.`.
        text = str(error).replace(_PREFIX, "")
        raise cannot_run(f"--command-config {path}: {text}") from None


def _of_environment(user: str, password: str) -> CommandSecurity:
    """Return TLS and login from the environment; end the command if they are invalid.

    The authority of the server's certificate comes from SSL_CERT_FILE, which openssl reads.
    """
    protocol = os.environ.get(PROTOCOL_VARIABLE, "PLAINTEXT").upper()
    if protocol.startswith("SASL") and not (user and password):
        raise cannot_run(
            f"{PROTOCOL_VARIABLE} is {protocol}: {USER_VARIABLE} and {PASSWORD_VARIABLE} are needed"
        )
    options: dict[str, Any] = {"security_protocol": protocol}
    if protocol.endswith("SSL"):
        options["ssl_context"] = ssl.create_default_context()
    if protocol.startswith("SASL"):
        options |= {
            "sasl_mechanism": os.environ.get(MECHANISM_VARIABLE, "SCRAM-SHA-512").upper(),
            "sasl_plain_username": user, "sasl_plain_password": password,
        }  # fmt: skip
    connection = ConnectionSecurity(**options)
    if problem := connection.problem:
        names = {"security_protocol": PROTOCOL_VARIABLE, "sasl_mechanism": MECHANISM_VARIABLE}
        for name, variable in names.items():
            problem = problem.replace(name, variable)
        raise cannot_run(problem)
    return CommandSecurity(connection, user, password)


def _connection(given: dict[str, str]) -> ConnectionSecurity:
    """Return the options of a file.

    Raises:
        ValueError: one is unknown or invalid.
    """
    refuse_unmapped(_PREFIX + name for name in given)
    if unknown := given.keys() - set(NAMES):
        raise OptionError(f"{min(unknown)} is not known; there are {', '.join(NAMES)}")
    found = connection_security(
        read_security({_PREFIX + name: value for name, value in given.items()})
    )
    if found.problem:
        raise OptionError(found.problem)
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
