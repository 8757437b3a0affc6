"""`pidlease skip-pids` on real directories."""

import json
from pathlib import Path

import pytest

from pidlease.coordination.file.file_sequence import FileSequence, parse_line
from pidlease.log.segments.data_directory import lock_folder, sequence_file
from pidlease.storage.files import RealFiles
from tests.unit.cli.datadir import filled, run


def _taken(path: Path) -> list[tuple[int, int]]:
    """First numbers and ends of the blocks on record."""
    _, *lines = sequence_file(path).read_bytes().splitlines()  # the first is the header
    blocks = [parse_line(line) for line in lines]
    return [(block.first, block.end) for block in blocks if block is not None]


def _sequence(path: Path) -> FileSequence:
    return FileSequence(RealFiles(), sequence_file(path), "me", lambda: 1, 10**15)


@pytest.mark.parametrize("count", [1, 99, 100, 101, 1_000_000])
def test_so_many_are_never_leased(tmp_path: Path, count: int) -> None:
    folder = filled(tmp_path / "data")
    before = _sequence(folder.path).end

    result = run("skip-pids", "--data-dir", str(folder.path), "--count", str(count))

    assert result.exit_code == 0, result.output
    after = _sequence(folder.path)
    assert after.take().first >= before + count
    assert f"PIDs {before} to" in result.stdout
    assert folder.verify().code == 0


def test_a_server_has_it(tmp_path: Path) -> None:
    folder = filled(tmp_path / "data")
    before = _taken(folder.path)
    lock = lock_folder(RealFiles(), folder.path)
    try:
        result = run("skip-pids", "--data-dir", str(folder.path))
    finally:
        lock.release()
    assert result.exit_code == 2
    assert "in use" in result.stderr
    assert _taken(folder.path) == before


def test_there_is_nothing_to_skip(tmp_path: Path) -> None:
    assert run("skip-pids", "--data-dir", str(tmp_path)).exit_code == 2
    assert not list(tmp_path.iterdir())
    folder = filled(tmp_path / "data")
    before = _taken(folder.path)
    (folder.path / "sequence" / "zookeeper").write_text(json.dumps("id"))
    result = run("skip-pids", "--data-dir", str(folder.path))
    assert result.exit_code == 2
    assert "ZooKeeper" in result.stderr
    assert _taken(folder.path) == before
