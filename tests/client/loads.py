"""The client as one of the real producers that go on whatever happens to the server."""

import asyncio
from functools import partial
from random import Random
from typing import Any, Protocol

from pidlease.client import LeasedProducer, ProducerMetrics, Sent
from tests.crash.clients import _BACKLOG_MAX, _DELIVERY_MS, _PAUSE_S, ClientThread
from tests.crash.ledger import Ledger


class Addresses(Protocol):
    """A server, as its clients know it."""

    bootstrap: str
    http_url: str
    http_port: int


class LeasedLoad(ClientThread[Ledger]):
    """`LeasedProducer`: up to five batches of each partition in flight."""

    def __init__(
        self, server: Addresses, topic: str, partitions: int, random: Random, label: str,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(Ledger(label))
        self._topic = topic
        self._partitions = partitions
        self._random = random
        self._open = 0
        self.metrics = ProducerMetrics()
        self.sent: dict[int, list[Sent]] = {number: [] for number in range(partitions)}
        self.options: dict[str, Any] = {
            "bootstrap_servers": server.bootstrap,
            "leases": server.http_url,
            "delivery_timeout_ms": _DELIVERY_MS,
            "retry_backoff_ms": 10,
            "retry_backoff_max_ms": 80,
            "max_batch_size": 1200,
            **options,
        }

    def work(self) -> None:
        """See `ClientThread`."""
        asyncio.run(self._work())

    async def _work(self) -> None:
        async with LeasedProducer(**self.options) as producer:
            while not self.ending.is_set():
                if self._open < _BACKLOG_MAX:
                    for _ in range(self._random.randint(1, 12)):
                        await self._send(producer)
                self.metrics = producer.metrics
                await asyncio.sleep(_PAUSE_S * self._random.random())
            await producer.flush()
            await asyncio.sleep(0)  # the callbacks of the last ones
            self.metrics = producer.metrics

    async def _send(self, producer: LeasedProducer) -> None:
        partition = self._random.randrange(self._partitions)
        value = self.ledger.next(partition, self._random)
        future = await producer.send(self._topic, value, partition=partition)
        self._open += 1
        future.add_done_callback(partial(self._report, value))

    def _report(self, value: bytes, done: "asyncio.Future[Sent]") -> None:
        self._open -= 1
        if done.exception() is not None:
            self.ledger.failures.append(f"{value[:40]!r}: {done.exception()!r}")
            return
        sent = done.result()
        self.ledger.delivered(value, sent.offset)
        self.sent[sent.partition].append(sent)

    def check_numbers(self) -> None:
        """Its own numbering has no holes, over all its PIDs."""
        for partition, sent in self.sent.items():
            numbers = [each.sequence for each in sent]
            what = f"{self.ledger.name}-{partition}"
            assert sorted(numbers) == list(range(len(sent))), f"{what}: holes, or told twice"
            early = [each for place, each in enumerate(sent) if each.sequence != place]
            assert not early, f"{what}: told in another order: {early[:5]} ({len(early)})"


def loads_for(server: Addresses, bootstrap: str, topic: str, partitions: int,
              random: Random) -> list[LeasedLoad]:  # fmt: skip
    """One of each kind."""
    kinds: dict[str, dict[str, Any]] = {
        "fresh": {"compression_type": "lz4"},
        "named": {"name": "named"},
        "monotonic": {"name": "monotonic", "policy": "monotonic", "linger_ms": 2},
    }
    return [
        LeasedLoad(server, topic, partitions, Random(random.random()), label,
                   bootstrap_servers=bootstrap, **options)
        for label, options in kinds.items()
    ]  # fmt: skip
