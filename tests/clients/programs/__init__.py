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
from dataclasses import dataclass


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
