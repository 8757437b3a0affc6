"""What a megabyte costs one, two and four active servers together, at the same rate."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.benchmarks.scale.figure import Figure
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.waiting import WAIT_S, until

_COUNTS = (1, 2, 4)
_ROUNDS = 3
_PARTITIONS = 12
_TOPIC = "paced"
_RECORD_BYTES = 1_000
_PER_SECOND = 5_000
_WARMUP_S, _MEASURED_S = 3.0, 12.0
_TICK_S = 0.005
#: Of several members against one.
_RATIO_MAX = 1.15


class _Pace:
    """Sends records evenly to all partitions, as an idempotent producer with its defaults."""

    def __init__(self, bootstrap: str) -> None:
        self._failed: list[str] = []
        self._producer = Producer({
            "bootstrap.servers": bootstrap, "enable.idempotence": True,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: self._failed.append(str(error)),
        })  # fmt: skip
        self._value = os.urandom(_RECORD_BYTES)

    def send(self, seconds: float) -> int:
        """Send for some seconds, until all is acknowledged; return the number of records."""
        began, sent = time.monotonic(), 0
        while (elapsed := time.monotonic() - began) < seconds:
            for _ in range(int(elapsed * _PER_SECOND) - sent):
                self._producer.produce(_TOPIC, self._value, partition=sent % _PARTITIONS)
                sent += 1
            self._producer.poll(_TICK_S)
        if self._producer.flush(WAIT_S) or self._failed:
            raise RuntimeError(f"records were not stored: {self._failed[:3]}")
        return sent


@contextmanager
def _sharing(kafka: KafkaServer, folder: Path, count: int) -> Iterator[Sequence[PidleaseServer]]:
    """So many active servers, each of which owns some of the topic's partitions."""
    settings = {"shared": "true", "coordination": "kafka"}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(in_front_of(kafka, folder / str(number), **settings))
            for number in range(count)
        ]
        for each in servers:
            each.launch()
        for each in servers:
            each.wait_ready(WAIT_S)
        admin = AdminClient({"bootstrap.servers": servers[0].bootstrap})

        def owners() -> set[int]:
            found = admin.list_topics(_TOPIC, timeout=WAIT_S).topics[_TOPIC].partitions
            return {each.leader for each in found.values()}

        def settled() -> bool:
            """Whether each knows all of them, and each partition has an owner."""
            known = [each.metric("pidlease_servers") for each in servers]
            return known == [count] * count and len(owners()) == count and -1 not in owners()

        until(settled, "each to own partitions")
        yield servers
        for each in servers:
            each.stop()


def _round(kafka: KafkaServer, folder: Path, count: int) -> tuple[float, float]:
    """The servers' processor time, and Kafka's, in ms a MB."""
    with _sharing(kafka, folder, count) as servers:
        pace = _Pace(",".join(each.bootstrap for each in servers))
        pace.send(_WARMUP_S)
        processes = [*(each.process for each in servers), kafka.process]
        before_s = [each.cpu_s() for each in processes]
        megabytes = pace.send(_MEASURED_S) * _RECORD_BYTES / 1e6
        after_s = [each.cpu_s() for each in processes]
        spent = [after - before for before, after in zip(before_s, after_s, strict=True)]
        return sum(spent[:-1]) / megabytes * 1e3, spent[-1] / megabytes * 1e3


def measure(folder: Path) -> list[Figure]:
    """Measure one, two and four servers by turns, at 5,000 records of 1 KB a second.

    Parameters:
        folder: for the data directories.
    """
    own: dict[int, list[float]] = {count: [] for count in _COUNTS}
    behind: dict[int, list[float]] = {count: [] for count in _COUNTS}
    with TemporaryDirectory(dir=folder) as data, KafkaServer(Path(data) / "kafka") as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic(_TOPIC, _PARTITIONS, 1)])[_TOPIC].result(WAIT_S)
        for _ in range(_ROUNDS):
            for count in _COUNTS:
                servers_ms, kafka_ms = _round(kafka, Path(data), count)
                own[count].append(servers_ms)
                behind[count].append(kafka_ms)
    figures = []
    for count in _COUNTS:
        name = f"{count} active server{'s' if count > 1 else ''}, 5 MB a second"
        figures += [
            Figure(f"{name}: processor time of all", statistics.median(own[count]), "ms a MB"),
            Figure(f"{name}: of Kafka", statistics.median(behind[count]), "ms a MB"),
        ]
        if count > 1:
            pairs = zip(own[count], own[1], strict=True)
            ratio = statistics.median(several / one for several, one in pairs)
            figures.append(Figure(f"{name}: against one", ratio, "times", _RATIO_MAX))
    return figures
