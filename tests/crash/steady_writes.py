"""Writes to each partition all the time, and notes how long no record was acknowledged."""

import asyncio
import time
from itertools import pairwise
from random import Random

from pidlease.client import LeasedProducer
from tests.crash.clients import ClientThread
from tests.crash.ledger import Ledger

_DELIVERY_MS = 600_000
#: What does not answer for so long is taken to be suspended, and asked for elsewhere.
_REQUEST_MS = 500


class SteadyWrites(ClientThread[Ledger]):
    """One record after the other for each partition, by `LeasedProducer` under policy strict.

    Parameters:
        pause_s: between an acknowledgement and the next record of the partition.
    """

    def __init__(
        self, bootstrap: str, leases: str, topic: str, partitions: int, pause_s: float = 0.02
    ) -> None:
        super().__init__(Ledger("steady"))
        self._bootstrap = bootstrap
        self._leases = leases
        self._topic = topic
        self._pause_s = pause_s
        #: When each partition's records were acknowledged, by the monotonic clock.
        self.acknowledged_at: dict[int, list[float]] = {each: [] for each in range(partitions)}

    def work(self) -> None:
        """See `ClientThread`."""
        asyncio.run(self._work())

    async def _work(self) -> None:
        async with (
            LeasedProducer(
                bootstrap_servers=self._bootstrap, leases=self._leases,
                delivery_timeout_ms=_DELIVERY_MS, request_timeout_ms=_REQUEST_MS,
                retry_backoff_ms=10, retry_backoff_max_ms=80,
            ) as producer,
            asyncio.TaskGroup() as tasks,
        ):  # fmt: skip
            for partition in self.acknowledged_at:
                tasks.create_task(self._write(producer, partition))

    async def _write(self, producer: LeasedProducer, partition: int) -> None:
        random = Random(partition)
        while not self.ending.is_set():
            value = self.ledger.next(partition, random)
            sent = await producer.send_and_wait(self._topic, value, partition=partition)
            self.acknowledged_at[partition].append(time.monotonic())
            self.ledger.delivered(value, sent.offset)
            await asyncio.sleep(self._pause_s)

    def each_since(self, since: float) -> bool:
        """Whether each partition had an acknowledgement after a time; raise if it has failed."""
        assert not self.ledger.failures, self.ledger.failures[:5]
        return all(times and times[-1] > since for times in self.acknowledged_at.values())

    def outages(self, since: float) -> dict[int, float]:
        """The longest time without an acknowledgement of each partition, in s, from a time on."""
        return {
            partition: _longest(times, since) for partition, times in self.acknowledged_at.items()
        }


def _longest(times: list[float], since: float) -> float:
    after = [since, *(each for each in list(times) if each > since)]
    return max((next_ - before for before, next_ in pairwise(after)), default=0)
