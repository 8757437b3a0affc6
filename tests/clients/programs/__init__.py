"""The Python programs among the clients: their command line, and what they print.

    python -m tests.clients.programs.NAME produce --bootstrap B --topic T --codec C --stream S
                                                  --count N
    python -m tests.clients.programs.NAME consume --bootstrap B --topic T --group G --count N

Standard output has one fact on a line: "client VERSION", "acked NUMBER PARTITION OFFSET",
"read STREAM.NUMBER PARTITION OFFSET", and "done" at the end. The programs in go/ and node/ are
called in the same way and print the same.
"""

from __future__ import annotations

import argparse
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiokafka.abc import AbstractTokenProvider


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    action: str
    bootstrap: str
    topic: str
    codec: str
    stream: int
    group: str
    count: int


def parse() -> Options:
    """Read the command line; what is wrong with it ends the program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["produce", "consume"])
    for name in ("--bootstrap", "--topic"):
        parser.add_argument(name, required=True)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--group", default="")
    parser.add_argument("--stream", type=int, default=0)
    parser.add_argument("--count", type=int, required=True)
    return Options(**vars(parser.parse_args()))


def value(stream: int, number: int) -> bytes:
    """The content of a record: stream and number, filled up to about 100 bytes."""
    return (b"%d.%d " % (stream, number)).ljust(100, b".")


def identity(content: bytes) -> str:
    """Stream and number of a record's content."""
    return content.split(b" ", 1)[0].decode()


def librdkafka_login() -> dict[str, Any]:
    """Settings of librdkafka for the login that the variables name (`tests.clients.login`)."""
    found = _variables()
    if not found:
        return {}
    settings: dict[str, Any] = {
        "security.protocol": "SASL_SSL" if found["MECHANISM"] else "SSL",
        "ssl.ca.location": found["CA"], "ssl.certificate.location": found["CERTIFICATE"],
        "ssl.key.location": found["KEY"], "sasl.mechanism": found["MECHANISM"],
        "sasl.username": found["USER"], "sasl.password": found["PASSWORD"],
    }  # fmt: skip
    if found["TOKEN_FILE"]:
        token = Path(found["TOKEN_FILE"]).read_text()
        # Until when it counts, by the server's answer it is renewed earlier.
        settings["oauth_cb"] = lambda _: (token, 2.0**31)
    return {name: value for name, value in settings.items() if value}


def aiokafka_login() -> dict[str, Any]:
    """Options of aiokafka for the same."""
    found = _variables()
    if not found:
        return {}
    context = ssl.create_default_context(cafile=found["CA"])
    if found["CERTIFICATE"]:
        context.load_cert_chain(found["CERTIFICATE"], found["KEY"])
    options: dict[str, Any] = {
        "security_protocol": "SASL_SSL" if found["MECHANISM"] else "SSL", "ssl_context": context,
    }  # fmt: skip
    if found["MECHANISM"]:
        options |= {"sasl_mechanism": found["MECHANISM"], "sasl_plain_username": found["USER"],
                    "sasl_plain_password": found["PASSWORD"]}  # fmt: skip
    if found["TOKEN_FILE"]:
        options["sasl_oauth_token_provider"] = _Token(Path(found["TOKEN_FILE"]))
    return options


class _Token(AbstractTokenProvider):  # type: ignore[misc]  # no types
    def __init__(self, file: Path) -> None:
        self._file = file

    async def token(self) -> str:
        return self._file.read_text()


def _variables() -> dict[str, str]:
    """What stands in the variables LOGIN_...; nothing: the server wants no login."""
    return {
        name.removeprefix("LOGIN_"): value
        for name, value in os.environ.items()
        if name.startswith("LOGIN_")
    }
