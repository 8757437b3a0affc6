"""The sink's own file: whole or not at all, and of one run."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pidlease.spark.errors import SinkError
from pidlease.spark.sink.checkpoint import read_micro_batch
from pidlease.spark.sink.run_state import Chain, Place, RunState, RunStore, Source

_STATE = RunState(
    number=3, name="spark/abc", batch=7, query={"topic": "{topic}", "rows": 2}, spread=True,
    places=(Place("a", 0), Place("a", 1)), ends={Place("a", 0): 12, Place("a", 1): 0},
    sources={
        Place("src", 4): Source(1 << 48 | 5, 2**40, 1, 2, {Place("a", 1): Chain(3, 9)}, 10, 2),
        Place("src", 5): Source(1 << 48 | 6, 0, 1, -1),
    },
)  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """All of it."""
    store = RunStore(tmp_path)
    assert store.newest() is None
    name = store.begin(_STATE)
    assert store.newest() == (name, _STATE)
    later = replace(_STATE, batch=8)
    store.write(name, later)
    assert store.newest() == (name, later)


def test_the_newest_run_counts(tmp_path: Path) -> None:
    """Also when one before it writes again; and old ones go."""
    store = RunStore(tmp_path)
    names = [store.begin(replace(_STATE, number=number)) for number in range(1, 9)]
    store.write(names[-3], replace(_STATE, number=6, batch=100))
    newest = store.newest()
    assert newest is not None
    assert newest == (names[-1], replace(_STATE, number=8))
    assert len(list(tmp_path.iterdir())) == 5


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format":9,"x":1} 00000000\n'])
def test_damage_is_told(tmp_path: Path, content: bytes) -> None:
    """Nothing is guessed."""
    store = RunStore(tmp_path)
    name = store.begin(_STATE)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SinkError, match=r"prepare the query again|take it from a backup"):
        store.newest()


def test_each_bit_is_checked(tmp_path: Path) -> None:
    """A line that is not intact is damage."""
    store = RunStore(tmp_path)
    name = store.begin(_STATE)
    whole = (tmp_path / name).read_bytes()
    for place in range(0, len(whole), 7):
        if whole[place : place + 1] == b"\n":
            continue
        changed = bytearray(whole)
        changed[place] ^= 0x10
        (tmp_path / name).write_bytes(changed)
        with pytest.raises(SinkError):
            store.newest()


def test_sparks_checkpoint(tmp_path: Path) -> None:
    """As Spark 4.2 writes it; and what it may not be."""
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
    assert found.starts == {Place("t", 0): 5}
    assert found.ends == {Place("t", 0): 7, Place("t", 1): 3}
    for content, text in (
        ('v1\n{"conf":{}}\n{"offset":100}', "no Kafka's"),
        ('v1\n{"conf":{}}\n{"t":{"0":5}}\n{"u":{"0":5}}', "reads 2 sources"),
        ('v3\n{"conf":{}}\n{"t":{"0":5}}', "has version v3"),
    ):
        (offsets / "9").write_text(content)
        with pytest.raises(SinkError, match=text):
            read_micro_batch(str(tmp_path))
