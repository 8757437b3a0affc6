"""Computes the producers' states from all sends of a log, by the server's own rules.

A shuffle brings a producer's sends on a partition together; they are sorted on disk and streamed
through `fold_packed`, so that memory holds one state at a time. Most sends are skipped: if a
producer's sends are in order, its first and its last five determine the state. A vectorised check
selects the sends to fold.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pidlease.core.packed import Packed, fold_packed
from pidlease.core.pid import N_MASK, POLICY_SHIFT, Policy, make_pid
from pidlease.core.rules import KAFKA, RULES, rules_of
from pidlease.core.state import BATCHES_KEPT, Batch
from pidlease.spark.reader.send_rows import PRODUCER_KEY

#: A producer on a partition, the offset of its first send, and its state (`core.packed`); or, for
#: a damaged place, the damage and no state.
SCHEMA: Final = (
    "topic string, partition int, pid long, producer_id string, first_offset long, state binary,"
    " damage string"
)
_ARROW: Final = pa.schema([
    ("topic", pa.string()), ("partition", pa.int32()), ("pid", pa.int64()),
    ("producer_id", pa.string()), ("first_offset", pa.int64()), ("state", pa.binary()),
    ("damage", pa.string()),
])  # fmt: skip
_NUMBERS: Final = ("offset", "generation", "first", "last", "records", "crc")
#: Any PID of policy epoch: its rules are those of all producer ids.
_SOME_NAME: Final = make_pid(Policy.EPOCH, 1)
#: If sequence numbers wrap, a producer with more than an eighth of them is folded completely.
_FAR: Final = (KAFKA.sequence_max + 1) >> 3
#: States of an Arrow batch.
_ROWS: Final = 8192

_ProducerKey = tuple[str, int, int, str]


def fold_sends(sends: DataFrame, now_ms: int) -> DataFrame:
    """Return the state of each producer on each partition (`SCHEMA`).

    Parameters:
        sends: as `spark.read.format("pidlease").option("rows", "sends")` loads them.
        now_ms: time of arrival for all sends, as in a replay, in ms since 1970.
    """
    policy = F.shiftright("pid", POLICY_SHIFT)
    known = policy.isin(*map(int, RULES)) & (F.col("pid").bitwiseAND(N_MASK) != 0)
    has_producer = (F.col("producer_id") != "") | known
    ordered = (
        sends.where(has_producer | F.col("damage").isNotNull())
        .select(*PRODUCER_KEY, *_NUMBERS, "damage")
        .repartition(*PRODUCER_KEY)
        .sortWithinPartitions(*PRODUCER_KEY, "offset")
    )

    def fold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _fold(batches, now_ms)

    return ordered.mapInArrow(fold, SCHEMA)


def _fold(batches: Iterable[pa.RecordBatch], now_ms: int) -> Iterator[pa.RecordBatch]:
    states = _States(now_ms)
    for batch in batches:
        states.add(batch)
        yield from states.take(_ROWS)
    states.next(None, -1)
    yield from states.take(1)


class _States:
    """The state that is being folded, and the finished ones.

    Parameters:
        now_ms: time of arrival for all sends.
    """

    def __init__(self, now_ms: int) -> None:
        self._now_ms: Final = now_ms
        self._producer: _ProducerKey | None = None
        self._state: Packed | None = None
        self._first_offset = -1
        self._done: list[tuple[Any, ...]] = []

    def take(self, least: int) -> Iterator[pa.RecordBatch]:
        """Return and remove the finished states, if there are enough."""
        if len(self._done) >= least:
            done, self._done = self._done, []
            columns = zip(zip(*done, strict=True), _ARROW, strict=True)
            arrays = [pa.array(values, each.type) for values, each in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=_ARROW)

    def next(self, producer: _ProducerKey | None, first_offset: int) -> None:
        """Finish the state, and begin that of another producer."""
        if self._producer is not None:
            self._done.append((*self._producer, self._first_offset, self._state, None))
        self._producer, self._first_offset, self._state = producer, first_offset, None

    def add(self, batch: pa.RecordBatch) -> None:
        """Fold rows, ordered by producer and offset; pass on damaged places."""
        is_sound = pa.compute.is_null(batch.column("damage"))
        if not pa.compute.all(is_sound).as_py():
            for row in batch.filter(pa.compute.invert(is_sound)).to_pylist():
                self._done.append((row["topic"], row["partition"], -1, "", row["offset"], None,
                                   row["damage"]))  # fmt: skip
            batch = batch.filter(is_sound)
        if batch.num_rows:
            self._fold(batch)

    def _fold(self, batch: pa.RecordBatch) -> None:
        begins = _begins(batch)
        needed = np.flatnonzero(_needed(batch, begins))
        rows = batch.take(pa.array(needed))
        names = [rows.column(name).to_pylist() for name in (*PRODUCER_KEY, *_NUMBERS)]
        for topic, partition, pid, name, *numbers in zip(*names, strict=True):
            offset, generation, first, last, records, crc = numbers
            producer = topic, partition, pid, name
            if producer != self._producer:
                self.next(producer, offset)
            rules = rules_of(_SOME_NAME if name else pid)
            if rules is None:
                raise AssertionError("only PIDs that belong to a policy are folded")
            send = Batch(generation, first, last, last - first + 1 if name else records, crc)
            self._state = fold_packed(rules, self._state, send, offset, self._now_ms)


def _begins(batch: pa.RecordBatch) -> np.ndarray:
    """Return at which rows another producer begins."""
    begins = np.zeros(batch.num_rows, bool)
    begins[0] = True
    for name in PRODUCER_KEY:
        column = batch.column(name)
        if pa.types.is_string(column.type):
            column = column.dictionary_encode().indices
        values = column.to_numpy(zero_copy_only=False)
        begins[1:] |= values[1:] != values[:-1]
    return begins


def _needed(batch: pa.RecordBatch, begins: np.ndarray) -> np.ndarray:
    """Select the rows that determine the same state as all rows.

    A producer's first row has the lowest sequence number, and its last five are kept in the state;
    a higher generation, or sequence number 0, may begin anew. If a producer's rows are not in
    order, all are needed: after a lower generation, the last five may be a zombie's. Sequence
    numbers that wrap move the lowest one along (`keep_low`), so they must be without gaps, and not
    too many.
    """
    generation, first, last, offset, pid = (
        batch.column(name).to_numpy() for name in ("generation", "first", "last", "offset", "pid")
    )
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], batch.num_rows)
    run = np.cumsum(begins) - 1
    tail = np.arange(batch.num_rows) >= (ends - BATCHES_KEPT)[run]
    changes, out_of_order = np.zeros((2, batch.num_rows), bool)
    changes[1:] = generation[1:] != generation[:-1]
    wraps = pid >> POLICY_SHIFT == KAFKA.policy
    goes_on = ~wraps[1:] | changes[1:] | (first[1:] == last[:-1] + 1)
    out_of_order[1:] = ~goes_on | (generation[1:] < generation[:-1])
    out_of_order &= ~begins
    far = offset[ends - 1] - offset[starts] > _FAR
    all_of_it = (np.bincount(run, out_of_order) > 0) | (far & wraps[starts])
    needed: np.ndarray = begins | tail | changes | (first == 0) | all_of_it[run]
    return needed
