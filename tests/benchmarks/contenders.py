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

from pidlease.testing.loopback_ports import LOOPBACK
from proxy.security.acls import CLUSTER_NAME, Operation, ResourceKind
from tests.secure.secured import PASSWORDS, allow, write_acls, write_users
from tests.servers.authority import Authority
from tests.servers.kafka import KafkaServer
from tests.servers.kafka.server import FSYNC_EACH_BATCH
from tests.servers.pidlease import PidleaseServer


class Secured(Enum):
    """How clients connect: in clear, by a login, by a login that has rights, or by TLS."""

    NO = ""
    LOGINS = "logins"
    ACLS = "logins and ACLs"
    TLS = "TLS"


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
    secured: Secured = Secured.NO

    def __str__(self) -> str:
        """The name in tables and folders."""
        judging = "" if self.judging else ", judging off"
        measured = "" if self.measured else ", nothing measured"
        scraped = ", scraped" if self.scraped else ""
        secured = f", {self.secured.value}" if self.secured.value else ""
        more = f"{judging}{measured}{scraped}{secured}"
        server = f"{self.kind}{self.twin} (fsync {self.fsync.value}{more})"
        return server if self.client == "librdkafka" else f"{self.client}, {server}"

    @property
    def server(self) -> Contender:
        """The same but for the client: contenders that are equal in this use one server."""
        return replace(self, client="librdkafka")


Server = KafkaServer | PidleaseServer


_SCRAPE_S: Final = 15.0
#: Kafka's listener with TLS.
_TLS_LISTENER: Final = "SECURE"
_USER: Final = "alice"


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
        #: Makes the certificates; None: none was needed yet.
        self._authority: Authority | None = None

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

    def bootstrap(self, contender: Contender) -> str:
        """The address that a contender's clients connect to."""
        server = self.get(contender)
        if isinstance(server, KafkaServer) and contender.secured is Secured.TLS:
            return server.listeners[_TLS_LISTENER]
        return server.bootstrap

    def client_settings(self, contender: Contender) -> dict[str, str]:
        """The settings of librdkafka for a contender's security."""
        if contender.secured is Secured.NO:
            return {}
        if contender.secured is Secured.TLS:
            ca = str(self._certificates().root.certificate)
            return {"security.protocol": "SSL", "ssl.ca.location": ca}
        return {
            "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": _USER, "sasl.password": PASSWORDS[_USER],
        }  # fmt: skip

    def _certificates(self) -> Authority:
        if self._authority is None:
            folder = self._directory / "certificates"
            folder.mkdir()
            self._authority = Authority(folder)
        return self._authority

    def _kafka(self, directory: Path, contender: Contender) -> KafkaServer:
        overrides = dict(FSYNC_EACH_BATCH if contender.fsync is Fsync.BATCH else {})
        listeners = {}
        if contender.secured is Secured.TLS:
            own = self._certificates().issue("broker", f"IP:{LOOPBACK}")
            store = directory / "broker.pem"
            store.write_text(own.key.read_text() + own.certificate.read_text())
            overrides |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}
            listeners = {_TLS_LISTENER: "SSL"}
        return KafkaServer(
            directory, heap=self._kafka_heap, overrides=overrides, listeners=listeners
        )

    def _security(self, directory: Path, secured: Secured) -> dict[str, str]:
        """The settings of a secured server; its users and rights are written."""
        if secured is Secured.NO:
            return {}
        if secured is Secured.TLS:
            own = self._certificates().issue("server", f"IP:{LOOPBACK}")
            return {"kafka_security_protocol": "SSL", "ssl_certificate": str(own.certificate),
                    "ssl_key": str(own.key)}  # fmt: skip
        write_users(directory / "data", _USER)
        settings = {"kafka_security_protocol": "SASL_PLAINTEXT"}
        if secured is Secured.ACLS:
            settings |= {"acls": "file", "super_users": "User:ANONYMOUS"}
            write_acls(
                directory / "data", allow(_USER, Operation.ALL, ResourceKind.TOPIC, "*"),
                allow(_USER, Operation.ALL, ResourceKind.GROUP, "*"),
                allow(_USER, Operation.ALL, ResourceKind.CLUSTER, CLUSTER_NAME),
            )  # fmt: skip
        return settings

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
            return self._kafka(directory, contender)
        if contender.kind == "in front":
            upstream = self.get(_behind(contender)).bootstrap
            settings = {"log": "kafka", "upstream": upstream, "coordination": "auto"}
            return PidleaseServer(directory, settings=settings)
        judging = "on" if contender.judging else "off"
        kind = _Scraped if contender.scraped else PidleaseServer
        if not contender.measured:
            kind = _Unmeasured
        settings = {"fsync": contender.fsync.value, "judging": judging}
        settings |= self._security(directory, contender.secured)
        return kind(directory, data_dir=directory / "data", settings=settings)


def _behind(contender: Contender) -> Contender:
    """Whose log it is: the same, or the Kafka behind."""
    kind = "kafka" if contender.kind == "in front" else contender.kind
    return replace(contender.server, kind=kind)
