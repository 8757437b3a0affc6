"""The audit: a first pass over all sends, and a second one over those of suspect producers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.storagelevel import StorageLevel

from pidlease.core.topic_partition import TopicPartition
from pidlease.spark.audit import first_pass as passes
from pidlease.spark.audit.send_history import (
    DUPLICATE,
    FENCED,
    GAP,
    LATE,
    MALFORMED,
    NOTICES,
    OVERLAP,
    VIOLATIONS,
    LogCompleteness,
    completeness_of,
)
from pidlease.spark.audit.suspect_sends import SCHEMA, findings
from pidlease.spark.reader.send_rows import PRODUCER_KEY

#: The most suspects that are broadcast.
_BROADCAST_MAX: Final = 200_000
#: The most positions of damage that each task gets.
DAMAGES_MAX: Final = 10_000

#: Called with the current step, for people.
ReportStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Totals:
    """The counts of an audit.

    Attributes:
        partitions: those that have a record.
        producers: counted once for each partition.
        bytes: of batches, compressed.
        suspects: producers with sends that were validated one by one.
        violators: producers that have broken a rule.
        unchecked: records without a PID of pidlease: they have none, or one of Kafka's own. They
            have no sequence numbers that a rule of pidlease holds for, and may be duplicates.
        violations: findings by kind.
        notices: findings by kind.
        affected: by kind of these findings, their records; of gaps and of what is lost to damage,
            the missing sequence numbers.
    """

    partitions: int
    producers: int
    records: int
    sends: int
    bytes: int
    suspects: int
    violators: int
    unchecked: int
    violations: dict[str, int]
    notices: dict[str, int]
    affected: dict[str, int]
    damages: int

    @property
    def wrong(self) -> bool:
        """Whether there is a violation or damage."""
        return bool(self.damages or sum(self.violations.values()))

    @property
    def sound(self) -> bool:
        """Whether all records were checked, and nothing is wrong."""
        return not self.wrong and not self.unchecked


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit. Spark keeps the tables on its workers while they are referenced.

    Attributes:
        producers: a row for each producer and partition. The columns of violations count records,
            `gaps` counts missing sequence numbers.
        violations: a row for each finding that breaks a rule.
        notices: a row for each finding that breaks none.
        damages: a row for each damaged place.
        timeline: records, sends and bytes by topic, policy and minute of their timestamps.
    """

    totals: Totals
    producers: DataFrame
    violations: DataFrame
    notices: DataFrame
    damages: DataFrame
    timeline: DataFrame


def audit(sends: DataFrame, report: ReportStep = lambda _: None) -> Audit:
    """Audit all sends of a log, or of some of its partitions.

    Parameters:
        sends: as `spark.read.format("pidlease").option("rows", "sends")` loads them. They are read
            once, and a second time if there are suspects.
        report: called with the current step.
    """
    report("reading the log")
    rows = passes.with_policy(sends)
    parts = _computed(passes.parts(rows))
    of_producers, damages = passes.producer_parts(parts), passes.damages(parts)
    starts = passes.starts(of_producers)
    logs = _completeness(starts, damages)
    report("comparing the beginnings of segments with the ends before")
    suspects = _computed(passes.suspects(of_producers, starts))
    number = suspects.count()
    if number:
        report(f"validating the sends of {number:,} producers")
    judged = _computed(_judged(rows, suspects, number, logs))
    kinds = _kinds(judged) if number else []
    report("adding up")
    producers = _computed(_producers(of_producers, judged, any_wrong=bool(number)))
    return Audit(
        _totals(producers, kinds, number, damages.count()),
        producers,
        judged.where(F.col("kind").isin(*VIOLATIONS)),
        judged.where(F.col("kind").isin(*NOTICES)),
        damages,
        passes.timeline(parts),
    )


def _computed(table: DataFrame) -> DataFrame:
    """Compute a table now, and only once.

    `persist` does not do: if a table is joined with another one made from it, Spark does not
    recognise it, and would read the whole log once more.
    """
    return table.localCheckpoint(storageLevel=StorageLevel.MEMORY_AND_DISK)


def _completeness(starts: DataFrame, damages: DataFrame) -> dict[TopicPartition, LogCompleteness]:
    """Return the completeness of each partition, with at most `DAMAGES_MAX` places."""
    firsts = {TopicPartition(row.topic, row.partition): row.start for row in starts.collect()}
    damaged: dict[TopicPartition, list[int]] = {}
    for row in damages.select("topic", "partition", "offset").limit(DAMAGES_MAX).collect():
        damaged.setdefault(TopicPartition(row.topic, row.partition), []).append(row.offset)
    return completeness_of(firsts, damaged)


def _judged(
    rows: DataFrame, suspects: DataFrame, number: int, logs: dict[TopicPartition, LogCompleteness]
) -> DataFrame:
    """Return the findings about the sends of suspects; without suspects nothing is read again."""
    if not number:
        return _nothing(rows)
    if number <= _BROADCAST_MAX:
        suspects = F.broadcast(suspects)
    return findings(rows.join(suspects, list(PRODUCER_KEY), "left_semi"), logs)


def _nothing(rows: DataFrame) -> DataFrame:
    """Return an empty table of findings."""
    named = (each.split() for each in SCHEMA.split(", "))
    empty = [F.lit(None).cast(kind).alias(name) for name, kind in named]
    return rows.sparkSession.range(0).select(*empty)


def _kinds(judged: DataFrame) -> list[Row]:
    """Count the findings by kind, and add up what they affect."""
    counts = F.count("*").alias("findings"), total(F.col("numbers")).alias("affected")
    return judged.groupBy("kind").agg(*counts).collect()


def _producers(of_producers: DataFrame, judged: DataFrame, *, any_wrong: bool) -> DataFrame:
    """Return a row for each producer and partition, with counts of its findings."""
    policy = passes.policy_name(F.col("policy")).alias("policy")
    numbers = of_producers.groupBy(*PRODUCER_KEY, policy).agg(
        F.sum("records").alias("records"),
        F.sum("sends").alias("sends"),
        F.sum("bytes").alias("bytes"),
        F.max("generation").alias("generation"),
        F.min_by("first", "offset").alias("first_sequence"),
        F.max_by("last", "offset").alias("last_sequence"),
        F.min("offset").alias("first_offset"),
        F.max("last_offset").alias("last_offset"),
        F.min("first_ms").alias("first_ms"),
        F.max("last_ms").alias("last_ms"),
    )
    wrong = judged.groupBy(*PRODUCER_KEY).agg(
        _numbers("duplicates", DUPLICATE, OVERLAP),
        _numbers("gaps", GAP),
        *(_numbers(kind, kind) for kind in (LATE, FENCED, MALFORMED)),
        F.count_if(F.col("kind").isin(*VIOLATIONS)).alias("violations"),
        F.count_if(F.col("kind").isin(*NOTICES)).alias("notices"),
    )
    counts = [each for each in wrong.columns if each not in PRODUCER_KEY]
    if not any_wrong:
        return numbers.select("*", *(F.lit(0).cast("long").alias(each) for each in counts))
    return numbers.join(wrong, list(PRODUCER_KEY), "left").fillna(0, counts)


def _numbers(name: str, *kinds: str) -> Column:
    mine = F.when(F.col("kind").isin(*kinds), F.col("numbers")).otherwise(0)
    return total(mine).alias(name)


def total(numbers: Column) -> Column:
    """Return the sum of numbers, at most the largest long: gaps of 63 bits would exceed it."""
    return F.least(F.sum(numbers.cast("decimal(38, 0)")), F.lit(2**63 - 1)).cast("long")


def _totals(producers: DataFrame, kinds: list[Row], suspects: int, damages: int) -> Totals:
    has_pid = F.col("policy") != passes.NAMELESS
    row = producers.agg(
        F.count_distinct("topic", "partition").alias("partitions"),
        F.count_if(has_pid).alias("producers"),
        F.count_if(F.col("violations") > 0).alias("violators"),
        _sum(F.when(~has_pid, F.col("records"))).alias("unchecked"),
        *(_sum(F.col(each)).alias(each) for each in ("records", "sends", "bytes")),
    ).first()
    if row is None:
        raise AssertionError("an aggregate is one row")
    findings = {each["kind"]: each["findings"] for each in kinds}
    return Totals(
        **row.asDict(),
        suspects=suspects,
        violations={kind: findings[kind] for kind in VIOLATIONS if kind in findings},
        notices={kind: findings[kind] for kind in NOTICES if kind in findings},
        affected={each["kind"]: each["affected"] for each in kinds},
        damages=damages,
    )


def _sum(numbers: Column) -> Column:
    return F.coalesce(F.sum(numbers), F.lit(0))
