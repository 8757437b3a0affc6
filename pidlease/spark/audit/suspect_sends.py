"""The second pass of the audit: all sends of suspect producers, validated one by one."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pidlease.core.pid import Policy
from pidlease.core.rules import RULES
from pidlease.core.state import UNKNOWN_CRC, Batch
from pidlease.core.topic_partition import TopicPartition
from pidlease.spark.audit.send_history import LogCompleteness, LoggedSend, SendFinding, SendHistory
from pidlease.spark.reader.send_rows import PRODUCER_KEY

#: The columns of a finding.
SCHEMA: Final = (
    "topic string, partition int, pid long, producer_id string, policy string, kind string,"
    " offset long, generation long, first long, last long, records int, numbers long,"
    " expected long, original long, differs boolean, timestamp long, segment string,"
    " position long, detail string"
)
_NAMES: Final = tuple(each.split()[0] for each in SCHEMA.split(", "))
_TYPES: Final = (
    pa.string(), pa.int32(), pa.int64(), pa.string(), pa.string(), pa.string(),
    pa.int64(), pa.int64(), pa.int64(), pa.int64(), pa.int32(), pa.int64(),
    pa.int64(), pa.int64(), pa.bool_(), pa.int64(), pa.string(), pa.int64(), pa.string(),
)  # fmt: skip
_ARROW: Final = pa.schema(list(zip(_NAMES, _TYPES, strict=True)))
#: Columns of a send, in the order in which `_judge` unpacks them.
_READ: Final = (
    *PRODUCER_KEY, "policy", "offset", "last_offset", "generation", "first", "last", "records",
    "crc", "timestamp", "segment", "position", "equal_offset", "equal_crc", "equal_generation",
)  # fmt: skip
#: Findings of an Arrow batch.
_ROWS: Final = 4096

Partitions = Mapping[TopicPartition, LogCompleteness]


def findings(rows: DataFrame, logs: Partitions) -> DataFrame:
    """Return the findings about the sends of suspects.

    One shuffle brings a producer's sends together; they are sorted on disk and streamed, so memory
    does not grow with the number of sends.

    Parameters:
        rows: their sends, as `first_pass.with_policy` returns them.
        logs: the completeness of each partition.
    """
    together = rows.repartition(*PRODUCER_KEY)
    ordered = _with_equals(together).select(*_READ).sortWithinPartitions(*PRODUCER_KEY, "offset")

    def judge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _judge(batches, logs)

    return ordered.mapInArrow(judge, SCHEMA)


def _with_equals(rows: DataFrame) -> DataFrame:
    """Add to each send the first one of an equal range, if that is earlier."""
    restarting = [int(policy) for policy, rules in RULES.items() if rules.restarts]
    within = F.when(F.col("policy").isin(*restarting), F.col("generation")).otherwise(-1)
    equal = Window.partitionBy(*PRODUCER_KEY, "within", "first", "last").orderBy("offset")
    earlier = F.first("offset").over(equal) < F.col("offset")
    return (
        rows.withColumn("within", within)
        .withColumn("equal_offset", F.when(earlier, F.first("offset").over(equal)).otherwise(-1))
        .withColumn("equal_crc", F.first("crc").over(equal))
        .withColumn("equal_generation", F.first("generation").over(equal))
    )


def _judge(batches: Iterable[pa.RecordBatch], logs: Partitions) -> Iterator[pa.RecordBatch]:
    findings = _FindingRows()
    history, producer = SendHistory(LogCompleteness()), None
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in _READ]
        for row in zip(*columns, strict=True):
            if row[:4] != producer:
                findings.add(producer, history.end())
                producer = row[:4]
                history = SendHistory(logs.get(TopicPartition(*row[:2]), LogCompleteness()))
            findings.positions[row[5]] = row[12:15]
            findings.add(producer, history.judge(_sent(row)))
            findings.keep(row[5])
        yield from findings.take(_ROWS)
    findings.add(producer, history.end())
    yield from findings.take(1)


def _sent(row: tuple[Any, ...]) -> LoggedSend:
    policy, offset, last_offset, generation, first, last, records, crc = row[4:12]
    # A producer with a producer id counts requests, not records.
    numbers = last - first + 1 if row[3] else records
    batch = Batch(generation, first, last, numbers, crc)
    equal = (row[15], UNKNOWN_CRC if row[16] is None else row[16], row[17])
    return LoggedSend(policy, offset, last_offset, batch, records, *equal)


class _FindingRows:
    """Collects findings."""

    def __init__(self) -> None:
        #: Timestamp, segment and position, by offset, of the sends that may still have findings.
        self.positions: dict[int, tuple[Any, ...]] = {}
        self._rows: list[tuple[Any, ...]] = []

    def add(self, producer: tuple[Any, ...] | None, new: Iterable[SendFinding]) -> None:
        for kind, sent, numbers, expected, original, differs, detail in new:
            if producer is None:
                raise AssertionError("a finding has a producer")
            time_ms, segment, position = self.positions[sent.offset]
            generation, first, last, _, _ = sent.batch
            self._rows.append((
                *producer, _name(sent.policy), kind, sent.offset, generation, first, last,
                sent.counted, numbers, expected, original, differs, time_ms, segment, position,
                detail,
            ))  # fmt: skip

    def keep(self, offset: int) -> None:
        """Forget all sends but one, which may have findings later."""
        self.positions = {offset: self.positions[offset]}

    def take(self, least: int) -> Iterator[pa.RecordBatch]:
        """Return and remove the findings, if there are enough."""
        if len(self._rows) >= least:
            rows, self._rows = self._rows, []
            arrays = [
                pa.array(column, kind)
                for column, kind in zip(zip(*rows, strict=True), _TYPES, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def _name(policy: int) -> str:
    return Policy(policy).name.lower() if policy > 0 else "unknown"
