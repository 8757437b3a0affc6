"""The servers that are compared, started on first use and kept up while they are needed.

Where clients are compared, both use the same server.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from http.client import HTTPException
from pathlib import Path
from typing import Final

from tests.servers.kafka import KafkaServer
from tests.servers.kafka.server import FSYNC_EACH_BATCH
from tests.servers.pidlease import PidleaseServer


class Fsync(Enum):
    """When an answer may be given: how both servers are told so stands in `Servers._build`."""

    NEVER = "never"
    BATCH = "batch"


@dataclass(frozen=True)
class Contender:
    """One alternative: a kind of server under certain settings."""

    kind: str  # "pidlease", "kafka", or "in front": pidlease, and that Kafka behind
    fsync: Fsync
    judging: bool = True
    twin: str = ""  # tells two servers of the same settings apart
    client: str = "librdkafka"  # "Java"; "aiokafka" or "LeasedProducer": see python_producer
    scraped: bool = False  # as often as deploy/prometheus/prometheus.yml says
    measured: bool = True  # see `unmeasured`

    def __str__(self) -> str:
        """The name in tables and folders."""
        judging = "" if self.judging else ", judging off"
        measured = "" if self.measured else ", nothing measured"
        scraped = ", scraped" if self.scraped else ""
        server = f"{self.kind}{self.twin} (fsync {self.fsync.value}{judging}{measured}{scraped})"
        return server if self.client == "librdkafka" else f"{self.client}, {server}"

    @property
    def server(self) -> Contender:
        """The same but for the client: contenders that are equal in this use one server."""
        return replace(self, client="librdkafka")


Server = KafkaServer | PidleaseServer


_SCRAPE_S: Final = 15.0


class _Scraped(PidleaseServer):
    """A server whose metrics are asked for as often as `deploy/prometheus/prometheus.yml` says."""

    _last: threading.Event | None = None

    def start(self) -> None:
        """See `PidleaseServer`."""
        super().start()
        self._last = threading.Event()
        threading.Thread(target=self._scrape, args=(self._last,), daemon=True).start()

    def stop(self, timeout_s: float = 30) -> int | None:
        """See `PidleaseServer`."""
        if self._last is not None:
            self._last.set()
        return super().stop(timeout_s)

    def _scrape(self, last: threading.Event) -> None:
        while not last.wait(_SCRAPE_S):
            with suppress(OSError, HTTPException):  # it may be stopping
                self.get("/metrics")


class _Unmeasured(PidleaseServer):
    """See `unmeasured`."""

    def command(self) -> list[str]:
        """See `PidleaseServer`."""
        python, _, _, *arguments = super().command()
        return [python, "-m", "tests.benchmarks.unmeasured", *arguments]


class Servers:
    """All running contenders; a context manager that stops them."""

    def __init__(self, directory: Path, *, kafka_heap: str) -> None:
        self._directory = directory
        self._kafka_heap = kafka_heap
        self._running: dict[Contender, Server] = {}

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self.keep_only(())

    def get(self, contender: Contender) -> Server:
        """The running server of a contender, started if it is the first time."""
        if contender.server not in self._running:
            server = self._build(contender)
            server.start()
            self._running[contender.server] = server
        return self._running[contender.server]

    def keep_only(self, needed: Iterable[Contender]) -> None:
        """Stop all that is not needed any more: even an idle JVM takes some of two cores."""
        wanted = {contender.server for contender in needed}
        wanted |= {_behind(one) for one in wanted}
        # Those that were started last first: they may have others behind them.
        for contender in [one for one in reversed(self._running) if one not in wanted]:
            self._running.pop(contender).stop()

    def behind(self, contender: Contender) -> Server | None:
        """The running Kafka behind a contender, where there is one."""
        return self.get(_behind(contender)) if contender.kind == "in front" else None

    def settle(self, contender: Contender) -> None:
        """Write back what a measurement left in the page cache, outside of the next one's time.

        Only this server's files: `sync` would hold up everybody else on the machine.
        """
        for path in self.get(_behind(contender)).data_dir.rglob("*.log"):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)

    def _build(self, contender: Contender) -> Server:
        index = len(list(self._directory.iterdir()))
        directory = self._directory / f"{index}-{contender.kind.replace(' ', '-')}"
        directory.mkdir()
        if contender.kind == "kafka":
            overrides = FSYNC_EACH_BATCH if contender.fsync is Fsync.BATCH else {}
            return KafkaServer(directory, heap=self._kafka_heap, overrides=overrides)
        if contender.kind == "in front":
            upstream = self.get(_behind(contender)).bootstrap
            settings = {"log": "kafka", "upstream": upstream, "coordination": "auto"}
            return PidleaseServer(directory, settings=settings)
        judging = "on" if contender.judging else "off"
        kind = _Scraped if contender.scraped else PidleaseServer
        if not contender.measured:
            kind = _Unmeasured
        return kind(directory, settings={"fsync": contender.fsync.value, "judging": judging})


def _behind(contender: Contender) -> Contender:
    """Whose log it is: the same, or the Kafka behind."""
    kind = "kafka" if contender.kind == "in front" else contender.kind
    return replace(contender.server, kind=kind)
