"""Load with faults, for as long as somebody looks: all that producers can do wrong, in turns."""

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from prometheus_client import CollectorRegistry, start_http_server

from pidlease.client import LeasedProducer, ProducerError
from pidlease.client.metrics import ProducerCollector
from pidlease.testing.loopback_ports import LOOPBACK
from tests.http_api.appending import JSON, RAW, path_of, producer
from tests.http_api.lives import ask
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

TOPIC: Final = "orders"
#: Takes nothing that a client of ours sends.
CLOSED: Final = "closed"
_PAUSE_S: Final = 0.2
_SECONDS: Final = 20


class Repeated:
    """Some work, again and again in a thread; its error comes out at the end.

    Parameters:
        work: one turn.
        pause_s: between two.
    """

    def __init__(self, work: Callable[[], object], pause_s: float = _PAUSE_S) -> None:
        self._work: Final = work
        self._pause_s: Final = pause_s
        self._ending: Final = threading.Event()
        self._errors: Final[list[BaseException]] = []
        self._thread: Final = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join(WAIT_S)
        if kind is None and self._errors:
            raise self._errors[0]

    def _run(self) -> None:
        try:
            while not self._ending.wait(self._pause_s):
                self._work()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            self._errors.append(error)


def make_topic(server: PidleaseServer, topic: str, **config: str) -> None:
    """Make a topic of one partition."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, 1, config=settings)])[topic].result(_SECONDS)


def append(
    server: PidleaseServer, name: str, epoch: int, seq: int, *, topic: str = TOPIC, size: int = 1
) -> int:
    """One append over HTTP, under policy epoch; the status."""
    headers = {**RAW, **producer(name, epoch, seq)}
    return ask(server, "POST", path_of(topic), b"." * size, headers)[0]


def lease(server: PidleaseServer, topic: str = TOPIC) -> int:
    """Lease a fresh PID; the status."""
    body = json.dumps({"topic": topic, "partition": 0}).encode()
    return ask(server, "POST", "/v1/leases", body, JSON)[0]


class Faulty:
    """Producers over HTTP: one that goes on and says it twice, one with gaps, and a zombie.

    Parameters:
        server: where to.
        who: a part of their names.
    """

    def __init__(self, server: PidleaseServer, who: str = "p") -> None:
        self._server = server
        self._who = who
        self._numbers = count()
        assert append(server, f"{who}-zombie", 1, 0) == 200

    def turn(self) -> None:
        """A request of each."""
        seq = next(self._numbers)
        assert append(self._server, f"{self._who}-good", 0, seq) == 200
        assert append(self._server, f"{self._who}-good", 0, seq) == 200
        self.wrong()

    def wrong(self) -> None:
        """Only those that are refused."""
        assert append(self._server, f"{self._who}-gap", 0, 5) == 409
        assert append(self._server, f"{self._who}-zombie", 0, 1) == 409


class Clients:
    """Unmodified clients: a producer, and a consumer group.

    Parameters:
        server: where to.
    """

    def __init__(self, server: PidleaseServer, topic: str = TOPIC) -> None:
        self._topic = topic
        where: dict[str, Any] = {"bootstrap.servers": server.bootstrap}
        self._producer = Producer({**where, "enable.idempotence": True})
        self._consumer = Consumer({**where, "group.id": "g", "auto.offset.reset": "earliest"})
        self._consumer.subscribe([topic])

    def turn(self) -> None:
        """Some records in, some out."""
        for number in range(20):
            self._producer.produce(self._topic, b"%d" % number)
        assert self._producer.flush(_SECONDS) == 0
        self._consumer.consume(100, 0.1)

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()


class Ours:
    """A client of ours that exposes its metrics as applications do; its last record is refused.

    Parameters:
        server: where to.
        port: of loopback, where Prometheus asks.
    """

    def __init__(self, server: PidleaseServer, port: int) -> None:
        self._options: Final[dict[str, Any]] = {
            "bootstrap_servers": server.bootstrap, "leases": server.http_url,
        }  # fmt: skip
        self._port = port
        self._ending = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(WAIT_S)

    async def _run(self) -> None:
        sender = LeasedProducer(**self._options)
        await sender.start()
        registry = CollectorRegistry()
        registry.register(ProducerCollector(lambda: sender.metrics))
        listening, _ = start_http_server(self._port, LOOPBACK, registry)
        for _ in range(10):
            await sender.send_and_wait(TOPIC, b"x", partition=0)
        with suppress(ProducerError):  # it takes nothing more from then on
            await sender.send_and_wait(CLOSED, b"x", partition=0)
        await asyncio.to_thread(self._ending.wait)
        with suppress(ProducerError):
            await sender.stop()
        listening.shutdown()
        listening.server_close()
