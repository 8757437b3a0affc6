"""The speed of the audit on a log in segment files."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pidlease.core.pid import Policy, make_pid
from pidlease.spark.audit import audit
from tests.sim.batches import TIME_MS
from tests.spark.audit.logs import Logs, Origin, encoded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARTITIONS: Final = 4
_PRODUCERS: Final = 200
_SENDS_AT_ONCE: Final = 50
_SEGMENT_BYTES: Final = 64 << 20
_VALUE: Final = b"x" * 50


class AuditFigures(NamedTuple):
    """The results.

    Attributes:
        records: in the log.
        sends: in the log.
        log_bytes: length of the log.
        violations: planted and found.
        first_seconds: of the first audit in a new session.
        seconds: of a second audit.
    """

    records: int
    sends: int
    log_bytes: int
    violations: int
    first_seconds: float
    seconds: float

    @property
    def records_per_second(self) -> float:
        """Of the second audit."""
        return self.records / self.seconds


def fill(path: Path, records: int, batch: int, violations: int = 0) -> None:
    """Write a log of half strict and half kafka producers.

    Parameters:
        records: the approximate number.
        batch: records of a send.
        violations: how many sends are duplicated, each of another producer.
    """
    producers = [
        Origin(make_pid(Policy.KAFKA if number % 2 else Policy.STRICT, 1 + number))
        for number in range(_PRODUCERS)
    ]
    firsts: dict[tuple[Origin, int], int] = {}
    left, turn = violations, 0
    with Logs(path, _SEGMENT_BYTES) as logs:
        logs.topic("t", _PARTITIONS)
        for _ in range(0, records, batch * _SENDS_AT_ONCE):
            partition, sends = turn % _PARTITIONS, []
            for _ in range(_SENDS_AT_ONCE):
                producer = producers[turn % _PRODUCERS]
                turn += 1
                first = firsts.get((producer, partition), 0)
                firsts[producer, partition] = first + batch
                time_ms = TIME_MS + turn * batch // 10
                sends.append(encoded(producer, 0, first, batch, time_ms=time_ms, value=_VALUE))
            if left:
                left -= 1
                sends.append(encoded(producer, 0, first, batch, time_ms=time_ms, value=_VALUE))
            logs.append("t", partition, sends)


def measure(
    spark: "SparkSession", folder: Path, records: int = 10_000_000, batch: int = 500,
    violations: int = 0,
) -> AuditFigures:  # fmt: skip
    """Fill a log and audit it twice.

    Parameters:
        spark: a new session.
        folder: an empty folder for the log.
        records: how many.
        batch: records of a send.
        violations: how many are planted.

    Raises:
        AssertionError: the audit does not find what was planted.
    """
    path = folder / "data"
    fill(path, records, batch, violations)
    seconds = []
    for _ in range(2):
        begun = time.perf_counter()
        source = spark.read.format("pidlease").option("rows", "sends")
        found = audit(source.option("subscribePattern", ".*").load(str(path)))
        seconds.append(time.perf_counter() - begun)
        totals = found.totals
        if sum(totals.violations.values()) != violations:
            raise AssertionError(f"{violations} planted, found {totals.violations}")
    return AuditFigures(totals.records, totals.sends, totals.bytes, violations, *seconds)
