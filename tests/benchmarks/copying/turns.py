"""The measurement: a topic grows, and each way in turn copies what has come."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.benchmarks.copying import mirror, ways
from tests.benchmarks.copying.ways import Way
from tests.benchmarks.scale.figure import Figure
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer

_PARTITIONS = 4
_HEAP = "1g"
_ROUNDS, _WARMUP = 7, 2
_TURN_S = 120.0
_LOOK_S = 0.005
_POOL = 4096
MakeWay = Callable[[KafkaServer, PidleaseServer, str, Path], Way]


@dataclass(frozen=True)
class Load:
    """What a turn copies."""

    name: str
    records: int
    record_bytes: int

    @property
    def megabytes(self) -> float:
        """Of values, in 10^6 bytes."""
        return self.records * self.record_bytes / 1e6


LOADS = (Load("1 KB", 30_000, 1_000), Load("100 B", 100_000, 100))


class _Ends:
    """Asks the destination how much there is."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._consumer = self._connect()

    def _connect(self) -> Consumer:
        return Consumer({"bootstrap.servers": self._bootstrap, "group.id": "ends"})

    def records(self, topic: str) -> int:
        """Offsets of all partitions together; 0 where the topic is not there yet."""
        try:
            return sum(
                self._consumer.get_watermark_offsets(TopicPartition(topic, each), timeout=10)[1]
                for each in range(_PARTITIONS)
            )
        except KafkaException:
            # This one would go on to believe that there is no such topic.
            self.close()
            self._consumer = self._connect()
            return 0

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()


def _fill(bootstrap: str, topic: str, load: Load) -> None:
    """One more turn's records at the source, evenly over its partitions."""
    values = [os.urandom(load.record_bytes) for _ in range(_POOL)]
    failed: list[str] = []
    producer = Producer({
        "bootstrap.servers": bootstrap, "enable.idempotence": True,
        "delivery.report.only.error": True,
        "on_delivery": lambda error, _: failed.append(str(error)),
    })  # fmt: skip
    for number in range(load.records):
        while True:
            try:
                producer.produce(topic, values[number % _POOL], partition=number % _PARTITIONS)
                break
            except BufferError:
                producer.poll(0.01)
    if producer.flush(_TURN_S) or failed:
        raise RuntimeError(f"the source could not be filled: {failed[:3]}")


def _turn(way: Way, ends: _Ends, load: Load) -> None:
    """One way copies what has come to the source."""
    wanted = ends.records(way.topic) + load.records
    cpu_s, began = way.process.cpu_s(), time.perf_counter()
    way.go_on()
    _wait(way, ends, wanted)
    way.seconds.append(time.perf_counter() - began)
    way.cpu_s.append(way.process.cpu_s() - cpu_s)
    way.stop()


def _wait(way: Way, ends: _Ends, wanted: int) -> None:
    until = time.monotonic() + _TURN_S
    while (there := ends.records(way.topic)) < wanted:
        if time.monotonic() > until or not way.process.alive:
            raise RuntimeError(f"{way.name} copied {there} of {wanted} records in {_TURN_S} s;"
                               f" see {way.folder}")  # fmt: skip
        time.sleep(_LOOK_S)


def _has(ends: _Ends, way: Way, records: int) -> bool:
    return ends.records(way.topic) >= records


@contextmanager
def _started(all_ways: Sequence[Way], ends: _Ends, load: Load) -> Iterator[None]:
    """All of them connected, with the first records copied, and stopped."""
    try:
        for way in all_ways:
            way.start()
            way.process.wait_until(partial(_has, ends, way, load.records), _TURN_S)
            way.stop()
        yield
    finally:
        for way in all_ways:
            if way.process.alive:
                way.process.kill9()


def _compare(
    source: KafkaServer, server: PidleaseServer, folder: Path, load: Load, makers: Sequence[MakeWay]
) -> list[Way]:
    topic = f"records-{load.record_bytes}"
    for bootstrap, name in ((source.bootstrap, topic), (server.bootstrap, f"{topic}.plain")):
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(name, _PARTITIONS, 1)])[name].result(30)
    _fill(source.bootstrap, topic, load)
    found = [make(source, server, topic, folder) for make in makers]
    ends = _Ends(server.bootstrap)
    try:
        with _started(found, ends, load):
            for number in range(_ROUNDS + _WARMUP):
                _fill(source.bootstrap, topic, load)
                for way in found:
                    _turn(way, ends, load)
                if number < _WARMUP:
                    for way in found:
                        way.seconds.clear()
                        way.cpu_s.clear()
        for way in found:
            _check(way, ends, load)
    finally:
        ends.close()
    return found


def _check(way: Way, ends: _Ends, load: Load) -> None:
    """Nothing is missing, or the measurement means nothing; markers take offsets, too."""
    there, wanted = ends.records(way.topic), load.records * (_ROUNDS + _WARMUP + 1)
    if there < wanted:
        raise RuntimeError(f"{way.name}: {there} of {wanted} records are there")


def _figures(load: Load, where: str, found: list[Way]) -> Iterator[Figure]:
    first, second, *others = found
    pairs = [theirs / own for own, theirs in zip(first.seconds, second.seconds, strict=True)]
    what = f"copy {where}, {load.name}"
    ratio = statistics.median(pairs)
    spread = f"{min(pairs):.2f} to {max(pairs):.2f}"
    yield Figure(f"{what}: against a plain loop ({spread})", ratio, "times", 1.0, "at least")
    for other in others:
        ratios = [own / theirs for own, theirs in zip(first.seconds, other.seconds, strict=True)]
        yield Figure(f"{what}: against {other.name}", 1 / statistics.median(ratios), "times")
    for way in found:
        seconds = statistics.median(way.seconds)
        yield Figure(f"  {way.name}", load.records / seconds, "records/s")
        yield Figure(f"  {way.name}", load.megabytes / seconds, "MB/s")
        cpu_s = statistics.median(way.cpu_s)
        yield Figure(f"  {way.name}, its own CPU", cpu_s / load.megabytes * 1e3, "ms a MB")


def measure_embedded(folder: Path) -> list[Figure]:
    """From a Kafka to the embedded log.

    Parameters:
        folder: for the data directories.
    """
    return list(_measured(folder, "onto the embedded log", {}, [ways.ours, ways.plain]))


def measure_in_front(folder: Path) -> list[Figure]:
    """From a Kafka back to itself through a server in front of it.

    Parameters:
        folder: for the data directories.
    """
    makers: list[MakeWay] = [ways.ours, ways.plain]
    if mirror.unavailable_reason() is None:
        makers.append(ways.mirror_maker)
    return list(
        _measured(folder, "in front of Kafka", {"log": "kafka", "coordination": "auto"}, makers)
    )


def _measured(
    folder: Path, where: str, settings: dict[str, str], makers: Sequence[MakeWay]
) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        data = Path(scratch)
        with KafkaServer(data / "kafka", heap=_HEAP) as source:
            upstream = {**settings, "upstream": source.bootstrap} if settings else {}
            with PidleaseServer(data / "server", settings={"fsync": "never", **upstream}) as server:
                for load in LOADS:
                    yield from _figures(
                        load, where, _compare(source, server, data / "ways", load, makers)
                    )
