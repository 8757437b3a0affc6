"""A fold that skips sends determines the same state as a fold of all sends."""

from collections.abc import Sequence
from random import Random

import pyarrow as pa
import pytest

from pidlease.core.packed import Packed, fold_packed
from pidlease.core.pid import Policy, make_pid
from pidlease.core.rules import RULES
from pidlease.core.state import Batch
from pidlease.spark.rebuild.log_fold import _fold
from tests.property.profile import SCALE
from tests.spark.audit.histories import POLICIES, History, history
from tests.spark.audit.oracle import Send

NOW_MS = 1_800_000_000_000
SCHEMA = pa.schema([
    ("topic", pa.string()), ("partition", pa.int32()), ("pid", pa.int64()),
    ("producer_id", pa.string()), ("offset", pa.int64()), ("generation", pa.int64()),
    ("first", pa.int64()), ("last", pa.int64()), ("records", pa.int32()), ("crc", pa.int64()),
    ("damage", pa.string()),
])  # fmt: skip


def long_one(random: Random, number: int) -> History:
    """Return many sends in order, most of which are skipped; for kafka the lowest number moves."""
    policy = random.choice(POLICIES)
    one = history(random, policy, number, whole=random.random() < 0.7)
    length = random.choice([1, 3, 2**27]) if policy == "kafka" else random.choice([1, 3])
    sends = list(one.sends)
    for _ in range(random.randint(0, 3)):
        last = sends[-1]
        first, generation = last.last + 1, last.generation
        if random.random() < 0.5:
            generation += 1
            first = 0 if policy in ("kafka", "epoch") else first
        for _ in range(random.randint(5, 30)):
            sends.append(Send(generation, first, first + length - 1, length))
            first += length
        if random.random() < 0.5:  # a zombie, or a producer with an expired state
            again = random.choice(sends)
            sends += [again] * random.randint(1, 7)
    return one._replace(sends=sends)


def expected_of(one: History, rows: Sequence[tuple[object, ...]]) -> Packed | None:
    rules = RULES[Policy[one.policy.upper()]]
    state: Packed | None = None
    for row in rows:
        offset, generation, first, last, records, crc = (int(str(each)) for each in row[4:10])
        numbers = last - first + 1 if one.producer_id else records
        batch = Batch(generation, first, last, numbers, crc)
        state = fold_packed(rules, state, batch, offset, NOW_MS)
    return state


@pytest.mark.parametrize("seed", range(150 * SCALE))
def test_it_comes_to_what_the_fold_of_all_sends_comes_to(seed: int) -> None:
    random = Random(seed)
    table: list[tuple[object, ...]] = []
    expected = {}
    for number in range(random.randint(1, 8)):
        one = long_one(random, number)
        offset, rows = random.randrange(9), []
        for place, send in enumerate(one.sends):
            generation, first, last, records = send.wire(one.policy)
            rows.append(("t", 0, one.pid, one.producer_id, offset, generation, first, last,
                         records, place, None))  # fmt: skip
            offset += records
        table += rows
        expected[one.pid, one.producer_id] = (rows[0][4], expected_of(one, rows))
    batches = []
    while table:
        cut = random.choice([1, 7, 50, 10_000])
        columns = zip(zip(*table[:cut], strict=True), SCHEMA, strict=True)
        arrays = [pa.array(values, each.type) for values, each in columns]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
        del table[:cut]
    found = [row for batch in _fold(batches, NOW_MS) for row in batch.to_pylist()]
    states = {(row["pid"], row["producer_id"]): (row["first_offset"], row["state"])
              for row in found}  # fmt: skip
    assert states == expected
    assert len(found) == len(expected)


def test_sends_that_follow_one_another_are_mostly_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    folded = []

    def counted(*given: object) -> Packed:
        folded.append(given)
        return fold_packed(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("pidlease.spark.rebuild.log_fold.fold_packed", counted)
    pid = make_pid(Policy.KAFKA, 1)
    rows = [("t", 0, pid, "", place, 0, place, place, 1, place, None) for place in range(1000)]
    arrays = [pa.array(values, each.type)
              for values, each in zip(zip(*rows, strict=True), SCHEMA, strict=True)]  # fmt: skip
    (states,) = _fold([pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)], NOW_MS)
    assert states.num_rows == 1
    assert len(folded) == 6
