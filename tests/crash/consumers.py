"""Real members of a consumer group, in threads of their own, that go on whatever happens.

Each reads, notes what it has read, and then commits: as a careful application does. What they may
rely on is checked as they go: whatever is committed below an offset was read by somebody.
"""

import asyncio
import threading
import time
from contextlib import suppress
from random import Random
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import IllegalStateError, KafkaError
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as LibrdkafkaError

SESSION_MS = 2_000
_HEARTBEAT_MS = 200
_BATCH = 40
_LOOK_S = 0.05
_ASK_S = 1.0


class Readings:
    """What all members of a group have read and committed.

    Parameters:
        in_order: whether no commit may go back. librdkafka keeps a commit while there is no
            coordinator, and sends it later with the generation of that time.

    Attributes:
        faults: what must not be.
        values: all that was read.
        committed: for each partition, the highest offset that somebody was told is committed.
        seen: for each partition, the offset that the server said last.
    """

    def __init__(self, partitions: int, *, in_order: bool = True) -> None:
        self.partitions = partitions
        self._in_order = in_order
        self.faults: list[str] = []
        self.values: set[bytes] = set()
        self.committed = dict.fromkeys(range(partitions), 0)
        self.seen = dict.fromkeys(range(partitions), 0)
        self.commits = 0
        self._lock = threading.Lock()
        self._read: dict[int, set[int]] = {number: set() for number in range(partitions)}
        #: Everything below was read.
        self._upto = dict.fromkeys(range(partitions), 0)

    def read(self, partition: int, offset: int, value: bytes) -> None:
        """Somebody has read a record."""
        with self._lock:
            self.values.add(value)
            self._read[partition].add(offset)
            while self._upto[partition] in self._read[partition]:
                self._read[partition].discard(self._upto[partition])
                self._upto[partition] += 1

    def was_committed(self, partition: int, offset: int) -> None:
        """Somebody was told that an offset is committed."""
        with self._lock:
            self.commits += 1
            if offset > self._upto[partition]:
                self.faults.append(f"{partition}: {offset} committed, and not all below was read")
            if self._in_order and offset < self.committed[partition]:
                self.faults.append(
                    f"{partition}: {offset} committed behind {self.committed[partition]}"
                )
            self.committed[partition] = max(offset, self.committed[partition])

    def told(self, before: dict[int, int], offsets: dict[int, int]) -> None:
        """The server told what is committed.

        Parameters:
            before: what was known to be committed when it was asked.
            offsets: what it said.
        """
        for partition, offset in offsets.items():
            if offset < max(before[partition], self.seen[partition]):
                self.faults.append(
                    f"{partition}: told {offset}, when {before[partition]} was committed and"
                    f" {self.seen[partition]} was told"
                )
            self.seen[partition] = max(offset, self.seen[partition])


class _Thread:
    """A thread whose error comes out where it is waited for."""

    def __init__(self, name: str, readings: Readings) -> None:
        self.readings = readings
        self.ending = threading.Event()
        self._name = name
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def finish(self, timeout_s: float) -> None:
        """End, and leave the group."""
        self.ending.set()
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"{self._name} hangs"

    def _guarded(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - told with the others
            self.readings.faults.append(f"{self._name}: {error!r}")

    def work(self) -> None:
        """The thread's."""
        raise NotImplementedError


def librdkafka_settings(bootstrap: str, group: str) -> dict[str, Any]:
    """A consumer that does not spend its time waiting while the server is away."""
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": "roundrobin",
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": _HEARTBEAT_MS,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
        "retry.backoff.ms": 20,
        "retry.backoff.max.ms": 100,
        "topic.metadata.refresh.fast.interval.ms": 50,
        "fetch.wait.max.ms": 50,
        "log_level": 0,
    }


class LibrdkafkaReader(_Thread):
    """confluent-kafka; its rebalances happen only while it is asked for records."""

    def __init__(
        self, bootstrap: str, group: str, topic: str, readings: Readings, **more: object
    ) -> None:
        super().__init__("librdkafka reader", readings)
        self._topic = topic
        self._consumer = Consumer(librdkafka_settings(bootstrap, group) | more)
        self._consumer.subscribe([topic])

    def work(self) -> None:
        """See `_Thread`."""
        while not self.ending.is_set():
            messages = self._consumer.consume(_BATCH, 0.05)
            self._take([each for each in messages if each.error() is None])
        self._consumer.close()

    def _take(self, messages: list[Message]) -> None:
        due: dict[int, int] = {}
        for each in messages:
            partition, offset, value = each.partition(), each.offset(), each.value()
            assert partition is not None
            assert offset is not None
            assert value is not None
            self.readings.read(partition, offset, value)
            due[partition] = offset + 1
        if not due:
            return
        places = [TopicPartition(self._topic, number, at) for number, at in due.items()]
        try:
            answers = self._consumer.commit(offsets=places, asynchronous=False)
        except KafkaException:
            return  # whoever has the partition now reads it again
        for answer in answers or ():
            if answer.error is None:
                self.readings.was_committed(answer.partition, answer.offset)


class AiokafkaReader(_Thread):
    """aiokafka; it rebalances in a task of its own, which has to wait for what is being done."""

    def __init__(self, bootstrap: str, group: str, topic: str, readings: Readings) -> None:
        super().__init__("aiokafka reader", readings)
        self._bootstrap = bootstrap
        self._group = group
        self._topic = topic

    def work(self) -> None:
        """See `_Thread`."""
        asyncio.run(self._work())

    async def _work(self) -> None:
        consumer = await self._connected()
        rebalances = _Rebalances()
        consumer.subscribe([self._topic], listener=rebalances)
        while not self.ending.is_set():
            before = rebalances.count
            found = await consumer.getmany(timeout_ms=20, max_records=_BATCH)
            async with rebalances.working:
                if rebalances.count == before:
                    await self._take(consumer, found)
                else:
                    _go_back(consumer, found)
            await asyncio.sleep(0.01)
        await consumer.stop()

    async def _take(self, consumer: AIOKafkaConsumer, found: dict[AioPartition, Any]) -> None:
        due = {}
        for place, records in found.items():
            for each in records:
                self.readings.read(place.partition, each.offset, each.value)
                due[place] = each.offset + 1
        if not due:
            return
        try:
            await asyncio.wait_for(consumer.commit(due), 5)
        except (KafkaError, IllegalStateError, TimeoutError):
            return
        for place, offset in due.items():
            self.readings.was_committed(place.partition, offset)

    async def _connected(self) -> AIOKafkaConsumer:
        while True:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._bootstrap,
                group_id=self._group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=_HEARTBEAT_MS,
                retry_backoff_ms=50,
                metadata_max_age_ms=500,
                fetch_max_wait_ms=50,
            )
            try:
                await consumer.start()
            except KafkaError:
                await consumer.stop()
                await asyncio.sleep(0.05)
            else:
                return consumer


def _go_back(consumer: AIOKafkaConsumer, found: dict[AioPartition, Any]) -> None:
    """Read again what was not taken: until the group has begun anew, the partition is still ours.

    What came behind it would be committed, and it would be lost.
    """
    for place, records in found.items():
        with suppress(IllegalStateError):  # somebody else's by now
            consumer.seek(place, records[0].offset)


class _Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]
    """Has rebalances wait until what was read is committed; what comes later is read again."""

    def __init__(self) -> None:
        self.working = asyncio.Lock()
        self.count = 0

    async def on_partitions_revoked(self, revoked: list[AioPartition]) -> None:
        """See `ConsumerRebalanceListener`."""
        self.count += 1
        async with self.working:
            pass

    async def on_partitions_assigned(self, assigned: list[AioPartition]) -> None:
        """See `ConsumerRebalanceListener`."""


class Watcher(_Thread):
    """Asks all the time what is committed, as a tool does."""

    def __init__(self, bootstrap: str, group: str, topic: str, readings: Readings) -> None:
        super().__init__("watcher", readings)
        self._consumer = Consumer(librdkafka_settings(bootstrap, group))
        self._places = [TopicPartition(topic, number) for number in range(readings.partitions)]
        self.answers = 0

    def work(self) -> None:
        """See `_Thread`."""
        while not self.ending.is_set():
            self.look()
            time.sleep(_LOOK_S)
        self._consumer.close()

    def look(self) -> None:
        """Ask once; it may not be answered."""
        before = dict(self.readings.committed)
        try:
            answers = self._consumer.committed(self._places, timeout=_ASK_S)
        except KafkaException:
            return
        offsets = {each.partition: max(each.offset, 0) for each in answers if each.error is None}
        self.answers += 1
        self.readings.told(before, offsets)


def group_of(
    bootstrap: str, group: str, topic: str, readings: Readings, random: Random
) -> list[_Thread]:
    """Two members by librdkafka, and one by aiokafka."""
    members: list[_Thread] = [
        LibrdkafkaReader(bootstrap, group, topic, readings),
        LibrdkafkaReader(bootstrap, group, topic, readings),
        AiokafkaReader(bootstrap, group, topic, readings),
    ]
    random.shuffle(members)
    return members


__all__ = ["LibrdkafkaError", "Readings", "Watcher", "group_of"]
