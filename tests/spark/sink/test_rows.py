"""The sequence numbers of a task's rows, and which tasks are refused."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pidlease.core.topic_partition import TopicPartition
from pidlease.spark.errors import SinkError
from pidlease.spark.partition_offsets import OffsetRange
from pidlease.spark.sink.query_shape import QueryColumns
from pidlease.spark.sink.row_batches import RowNumbering

_COLUMNS = QueryColumns(
    source=("topic", "partition", "offset"),
    partition="", value="value", key="", headers="", timestamp="",
)  # fmt: skip
_SPREAD = QueryColumns(
    source=("source_topic", "source_partition", "source_offset"),
    partition="partition", value="value", key="", headers="", timestamp="",
)  # fmt: skip
_SOURCE = TopicPartition("t", 1)
_END = 10_000


def batch_of(
    offsets: list[int], columns: QueryColumns = _COLUMNS, goes: list[int] | None = None
) -> pa.RecordBatch:
    """Rows of the source's partition."""
    names = dict(
        zip(columns.source, (["t"] * len(offsets), [1] * len(offsets), offsets), strict=True)
    )
    if goes is not None:
        names["partition"] = goes
    return pa.RecordBatch.from_pydict(names)


def numbering(rows_max: int = 1, columns: QueryColumns = _COLUMNS, first: int = -1) -> RowNumbering:
    """Return the numbering of a task."""
    return RowNumbering(columns, rows_max, {"t": "copy"}, {_SOURCE: OffsetRange(first, _END)})


def numbers_of(task: RowNumbering, batches: list[pa.RecordBatch]) -> list[int]:
    """Return the sequence numbers of all rows."""
    return [
        int(number) for batch in batches for rows in task.rows(batch) for number in rows.numbers
    ]


@settings(deadline=None)
@given(
    counts=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5)), max_size=60),
    cuts=st.sets(st.integers(0, 300), max_size=10),
    rows_max=st.integers(5, 9),
)
def test_each_row_of_a_record_has_its_own(
    counts: list[tuple[int, int]], cuts: set[int], rows_max: int
) -> None:
    """The record's offset and the row's index in it, however Arrow parts the rows."""
    offsets, expected, offset = [], [], 0
    for step, rows in counts:
        offset += step
        offsets += [offset] * rows
        expected += [offset * rows_max + place for place in range(rows)]
    ends = [*sorted(cut for cut in cuts if cut < len(offsets)), len(offsets)]
    parts = [offsets[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    assert numbers_of(numbering(rows_max), [batch_of(part) for part in parts]) == expected


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 200), min_size=1, max_size=100, unique=True).map(sorted),
    st.randoms(use_true_random=False),
)
def test_rows_are_parted_by_where_they_go(offsets: list[int], random: "object") -> None:
    """All rows of each partition, in order."""
    goes = [random.randrange(3) for _ in offsets]  # type: ignore[attr-defined]
    found: dict[TopicPartition, list[int]] = {}
    for rows in numbering(columns=_SPREAD).rows(batch_of(offsets, _SPREAD, goes)):
        found[rows.destination] = rows.numbers.tolist()
    for partition in range(3):
        wanted = [o for o, to in zip(offsets, goes, strict=True) if to == partition]
        assert found.get(TopicPartition("copy", partition), []) == wanted


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        ([[3, 2]], "offset 2 of t-1 comes after a later one"),
        ([[3, 4], [4, 5]], "became 2 rows or more"),
        ([[3, 4], [3]], "offset 3 of t-1 comes after a later one"),
        ([[_END]], "are not within the micro-batch, which has 2 to 9999"),
        ([[1]], "are not within the micro-batch, which has 2 to 9999"),
        ([[5, None]], "a row without offset"),
        ([[-1]], "a row with offset -1"),
    ],
)
def test_what_no_task_of_a_partition_has(offsets: list[list[int]], text: str) -> None:
    """The error names the row."""
    with pytest.raises(SinkError, match=text):
        numbers_of(numbering(first=2), [batch_of(each) for each in offsets])


def test_two_partitions_in_one_task() -> None:
    """In one batch, or one after the other; and one that the checkpoint does not contain."""
    mixed = pa.RecordBatch.from_pydict({"topic": ["t"] * 2, "partition": [1, 2], "offset": [1, 2]})
    with pytest.raises(SinkError, match="a task has rows of t-1 and t-2"):
        numbers_of(numbering(), [mixed])
    other = pa.RecordBatch.from_pydict({"topic": ["t"], "partition": [2], "offset": [9]})
    with pytest.raises(SinkError, match="a task has rows of t-1 and t-2"):
        numbers_of(numbering(), [batch_of([1]), other])
    with pytest.raises(SinkError, match="rows of t-2 of the source, which the checkpoint"):
        numbers_of(numbering(), [other])
