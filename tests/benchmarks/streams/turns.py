"""The loads, and their rounds: each server in turn, for a second or less."""

from __future__ import annotations

import itertools
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from typing_extensions import override

from tests.benchmarks.scale.figure import Figure
from tests.benchmarks.streams.contenders import FileServer, PidleaseStreams, StreamServer, Ursula
from tests.benchmarks.streams.load import Connection, LoadError, burst, get

_ROUNDS: Final = 7
_BURST_S: Final = 0.7
_BINARY: Final = "application/octet-stream"
_JSON: Final = "application/json"
#: The number of a value, of 12 digits, and the rest of its 100 bytes.
_DIGITS: Final = 12
_VALUE_BYTES: Final = 100
_REST: Final = b"v" * (_VALUE_BYTES - _DIGITS)
_ARRAY_VALUES: Final = 100
_ARRAY: Final = json.dumps(["v" * 98] * _ARRAY_VALUES).encode()
_READ_VALUE: Final = b"v" * 1000
_READ_BYTES: Final = 20_000_000
_NEXT_OFFSET: Final = re.compile(rb"(?i)\r\nstream-next-offset: *(\S+)")
_UP_TO_DATE: Final = re.compile(rb"(?i)\r\nstream-up-to-date: *true")


class _Load(NamedTuple):
    """One way to append."""

    name: str
    connections: int = 1
    depth: int = 1
    values: int = 1  # of a request; more than one: an array in JSON mode
    streams: int = 1
    duplicates: bool = False
    aim: float | None = None  # values a second, of pidlease


_LOADS: Final = (
    _Load("one connection", aim=2_000),
    _Load("one connection, 32 pipelined", depth=32, aim=10_000),
    _Load("16 connections", connections=16, aim=8_000),
    _Load("16 connections, a stream each", connections=16, streams=16),
    _Load("arrays of 100, one connection", values=_ARRAY_VALUES),
    _Load("arrays of 100, 16 connections", connections=16, values=_ARRAY_VALUES, aim=250_000),
    _Load("duplicates, one connection", duplicates=True),
    _Load("duplicates, 16 connections", connections=16, duplicates=True, aim=15_000),
)


def missing() -> str | None:
    """Why there is nothing to compare with; None if there is."""
    reasons = [kind.missing() for kind in (Ursula, FileServer)]
    return None if None in reasons else "; ".join(reason for reason in reasons if reason)


def measure(folder: Path) -> list[Figure]:
    """Measure appends of 100 bytes with fsync, and catch-up of values of 1 KB.

    Parameters:
        folder: for the data directories.

    Raises:
        LoadError: a server refused a request, or its stream does not hold what it acknowledged.
    """
    kinds: list[Callable[[Path], StreamServer]] = [PidleaseStreams]
    for kind in (Ursula, FileServer):
        if (reason := kind.missing()) is None:
            kinds.append(kind)
        else:
            print(f"{kind.name}: not measured: {reason}", file=sys.stderr)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=folder, prefix="streams-") as data, ExitStack() as stack:
        servers = [
            stack.enter_context(kind(Path(data) / str(number))) for number, kind in enumerate(kinds)
        ]
        for load in _LOADS:
            sides = [_Appends(server, load) for server in servers]
            figures += _by_turns(load.name, sides, "a second", load.aim)
            for side in sides:
                side.verify()
        figures += _by_turns("catch-up, 1 KB", [_Reads(server) for server in servers], "MB/s", 300)
    return figures


class _Side:
    """What one server does in a round; its rates, and its processor time for each unit."""

    def __init__(self, server: StreamServer) -> None:
        self.server = server
        self.rates: list[float] = []
        self.cpu_us: list[float] = []
        #: Of this process, which bounds what can be measured.
        self.client_us: list[float] = []

    def take_turn(self) -> None:
        before_s, client_s = self.server.process.cpu_s(), time.process_time()
        units, elapsed_s = self.run()
        self.client_us.append((time.process_time() - client_s) / units * 1e6)
        self.rates.append(units / elapsed_s)
        self.cpu_us.append((self.server.process.cpu_s() - before_s) / units * 1e6)

    def run(self) -> tuple[float, float]:
        """Return the units of work that were done, and the seconds that they took."""
        raise NotImplementedError


def _by_turns(name: str, sides: Sequence[_Side], unit: str, aim: float | None) -> list[Figure]:
    for number in range(-1, _ROUNDS):  # the first round does not count
        first = number % len(sides)  # each of them comes after each other one
        for side in (*sides[first:], *sides[:first]):
            side.take_turn()
            if number < 0:
                side.rates.clear()
                side.cpu_us.clear()
                side.client_us.clear()
    ours, *others = sides
    own = statistics.median(each for side in sides for each in side.client_us)
    cpu_unit, scale = ("ms a MB", 1e-3) if unit == "MB/s" else ("us each", 1.0)
    figures = []
    for side in sides:
        wanted = aim if side is ours else None
        title = f"{name}: {side.server.name}"
        rate, cpu = statistics.median(side.rates), statistics.median(side.cpu_us) * scale
        figures.append(Figure(title, rate, unit, wanted, "at least"))
        figures.append(Figure(f"{title}, processor time", cpu, cpu_unit))
    figures.append(Figure(f"{name}: the client's processor time", own * scale, cpu_unit))
    for side in others:
        ratio = statistics.median(a / b for a, b in zip(ours.rates, side.rates, strict=True))
        figures.append(
            Figure(f"{name}: pidlease against {side.server.name}", ratio, "times", 1.0, "at least")
        )
    return figures


class _Appends(_Side):
    """Appends to one stream, by producers of their own."""

    def __init__(self, server: StreamServer, load: _Load) -> None:
        super().__init__(server)
        self._load = load
        name = re.sub(r"\W+", "-", load.name)
        self._paths = [server.path(f"{name}-{number}") for number in range(load.streams)]
        self._kind = _BINARY if load.values == 1 else _JSON
        for path in self._paths:
            _create(server, path, self._kind)
        self._acknowledged = 0
        if load.duplicates:
            first = self._connections(200, depth=1)
            for each in first:
                each.send()
                while each.in_flight:
                    self._acknowledged += each.receive()
                each.socket.close()
        depth, wanted = load.depth, 204 if load.duplicates else 200
        self._open = self._connections(wanted, depth)

    def _connections(self, wanted: int, depth: int) -> list[Connection]:
        numbers = range(self._load.connections)
        return [
            Connection(self.server.port, self._requests(number), wanted, depth)
            for number in numbers
        ]

    def _requests(self, producer: int) -> Iterator[bytes]:
        length = _VALUE_BYTES if self._load.values == 1 else len(_ARRAY)
        head = (
            f"POST {self._paths[producer % self._load.streams]} HTTP/1.1\r\nHost: x\r\n"
            f"Content-Type: {self._kind}\r\nContent-Length: {length}\r\n"
            f"Producer-Id: producer-{producer}\r\nProducer-Epoch: 0\r\nProducer-Seq: "
        ).encode()
        sequences = itertools.repeat(0) if self._load.duplicates else itertools.count()
        if self._load.values > 1:
            return (b"%b%d\r\n\r\n%b" % (head, sequence, _ARRAY) for sequence in sequences)
        number = producer * 10**9
        return (
            b"%b%d\r\n\r\n%012d%b" % (head, sequence, number + sequence, _REST)
            for sequence in sequences
        )

    @override
    def run(self) -> tuple[float, float]:
        done, elapsed_s = burst(self._open, _BURST_S)
        if not self._load.duplicates:
            self._acknowledged += done
        return done * self._load.values, elapsed_s

    def verify(self) -> None:
        """Read the streams: what was acknowledged stands in them, once."""
        for each in self._open:
            each.socket.close()
        acknowledged = self._acknowledged * self._load.values
        pages = [list(_read(self.server, path)) for path in self._paths]
        if self._kind == _JSON:
            found = distinct = sum(map(_values, itertools.chain(*pages)))
        else:
            stored = b"".join(itertools.chain(*pages))
            starts = range(0, len(stored), _VALUE_BYTES)
            found, distinct = len(starts), len({stored[at : at + _DIGITS] for at in starts})
        if not found == distinct == acknowledged:
            raise LoadError(
                f"{self.server.name}, {self._load.name}: {acknowledged} values were acknowledged,"
                f" there are {found}, of which {distinct} distinct"
            )


class _Reads(_Side):
    """Catch-up of a stream from its beginning, on one connection for each page."""

    def __init__(self, server: StreamServer) -> None:
        super().__init__(server)
        self._path = server.path("read")
        _create(server, self._path, _BINARY)
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: x\r\nContent-Type: {_BINARY}\r\n"
            f"Content-Length: {len(_READ_VALUE)}\r\nProducer-Id: p\r\nProducer-Epoch: 0\r\n"
            "Producer-Seq: "
        ).encode()
        requests = (b"%b%d\r\n\r\n%b" % (head, number, _READ_VALUE) for number in itertools.count())
        writer = Connection(server.port, requests, 200, depth=32)
        writer.send()
        values = 0
        while values < _READ_BYTES // len(_READ_VALUE):
            values += writer.receive()
            writer.send()
        while writer.in_flight:
            values += writer.receive()
        writer.socket.close()
        self._bytes = values * len(_READ_VALUE)

    @override
    def run(self) -> tuple[float, float]:
        began = time.monotonic()
        found = sum(map(len, _read(self.server, self._path)))
        elapsed_s = time.monotonic() - began
        if found != self._bytes:
            raise LoadError(f"{self.server.name}: {self._bytes} bytes acknowledged, read {found}")
        return found / 1e6, elapsed_s


def _values(page: bytes) -> int:
    """The number of values in a page of a JSON stream.

    Ursula returns a line for each of them, and a page of it may end within a line.
    """
    return len(json.loads(page)) if page.startswith(b"[") else page.count(b"\n")


def _create(server: StreamServer, path: str, kind: str) -> None:
    request = f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: 0\r\n\r\n"
    connection = Connection(server.port, iter((request.encode(),)), 201, depth=1)
    connection.send()
    while connection.in_flight:
        connection.receive()
    connection.socket.close()


def _read(server: StreamServer, path: str) -> Iterator[bytes]:
    """The pages of a stream, from its beginning to its end."""
    offset = "-1"
    while True:
        head, body = get(server.port, f"{path}?offset={offset}")
        yield body
        following = _NEXT_OFFSET.search(head + b"\r\n")
        if following is None:
            raise LoadError(f"{server.name} gave no next offset: {head!r}")
        offset = following[1].decode()
        if _UP_TO_DATE.search(head) is not None:
            return
