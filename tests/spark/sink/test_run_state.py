"""The sink's own file: whole or not at all, and of one run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pidlease.core.topic_partition import TopicPartition
from pidlease.spark.errors import SinkError, SinkFencedError
from pidlease.spark.partition_offsets import OffsetRange
from pidlease.spark.sink.run_state import Chain, RunState, RunStore, SourceProducer, TableRange
from pidlease.spark.sink.settings import read_settings
from pidlease.spark.sink.sink_writer import _PreparedRun
from pidlease.spark.sink.spark_checkpoint import MicroBatch, read_micro_batch
from pidlease.spark.sink.table_writes import begin_table, end_table
from pidlease.spark.source.settings import schema_of

_STATE = RunState(
    name="spark/abc", batch=7, prepared=8, query_id="q", query={"topic": "{topic}", "rows": 2},
    spread=True,
    ends={TopicPartition("a", 0): 12, TopicPartition("a", 1): 0},
    sources={
        TopicPartition("src", 4): SourceProducer(
            1 << 48 | 5, 2**40, 1, 2, {TopicPartition("a", 1): Chain(3, 9)}, 10, 2,
            (TableRange(1, 5, True),),
        ),
        TopicPartition("src", 5): SourceProducer(1 << 48 | 6, 0, 1, -1),
    },
)  # fmt: skip


def begun(store: RunStore, state: RunState) -> str:
    """Begin a run; return its name."""
    name = store.reserve()
    store.write(name, state)
    store.check_alone(name)
    store.forget_old()
    return name


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """All of it."""
    store = RunStore(tmp_path / "state")
    assert store.before() == []
    name = begun(store, _STATE)
    assert store.before() == [_STATE]
    assert store.before(name) == []
    later = replace(_STATE, batch=8)
    store.write(name, later)
    assert store.read(name) == later


def test_the_newest_run_counts(tmp_path: Path) -> None:
    """Even if an earlier one writes again; and old ones are removed."""
    store = RunStore(tmp_path)
    names = [begun(store, replace(_STATE, batch=number)) for number in range(8)]
    store.write(names[-3], replace(_STATE, batch=100))
    assert [each.batch for each in store.before()] == [7, 6, 100, 4, 3]
    assert len(list(tmp_path.iterdir())) == 5
    store.check_newest(names[-1])
    with pytest.raises(SinkFencedError, match="has taken over: run-000008"):
        store.check_newest(names[-2])


def test_of_two_that_begin_at_once_one_sees_the_other(tmp_path: Path) -> None:
    """In any order: the earlier one finds the later one, or the later one finds its state."""
    one, two = RunStore(tmp_path), RunStore(tmp_path)
    first = one.reserve()
    second = two.reserve()
    assert first != second
    assert two.before(second) == []  # it would begin anew,
    one.write(first, _STATE)
    with pytest.raises(SinkFencedError, match="another run of this query begins"):
        one.check_alone(first)  # so this one must not
    one.release(first)
    two.write(second, _STATE)
    two.check_alone(second)
    third = one.reserve()
    assert one.before(third) == [_STATE]  # and a later run sees it


def test_a_refused_run_takes_over_nothing(tmp_path: Path) -> None:
    """A reserved name does not fence a run."""
    store = RunStore(tmp_path)
    name = begun(store, _STATE)
    refused = store.reserve()
    store.check_newest(name)
    store.release(refused)
    assert store.before() == [_STATE]


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format":9,"x":1} 00000000\n'])
def test_damage_is_reported(tmp_path: Path, content: bytes) -> None:
    """Nothing is guessed."""
    store = RunStore(tmp_path)
    name = begun(store, _STATE)
    (tmp_path / name / "state").write_bytes(content)
    with pytest.raises(SinkError, match=r"prepare the query again|take it from a backup"):
        store.before()


def test_each_byte_is_checked(tmp_path: Path) -> None:
    """Each changed byte is found."""
    store = RunStore(tmp_path)
    path = tmp_path / begun(store, _STATE) / "state"
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        if whole[place : place + 1] == b"\n":
            continue
        changed = bytearray(whole)
        changed[place] ^= 0x10
        path.write_bytes(changed)
        with pytest.raises(SinkError):
            store.before()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """It is reported as an error of the sink."""
    (tmp_path / "state").write_text("a file")
    with pytest.raises(SinkError, match="cannot be kept"):
        RunStore(tmp_path / "state").reserve()


def test_tables_one_after_the_other() -> None:
    """A table must be written to its end before the next one; adjacent tables become one range."""
    source = TopicPartition("t", 0)
    state = replace(_STATE, sources={source: SourceProducer(1 << 48 | 5, 0, 1, -1)})

    def table(first: int, end: int) -> MicroBatch:
        return MicroBatch(-1, {source: OffsetRange(first, end)}, -1)

    state = begin_table(state, table(10, 20))
    assert state.sources[source].tables == (TableRange(10, 20, whole=False),)
    for first, end in ((20, 30), (11, 20), (10, 19), (0, 30)):
        with pytest.raises(SinkError, match="offsets 10 to 19 of t-0 were begun and not written"):
            begin_table(state, table(first, end))
    state = end_table(begin_table(state, table(10, 25)))
    assert state.sources[source].tables == (TableRange(10, 25, whole=True),)
    state = end_table(begin_table(state, table(25, 30)))
    assert state.sources[source].tables == (TableRange(10, 30, whole=True),)
    state = end_table(begin_table(state, table(40, 50)))
    assert state.sources[source].tables == (
        TableRange(10, 30, whole=True),
        TableRange(40, 50, whole=True),
    )


def test_sparks_checkpoint(tmp_path: Path) -> None:
    """As Spark 4.2 writes it; and others that are refused."""
    assert read_micro_batch(str(tmp_path)) is None
    offsets, commits = tmp_path / "offsets", tmp_path / "commits"
    offsets.mkdir()
    commits.mkdir()
    (offsets / "8").write_text('v1\n{"conf":{}}\n{"t":{"0":5}}')
    (offsets / "9").write_text('v1\n{"conf":{}}\n{"t":{"0":7,"1":3}}')
    (offsets / ".9.crc").write_text("")
    (commits / "8").write_text("v1\n{}")
    found = read_micro_batch(f"file://{tmp_path}")
    assert found == read_micro_batch(str(tmp_path))
    assert found is not None
    assert (found.number, found.committed) == (9, 8)
    assert found.ranges == {
        TopicPartition("t", 0): OffsetRange(5, 7),
        TopicPartition("t", 1): OffsetRange(-1, 3),
    }
    for content, text in (
        ('v1\n{"conf":{}}\n{"offset":100}', "no Kafka's"),
        ('v1\n{"conf":{}}\n{"t":{"0":5}}\n{"u":{"0":5}}', "reads 2 sources"),
        ('v3\n{"conf":{}}\n{"t":{"0":5}}', "has version v3"),
    ):
        (offsets / "9").write_text(content)
        with pytest.raises(SinkError, match=text):
            read_micro_batch(str(tmp_path))


@pytest.mark.parametrize(("end", "is_cut"), [(94, True), (99, True), (100, False), (130, False)])
def test_a_source_that_was_cut_is_refused(tmp_path: Path, end: int, is_cut: bool) -> None:
    """Once its new records counted as rows that were stored before."""
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    (offsets / "8").write_text('v1\n{"conf":{}}\n{"t":{"0":5,"1":100}}')
    (offsets / "9").write_text(f'v1\n{{"conf":{{}}}}\n{{"t":{{"0":7,"1":{end}}}}}')
    if not is_cut:
        found = read_micro_batch(str(tmp_path))
        assert found is not None
        assert found.ranges[TopicPartition("t", 1)] == OffsetRange(100, end)
        return
    with pytest.raises(SinkError) as refused:
        read_micro_batch(str(tmp_path))
    assert f"micro-batch 9 ends at {end} of t-1 of the source" in str(refused.value)
    assert "had been read up to 100" in str(refused.value)
    assert "Begin with a new checkpoint" in str(refused.value)


@pytest.mark.parametrize(("start", "end", "is_cut"), [(-1, 4, True), (-1, 5, False), (2, 4, False)])
def test_a_source_that_was_gone_for_a_time_is_refused(
    tmp_path: Path, start: int, end: int, is_cut: bool
) -> None:
    """The preceding micro-batch does not have its partition; the sink knows what it has stored.

    If it has it, the checkpoint may be older than the destination, from a backup: rows are dropped.
    """
    options = {"kafka.bootstrap.servers": "a:1", "leases": "http://a:2",
               "checkpointLocation": str(tmp_path), "maxRowsPerRecord": "2"}  # fmt: skip
    settings = read_settings(options)
    store, source = RunStore(settings.state), TopicPartition("src", 4)
    # All numbers below 9 are stored, those of offset 4 among them.
    producer = SourceProducer(1 << 48 | 5, 2, 1, -1, {TopicPartition("a", 1): Chain(3, 9)})
    name = begun(store, replace(_STATE, sources={source: producer}))
    batch = MicroBatch(9, {source: OffsetRange(start, end)}, 8)
    run = _PreparedRun(settings, schema_of({"subscribe": "src", "path": "x"}), name)
    if is_cut:
        with pytest.raises(SinkError, match="src-4 of the source, which had been read up to 5"):
            run.prepare(batch)
    else:
        run.prepare(batch)
    assert store.read(name).prepared == (8 if is_cut else 9)


def test_the_format_of_the_file() -> None:
    """A restart may be under another version: the names in the file stay."""
    head, *rest = _STATE.to_rows()
    del head["who"]
    assert head == {
        "format": 1, "name": "spark/abc", "batch": 7, "prepared": 8, "query_id": "q",
        "query": {"topic": "{topic}", "rows": 2}, "spread": True,
    }  # fmt: skip
    lines = [json.dumps(each) for each in rest]
    assert lines == [
        '{"end": ["a", 0], "offset": 12}',
        '{"end": ["a", 1], "offset": 0}',
        (
            '{"source": ["src", 4], "pid": 281474976710661, "generation": 1099511627776,'
            ' "granted_ms": 1, "expire_ms": 2, "sent": 10, "duplicates": 2,'
            ' "spans": [[1, 5, true]], "chains": [["a", 1, 3, 9]]}'
        ),
        (
            '{"source": ["src", 5], "pid": 281474976710662, "generation": 0, "granted_ms": 1,'
            ' "expire_ms": -1, "sent": 0, "duplicates": 0, "spans": [], "chains": []}'
        ),
    ]
    read = [json.loads(each) for each in lines]
    assert RunState.from_rows([{**head, "who": "a host/1"}, *read]) == _STATE
