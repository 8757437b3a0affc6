"""The audit finds all violations in a log, and nothing else."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pidlease.core.pid import Policy, make_pid
from pidlease.kafka.records.record_batch import read_header
from pidlease.spark.audit import Audit, audit, summary
from pidlease.spark.reader import send_rows
from pidlease.spark.reader.log_parts import KafkaPart, StoredBatch
from pidlease.spark.source.settings import schema_of
from tests.crash.seeds import SOAK
from tests.golden import HISTORIES
from tests.golden.appends import APPENDS
from tests.property.profile import SCALE
from tests.spark.audit.histories import (
    POLICIES,
    SCHEMA,
    History,
    history,
    interleaved,
    rows,
)
from tests.spark.audit.logs import Logs, Origin, encoded
from tests.spark.audit.oracle import Oracle, Send
from tests.spark.audit.planting import PLANTS, Planted, grow
from tests.spark.soak import in_the_soak

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 1_000_000 if SOAK else 100_000
STRICT, KAFKA = (Origin(make_pid(policy, 7)) for policy in (Policy.STRICT, Policy.KAFKA))


def sends_of(spark: "SparkSession", path: Path) -> "DataFrame":
    source = spark.read.format("pidlease").option("rows", "sends")
    return source.option("subscribePattern", ".*").option("failOnDataLoss", "false").load(str(path))


def reported(found: Audit) -> set[Planted]:
    return {
        Planted(row.topic, row.partition, Origin(row.pid, row.producer_id), row.kind, row.offset,
                row.numbers, row.differs)
        for row in found.violations.collect()
    }  # fmt: skip


@in_the_soak
def test_random_histories_have_the_findings_of_a_naive_audit(spark: "SparkSession") -> None:
    """Duplicates and gaps that cancel out, zombies, wraps and duplicates at segments' ends."""
    seed = Random().randrange(10**6)
    print(f"seed {seed}")
    random = Random(seed)
    made: list[tuple[Any, ...]] = []
    expected: set[tuple[Any, ...]] = set()
    for number in range(25 * SCALE):
        whole = random.random() < 0.7
        histories = [
            history(random, random.choice(POLICIES), each, whole=whole) for each in range(6)
        ]
        placed = list(interleaved(random, histories, 0 if whole else 1000))
        topic = f"t{number}"
        made += rows(random, topic, placed, random.randrange(5))
        offsets = {(one.pid, one.producer_id, place): offset for one, place, offset in placed}
        for one in histories:
            for place, kind, numbers in Oracle(one.policy, whole).audit(one.sends):
                offset = offsets[one.pid, one.producer_id, place]
                expected.add((topic, one.pid, one.producer_id, offset, kind, numbers))
    random.shuffle(made)
    found = audit(spark.createDataFrame(made, SCHEMA))
    tables = found.violations.unionByName(found.notices)
    names = ("topic", "pid", "producer_id", "offset", "kind", "numbers")
    seen = {tuple(row[name] for name in names) for row in tables.collect()}
    assert seen == expected
    assert sum(found.totals.violations.values()) == found.violations.count()
    records = {row.policy: row.records for row in found.producers.groupBy("policy").sum("records")
               .withColumnRenamed("sum(records)", "records").collect()}  # fmt: skip
    assert sum(records.values()) == sum(row[4] for row in made) == found.totals.records


def test_all_that_is_planted_is_found_and_nothing_else(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Real segments of all policies: batches of 1, 10 and 500, compressed and not."""
    seed = Random().randrange(10**6)
    print(f"seed {seed}")
    random = Random(seed)
    planted: list[Planted] = []
    with Logs(tmp_path / "data", 300_000) as logs:
        for topic, share, count, codec in (
            ("single", 0.05, 1, None), ("tens", 0.1, 10, None), ("tens-lz4", 0.1, 10, "lz4"),
            ("large", 0.5, 500, None), ("large-zstd", 0.25, 500, "zstd"),
        ):  # fmt: skip
            planted += grow(logs, random, topic, int(RECORDS * share), count, codec)
        segments = logs.segments("large")
    assert len(segments) > 2
    found = audit(sends_of(spark, tmp_path / "data"))
    assert reported(found) == set(planted)
    assert {each.kind for each in planted} >= {"duplicate", "gap", "fenced", "overlap", "late"}
    assert any(each.differs for each in planted), PLANTS
    assert found.totals.damages == 0
    assert found.totals.records >= RECORDS * 0.95


def counted(sends: "DataFrame") -> "tuple[DataFrame, Accumulator[int]]":
    """Return the table, and a counter of the rows that are read of it."""
    read = sends.sparkSession.sparkContext.accumulator(0)

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            read.add(batch.num_rows)
            yield batch

    return sends.mapInArrow(count, sends.schema), read


@in_the_soak
def test_a_sound_log_is_read_once_without_findings(spark: "SparkSession", tmp_path: Path) -> None:
    with Logs(tmp_path / "data", 50_000) as logs:
        grow(logs, Random(1), "t", 2_000, 10, None, plants=0)
    sends, read = counted(sends_of(spark, tmp_path / "data"))
    found = audit(sends)
    shown = summary(found, "a log")
    assert read.value == found.totals.sends > 0
    assert found.totals.sound
    assert found.totals.suspects == 0
    assert shown.violations == shown.notices == shown.damages == []
    rows = {(row.policy, row.partition): row for row in found.producers.collect()}
    assert rows["strict", 0].records == rows["strict", 0].last_sequence + 1 >= 50
    assert rows["strict", 0].violations == 0
    over_time = found.timeline.groupBy().sum("records").first()
    assert over_time is not None
    assert over_time[0] == found.totals.records == sum(map(sum, shown.records.series.values()))


@in_the_soak
def test_with_somebody_under_suspicion_it_is_read_twice_at_most(
    spark: "SparkSession", tmp_path: Path
) -> None:
    with Logs(tmp_path / "data", 50_000) as logs:
        planted = grow(logs, Random(1), "t", 2_000, 10, None)
    sends, read = counted(sends_of(spark, tmp_path / "data"))
    found = audit(sends)
    shown = summary(found, "a log", rows=1000)
    assert read.value <= 2 * found.totals.sends
    assert found.totals.violators == len({(each.partition, each.producer) for each in planted})
    assert len(shown.violations) == len(planted)


def test_a_damaged_segment_is_reported_and_reading_goes_on(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """The lost records are no violation; a duplicate after the damage is found."""
    kafka, strict, other = (
        Origin(make_pid(policy, 7)) for policy in (Policy.KAFKA, Policy.STRICT, Policy.EPOCH)
    )
    with Logs(tmp_path / "data", 4_000) as logs:
        logs.topic("t")
        logs.topic("untouched")
        offsets = [
            logs.append("t", 0, [encoded(kafka, 0, 10 * place, 10)])[0] for place in range(60)
        ]
        (duplicate,) = logs.append("t", 0, [encoded(kafka, 0, 400, 10)])
        logs.append("t", 0, [encoded(strict, 0, 0, 5), encoded(strict, 0, 5, 5)])
        (gap,) = logs.append("t", 0, [encoded(strict, 0, 20, 5)])
        logs.append("untouched", 0, [encoded(other, 0, 0, 5), encoded(other, 0, 5, 5)])
        segments = logs.segments("t")
    assert len(segments) > 3
    lost = 25
    log = max(each for each in segments if int(each.stem) <= offsets[lost])
    content = bytearray(log.read_bytes())
    content[content.index(offsets[lost].to_bytes(8, "big")) + 80] ^= 1
    log.write_bytes(content)

    found = audit(sends_of(spark, tmp_path / "data"))
    (damage,) = found.damages.collect()
    assert (damage.topic, damage.partition, damage.segment, damage.offset) == (
        "t", 0, log.name, offsets[lost],
    )  # fmt: skip
    assert reported(found) == {
        Planted("t", 0, kafka, "duplicate", duplicate, 10),
        Planted("t", 0, strict, "gap", gap, 10),
    }
    (notice,) = found.notices.collect()
    assert (notice.kind, notice.offset, notice.numbers) == ("lost to damage", offsets[lost + 1], 10)
    assert found.totals.records == 60 * 10 + 10 + 15 + 10 - 10
    assert (found.totals.damages, found.totals.sound) == (1, False)


def over_kafka(start: int, offset: int, first: int) -> list[dict[str, Any]]:
    """Return the rows of a partition in front of Kafka with two sends of each of two producers.

    Parameters:
        start: where its log begins.
        offset: of the first send; offsets between have only markers of transactions.
        first: the first sequence number.
    """
    topic = f"start-{start}-offset-{offset}-first-{first}"
    batches = []
    for number in (first, first + 5):
        for producer in (STRICT, KAFKA):
            data = bytearray(encoded(producer, 0, number, 5).data)
            data[:8] = offset.to_bytes(8, "big")
            batches.append(StoredBatch("", -1, read_header(data), memoryview(data)))
            offset += 5
    part = KafkaPart("kafka:9092", topic, 0, start, offset)
    return [row for each in send_rows.sends(part, batches) for row in each.to_pylist()]


def test_a_log_that_begins_with_a_marker_is_not_cut(spark: "SparkSession") -> None:
    """In front of Kafka the writer's marker has offset 0: then no send may be missing."""
    made = [
        *over_kafka(0, 1, 0),
        *over_kafka(0, 1, 5),  # sends are missing
        *over_kafka(0, 0, 5),  # likewise, without a marker
        *over_kafka(1, 1, 5),  # sends were deleted
    ]
    sends = spark.createDataFrame(made, schema_of({"rows": "sends"}))
    found = {
        Planted(f"start-0-offset-{offset}-first-5", 0, producer, "gap", offset + 5 * place, 5)
        for offset in (0, 1)
        for place, producer in enumerate((STRICT, KAFKA))
    }
    assert reported(audit(sends)) == found
    # Without the first rows it is unknown; and so it is in a table of an older version.
    assert reported(audit(sends.where("offset > 1"))) == set()
    without_marker = {each for each in found if each.topic == "start-0-offset-0-first-5"}
    assert reported(audit(sends.drop("read_from"))) == without_marker


# ---------------------------------------------------------------------- golden histories


def golden_rows(
    random: Random, topic: str, policy: str, sends: list[Send], start: int, crcs: list[int]
) -> list[tuple[Any, ...]]:
    one = history(random, policy, 1, whole=True)
    placed = list(interleaved(random, [History(policy, one.pid, one.producer_id, sends)], start))
    made = rows(random, topic, placed, random.randrange(3))
    return [(*row[:10], crc, *row[11:]) for row, crc in zip(made, crcs, strict=True)]


def test_what_golden_histories_admit_is_sound_and_what_they_refuse_is_found(
    spark: "SparkSession",
) -> None:
    """As if each batch that was refused was in the log, after those that were admitted."""
    random = Random(7)
    made: list[tuple[Any, ...]] = []
    expected: dict[str, str] = {}
    kinds = ("duplicate", "gap", "overlap", "fenced")
    for one in HISTORIES:
        if one.seeded or one.named:
            continue
        admitted: list[Send] = []
        crcs: list[int] = []
        start = 0 if one.age == "young" else 1000
        for place, step in enumerate(one.steps):
            batch, verdict = step.batch, step.verdict.kind
            send = Send(batch.generation, batch.first, batch.last, batch.count)
            if verdict == "admit":
                admitted.append(send)
                crcs.append(batch.crc)
            elif verdict in kinds and (admitted or start == 0):
                topic = f"{one.name}-{place}"
                expected[topic] = verdict
                made += golden_rows(
                    random, topic, one.policy, [*admitted, send], start, [*crcs, batch.crc]
                )
        if admitted:
            made += golden_rows(random, one.name, one.policy, admitted, start, crcs)
    found = audit(spark.createDataFrame(made, SCHEMA))
    # Gaps near the largest sequence number: their sum is beyond 64 bits.
    assert found.totals.affected["gap"] == 2**63 - 1
    assert summary(found, "golden histories").topics
    seen = {row.topic: row.kind for row in found.violations.collect()}
    # `judge` has no other verdict for a late send.
    late = {topic for topic, kind in seen.items() if kind == "late"}
    assert late <= {topic for topic, kind in expected.items() if kind == "duplicate"}
    seen |= dict.fromkeys(late, "duplicate")
    assert {topic: seen.get(topic) for topic in expected} == expected
    assert seen.keys() == expected.keys()
    assert len(expected) > 20


def test_what_failed_appends_leave_in_the_log_is_sound(spark: "SparkSession") -> None:
    random = Random(7)
    made: list[tuple[Any, ...]] = []
    for one in APPENDS:
        (holds,) = [step["holds"] for step in one.steps if "holds" in step]
        sends = [Send(0, first, last, last - first + 1) for first, last in holds]
        if sends:
            made += golden_rows(random, one.name, one.policy, sends, 0, [0] * len(sends))
    found = audit(spark.createDataFrame(made, SCHEMA))
    assert found.totals.sound
    assert found.totals.partitions > 5
