"""The expensive look: all sends of the suspects in their order, judged one by one."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pidlease.core.pid import Policy
from pidlease.core.rules import RULES
from pidlease.core.state import UNKNOWN_CRC, Batch
from pidlease.spark.audit.send_history import LogCompleteness, LoggedSend, SendFinding, SendHistory
from pidlease.spark.reader.send_rows import PRODUCER_KEY

#: What is told of a finding.
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
#: Columns of a send that are looked at, in the order in which they are unpacked.
_READ: Final = (
    *PRODUCER_KEY, "policy", "offset", "last_offset", "generation", "first", "last", "records",
    "crc", "timestamp", "segment", "position", "equal_offset", "equal_crc", "equal_generation",
)  # fmt: skip
#: Findings that are told at once.
_ROWS: Final = 4096

Partitions = Mapping[tuple[str, int], LogCompleteness]


def findings(rows: DataFrame, cuts: Partitions) -> DataFrame:
    """What is wrong with the sends of the suspects.

    One shuffle brings a producer's sends together; they are sorted on the disk, and stream by. So
    it takes no more memory for a producer of many sends.

    Parameters:
        rows: their sends (`passes.asked`).
        cuts: what is known of each partition.
    """
    together = rows.repartition(*PRODUCER_KEY)
    ordered = _with_equals(together).select(*_READ).sortWithinPartitions(*PRODUCER_KEY, "offset")

    def judge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _judge(batches, cuts)

    return ordered.mapInArrow(judge, SCHEMA)


def _with_equals(rows: DataFrame) -> DataFrame:
    """Each send with the first one of an equal range, if that stands before it."""
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


def _judge(batches: Iterable[pa.RecordBatch], cuts: Partitions) -> Iterator[pa.RecordBatch]:
    told = _FindingRows()
    producer, who = SendHistory(LogCompleteness()), None
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in _READ]
        for row in zip(*columns, strict=True):
            if row[:4] != who:
                told.add(who, producer.end())
                who = row[:4]
                producer = SendHistory(cuts.get(who[:2], LogCompleteness()))
            told.places[row[5]] = row[12:15]
            told.add(who, producer.judge(_sent(row)))
            told.keep(row[5])
        yield from told.take(_ROWS)
    told.add(who, producer.end())
    yield from told.take(1)


def _sent(row: tuple[Any, ...]) -> LoggedSend:
    policy, offset, last_offset, generation, first, last, records, crc = row[4:12]
    # A producer of a producer id counts requests, whatever they hold (`engine.whose.identified`).
    numbers = last - first + 1 if row[3] else records
    batch = Batch(generation, first, last, numbers, crc)
    equal = (row[15], UNKNOWN_CRC if row[16] is None else row[16], row[17])
    return LoggedSend(policy, offset, last_offset, batch, records, *equal)


class _FindingRows:
    """Findings until they are given out."""

    def __init__(self) -> None:
        #: Time and place of the sends that may still be told of, by their offsets.
        self.places: dict[int, tuple[Any, ...]] = {}
        self._rows: list[tuple[Any, ...]] = []

    def add(self, who: tuple[Any, ...] | None, found: Iterable[SendFinding]) -> None:
        for kind, sent, numbers, expected, original, differs, detail in found:
            if who is None:
                raise AssertionError("a finding is somebody's")
            time_ms, segment, position = self.places[sent.offset]
            generation, first, last, _, _ = sent.batch
            self._rows.append((
                *who, _name(sent.policy), kind, sent.offset, generation, first, last, sent.counted,
                numbers, expected, original, differs, time_ms, segment, position, detail,
            ))  # fmt: skip

    def keep(self, offset: int) -> None:
        """Only the last send may still be told of."""
        self.places = {offset: self.places[offset]}

    def take(self, least: int) -> Iterator[pa.RecordBatch]:
        """Those so far, if they are as many."""
        if len(self._rows) >= least:
            rows, self._rows = self._rows, []
            arrays = [
                pa.array(column, kind)
                for column, kind in zip(zip(*rows, strict=True), _TYPES, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def _name(policy: int) -> str:
    return Policy(policy).name.lower() if policy > 0 else "unknown"
