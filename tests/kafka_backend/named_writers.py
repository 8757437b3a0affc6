"""Producers that take one name from one another, each in a thread of its own, and the comparison.

Each goes on until it is fenced: it is the zombie of the next one. The numbers of a name go on over
all of them, so each record's sequence number is its place on the partition.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Final

from pidlease.client import FencedError, LeasedProducer, ProducerError, Sent
from tests.crash.readback import Stored
from tests.servers.waiting import WAIT_S

_OPEN_MAX: Final = 60
_PAUSE_S: Final = 0.01


class NamedWriter(threading.Thread):
    """Writes under the common name, which is that of the topic, until it is fenced.

    Parameters:
        number: of this producer, in each of its records.

    Attributes:
        sent: what was acknowledged, by value.
        error: that ended it.
    """

    def __init__(
        self, number: int, topic: str, partitions: int, random: Random, *,
        bootstrap: str, leases: str, policy: str,
    ) -> None:  # fmt: skip
        super().__init__(name=f"writer {number}", daemon=True)
        self.ending = threading.Event()
        self.sent: dict[bytes, Sent] = {}
        self.error: Exception | None = None
        self._number = number
        self._topic = topic
        self._partitions = partitions
        self._random = random
        self._given: Counter[int] = Counter()
        self._open = 0
        self._options = {
            "bootstrap_servers": bootstrap, "leases": leases, "policy": policy, "name": topic,
            "delivery_timeout_ms": 3_600_000, "retry_backoff_ms": 10, "retry_backoff_max_ms": 80,
            "max_batch_size": 600,
        }  # fmt: skip

    def run(self) -> None:
        try:
            asyncio.run(self._work())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    async def _work(self) -> None:
        async with LeasedProducer(**self._options) as producer:  # type: ignore[arg-type]
            while not self.ending.is_set():
                if self._open < _OPEN_MAX:
                    for _ in range(self._random.randint(1, 6)):
                        await self._send(producer)
                await asyncio.sleep(self._random.random() * _PAUSE_S)
            await producer.flush()
            await asyncio.sleep(0)  # the callbacks of the last ones

    async def _send(self, producer: LeasedProducer) -> None:
        partition = self._random.randrange(self._partitions)
        value = b"%d/%d/%d" % (self._number, partition, self._given[partition])
        self._given[partition] += 1
        future = await producer.send(self._topic, value, partition=partition)
        self._open += 1
        future.add_done_callback(partial(self._report, value))

    def _report(self, value: bytes, done: "asyncio.Future[Sent]") -> None:
        self._open -= 1
        if done.exception() is None:
            self.sent[value] = done.result()

    def check_fenced(self) -> None:
        """It has ended, because a later one has the name."""
        assert isinstance(self.error, FencedError | ProducerError), repr(self.error)
        assert "fenced" in str(self.error) or "granted to another" in str(self.error), self.error


def one_is_left(writers: Sequence[NamedWriter]) -> bool:
    """Whether all but one have ended, and that one gets on."""
    left = [each for each in writers if each.is_alive()]
    assert left, [each.error for each in writers[-3:]]
    return len(left) == 1 and bool(left[0].sent)


def check_writers(
    writers: Sequence[NamedWriter], read: Callable[[], list[Stored]], partitions: int, policy: str
) -> int:
    """Nothing is lost, doubled, out of order, or written by a producer after a later one.

    Parameters:
        writers: all; one is left, and the others were fenced.
        read: returns what is stored.

    Returns:
        How many records there are.
    """
    (last,) = [each for each in writers if each.is_alive()]
    last.ending.set()
    last.join(WAIT_S)
    assert last.error is None, last.error
    for each in writers:
        if each is not last:
            each.check_fenced()
    stored = read()
    counts = Counter(each.value for each in stored)
    assert max(counts.values()) == 1, counts.most_common(5)
    for writer in writers:
        lost = writer.sent.keys() - counts.keys()
        assert not lost, (writer.name, lost)
    for partition in range(partitions):
        begun: list[int] = []
        numbers: dict[int, list[int]] = {}
        values = [each.value for each in stored if each.partition == partition]
        for place, value in enumerate(values):
            by, meant, number = map(int, value.split(b"/"))
            assert meant == partition
            if not begun or begun[-1] != by:
                assert by not in begun, f"{by} wrote to {partition} after {begun[-1]}"
                begun.append(by)
            numbers.setdefault(by, []).append(number)
            sent = writers[by].sent.get(value)
            if sent is not None and policy == "strict":
                assert sent.sequence == place, (partition, place, value, sent)
        for by, found in numbers.items():
            assert found == list(range(len(found))), (partition, by, found[:20])
    return len(stored)
