"""The fold over all sends of a log, by the fold of the server itself.

A shuffle brings the sends of a producer on a partition together; they are sorted on the disk, and
stream through `fold_packed`, so that memory holds one state at a time. Most of them need not go
through it: where a producer's sends follow one another, its first and its last five say all that
the fold would keep. Which they are is found for thousands of rows at once.
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

#: What comes out: whose state, where its first send stands, and the state (`core.packed`). Or, in
#: the place of a state, what is damaged there.
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
#: By its rules a producer id is folded, whichever it is.
_SOME_NAME: Final = make_pid(Policy.EPOCH, 1)
#: Numbers that wrap have gone far when they have gone on by so many: a quarter of half the space.
_FAR: Final = (KAFKA.sequence_max + 1) >> 3
#: States that are given out at once.
_ROWS: Final = 8192

_Who = tuple[str, int, int, str]


def fold_sends(sends: DataFrame, now_ms: int) -> DataFrame:
    """The state of every producer on every partition (`SCHEMA`).

    Parameters:
        sends: as `spark.read.format("pidlease").option("rows", "sends")` gives them.
        now_ms: when all of them count as arrived, as in a replay, in ms since 1970.
    """
    policy = F.shiftright("pid", POLICY_SHIFT)
    known = policy.isin(*map(int, RULES)) & (F.col("pid").bitwiseAND(N_MASK) != 0)
    of_somebody = (F.col("producer_id") != "") | known
    ordered = (
        sends.where(of_somebody | F.col("damage").isNotNull())
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
    """The state that is being folded, and those that are done.

    Parameters:
        now_ms: when all sends count as arrived.
    """

    def __init__(self, now_ms: int) -> None:
        self._now_ms: Final = now_ms
        self._who: _Who | None = None
        self._state: Packed | None = None
        self._first_offset = -1
        self._done: list[tuple[Any, ...]] = []

    def take(self, least: int) -> Iterator[pa.RecordBatch]:
        """The states that are done, if they are as many."""
        if len(self._done) >= least:
            done, self._done = self._done, []
            columns = zip(zip(*done, strict=True), _ARROW, strict=True)
            arrays = [pa.array(values, each.type) for values, each in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=_ARROW)

    def next(self, who: _Who | None, first_offset: int) -> None:
        """Another producer's turn."""
        if self._who is not None:
            self._done.append((*self._who, self._first_offset, self._state, None))
        self._who, self._first_offset, self._state = who, first_offset, None

    def add(self, batch: pa.RecordBatch) -> None:
        """Fold rows, in order of producers and offsets; what is damaged goes on as it is."""
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
            who = topic, partition, pid, name
            if who != self._who:
                self.next(who, offset)
            rules = rules_of(_SOME_NAME if name else pid)
            if rules is None:
                raise AssertionError("only PIDs that belong to a policy are folded")
            send = Batch(generation, first, last, last - first + 1 if name else records, crc)
            self._state = fold_packed(rules, self._state, send, offset, self._now_ms)


def _begins(batch: pa.RecordBatch) -> np.ndarray:
    """At which rows another producer's turn begins."""
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
    """Which rows the fold has to see, so that it comes to the same as with all of them.

    A producer's first row says the lowest number, and its last five are what is kept; a higher
    generation, or a 0, may begin anew. Of whoever is not in order, all are needed: where a
    generation falls, the last five may be a zombie's; and numbers that wrap drag the lowest one
    along (`keep_low`), which comes to the same only where they go on without a hole, and not far.
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
