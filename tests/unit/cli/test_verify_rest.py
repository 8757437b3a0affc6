"""`pidlease verify` on damaged snapshots, topics, sequences, and what it refuses to look at."""

import json
from pathlib import Path

import pytest
from crc32c import crc32c

from pidlease.core.pid import Policy, make_pid
from pidlease.core.state import ProducerState
from pidlease.storage.checked_lines import header_of
from pidlease.storage.files import RealFiles
from pidlease.storage.snapshots import LeaseRow
from tests.unit.cli.datadir import OTHER, PID, TIME_MS, DataDir, batch, filled, flip, run


@pytest.mark.parametrize("name", ["manifest.json", "producers.parquet", "leases.parquet"])
def test_a_flipped_bit_in_a_snapshot(tmp_path: Path, name: str) -> None:
    data = filled(tmp_path / "d")
    path = data.path / "snapshots" / "snapshot-000000000002" / name
    flip(path, path.stat().st_size // 2)
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["snapshot"])
    assert found.findings[0]["file"] == f"snapshots/snapshot-000000000002/{name}"
    assert found.answer["totals"]["snapshots"] == 1


def test_a_snapshot_of_a_newer_format(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    path = data.path / "snapshots" / "snapshot-000000000001" / "manifest.json"
    body = json.loads(json.loads(path.read_text())["manifest"])
    text = json.dumps({**body, "format": 3})
    path.write_text(json.dumps({"crc32c": crc32c(text.encode()), "manifest": text}))
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["snapshot"])
    assert "format 3 is newer than 2" in found.output


def test_a_data_directory_inside_another_one(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    assert not data.verify().notes
    filled(data.path / "second-backup")
    found = data.verify()
    assert found.code == 0
    assert "is another data directory, and was not checked" in found.notes
    assert "note: second-backup: is another" in data.shown()


def test_a_snapshot_without_a_manifest(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    (data.path / "snapshots" / "snapshot-000000000001" / "manifest.json").unlink()
    assert data.verify().code == 1

    (data.path / "clean-stop").unlink()
    found = data.verify()
    assert found.code == 0
    assert "left by an interrupted removal" in found.notes
    assert "note: snapshots/snapshot-000000000001: left" in data.shown()


def _wrong(state: ProducerState) -> list[ProducerState]:
    first, *rest = state.batches
    return [
        state._replace(generation=1),
        state._replace(
            high=state.high + 2,
            batches=(*state.batches[:-1], state.batches[-1]._replace(last=state.high + 2)),
        ),
        state._replace(lowest=2),
        state._replace(batches=tuple(rest)),
        state._replace(batches=(first._replace(crc=1), *rest)),
        state._replace(batches=(first._replace(offset=7), *rest)),
    ]


@pytest.mark.parametrize("which", range(6))
def test_a_row_that_is_not_what_the_log_says(tmp_path: Path, which: int) -> None:
    data = DataDir(tmp_path / "d")
    data.fill(7)
    data.snapshot({PID: _wrong(data.folded()[PID])[which]})
    data.close()
    found = data.verify()
    assert (found.code, [f["kind"] for f in found.findings]) == (1, ["snapshot"])
    assert found.findings[0]["file"] == "snapshots/snapshot-000000000001/producers.parquet"
    assert found.findings[0]["offset"] == 14
    assert f"PID {PID} is at generation" in found.output


def test_the_arrival_time_is_not_compared(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "d")
    data.fill(7)
    data.snapshot({PID: data.folded()[PID]._replace(arrival_ms=5)})
    data.close()
    assert data.verify().code == 0


def test_a_row_too_many_and_a_row_too_few(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "d")
    data.fill(7)
    data.snapshot({OTHER: data.folded()[PID]})
    data.close()
    found = data.verify()
    assert (found.code, len(found.findings)) == (1, 2)
    assert f"PID {OTHER} is in the snapshot, and not in the log" in found.output
    assert f"PID {PID} is not in the snapshot" in found.output


def test_a_lease_that_ended_may_be_absent_or_begin_anew(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "d")
    data.fill(7)
    data.snapshot({}, leases=[])
    data.fill(2, first=14)
    state = data.folded()[PID]
    back = state._replace(lowest=14, batches=state.batches[-2:])
    data.snapshot({PID: back}, leases=[LeaseRow(PID, -1, TIME_MS)])
    data.close()
    assert data.verify().findings == []


def test_a_vector_beyond_the_end_or_inside_a_batch(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "d")
    data.fill(7)
    data.snapshot(next_offset=15)
    data.snapshot(next_offset=3)
    data.close()
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["snapshot"])
    assert "it lies at offset 15 of t-0, beyond the log's end at 14" in found.output
    assert "t-0 at offset 3: that is inside a batch" in found.output


@pytest.mark.parametrize("line", [0, 1, 2])
def test_a_damaged_line_of_the_sequence(tmp_path: Path, line: int) -> None:
    data = filled(tmp_path / "d")
    data.sequence.take()
    data.sequence.take()
    path = data.path / "sequence" / "blocks"
    flip(path, sum(map(len, path.read_bytes().splitlines(keepends=True)[:line])) + 12)
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["sequence"])
    assert found.findings[0]["position"] == line + 1
    assert f"sequence/blocks, line {line + 1}: " in data.shown()


def test_a_torn_line_of_the_sequence(tmp_path: Path) -> None:
    data = filled(tmp_path / "d", clean=False)
    with (data.path / "sequence" / "blocks").open("ab") as file:
        file.write(b'{"count":100,"fi')
    found = data.verify()
    assert found.code == 0
    assert "torn last line of 16 bytes; the next start leaves its numbers out" in found.notes
    (data.path / "clean-stop").touch()
    assert data.verify().code == 1


@pytest.mark.parametrize("coordinator", ["ZooKeeper", "Kafka"])
def test_a_sequence_that_is_elsewhere(tmp_path: Path, coordinator: str) -> None:
    """Whether it lies above the PIDs cannot be known here."""
    data = filled(tmp_path / "d")
    path = data.path / "sequence" / "blocks"
    path.with_name(coordinator.lower()).write_text("0123")
    for content in (None, header_of(path)):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        found = data.verify()
        assert (found.code, found.kinds) == (0, [])
        assert f"PIDs come from {coordinator} now" in found.notes


def test_a_sequence_that_is_doubled_below_the_pids_or_gone(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    path = data.path / "sequence" / "blocks"
    header, blocks = header_of(path), path.read_bytes().removeprefix(header_of(path))
    path.write_bytes(header + blocks * 2)
    assert "has numbers from 1 on, and 101 should follow" in data.verify().output

    path.write_bytes(header)
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["sequence"])
    assert "the sequence goes up to 0; a PID with number 8 was seen" in found.output

    path.unlink()
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["missing"])


def test_a_pid_of_a_lease_counts_as_seen(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "d")
    data.fill(2)
    data.snapshot(leases=[LeaseRow(make_pid(Policy.KAFKA, 101), TIME_MS, -1)])
    data.close()
    assert "a PID with number 101 was seen" in data.verify().output


def test_a_damaged_topic(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    path = data.path / "topics" / "t.json"
    content = path.read_bytes()
    flip(path, content.index(b"partitions"))
    found = data.verify()
    assert found.code == 1
    assert found.findings[0]["file"] == "topics/t.json"
    assert "is damaged (checksum); take it from a backup" in found.output
    assert "stray: logs/t-0: belongs to no topic" in data.shown()
    assert "speaks of t-0, which is not there" in found.output

    path.rename(path.with_name("u.json")).write_bytes(content)
    assert "defines another topic: t" in data.verify().output


def test_any_byte_of_the_identity(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    meta = data.path / "meta.json"
    content = meta.read_bytes()
    for at in range(len(content)):
        meta.write_bytes(content[:at] + b"!" + content[at + 1 :])
        found = data.verify()
        assert (found.code, found.kinds) == (1, ["damaged"]), at


def test_an_identity_that_is_gone(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    (data.path / "meta.json").unlink()
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["missing"])


def test_a_newer_format_is_not_looked_at(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    meta = data.path / "meta.json"
    meta.write_text(meta.read_text().replace('"format": 1', '"format": 2'))
    found = data.verify()
    assert found.code == 2
    assert "has format 2, written by a newer version" in found.output
    assert found.output.count("\n") == 1


def test_what_is_no_data_directory(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", tmp_path / "file"):
        (tmp_path / "file").touch()
        result = run("verify", "--data-dir", str(path))
        assert result.exit_code == 2
        assert str(path) in result.stderr
        assert not result.stdout
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file"]


def test_a_directory_in_use(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    lock = RealFiles().lock(data.path / "lock", "process 4711")
    found = data.verify()
    assert found.code == 2
    assert f"{data.path} is in use by process 4711; stop that one first" in found.output
    lock.release()
    assert data.verify().code == 0


def test_a_copy_without_a_lock(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    (data.path / "lock").unlink()
    found = data.verify()
    assert found.code == 0
    assert "there is no lock file" in found.notes


def test_files_that_were_being_written_aside_are_left_alone(tmp_path: Path) -> None:
    data = filled(tmp_path / "d", clean=False)
    for folder in ("topics", "snapshots", "sequence"):
        (data.path / folder / ".aside-1-1").write_bytes(b"half")
    assert data.verify().code == 0


def test_a_segment_that_cannot_be_read_does_not_hide_the_rest(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    data.logs[0].unlink()
    (data.folder / "00000000000000000000.log").mkdir()
    found = data.verify()
    assert found.code == 1
    assert found.kinds == ["unreadable"]


def test_very_many_findings_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pidlease.verify.verify_report.KEPT_MAX", 3)
    data = DataDir(tmp_path / "d")
    data.append(*(batch(0) for _ in range(9)))
    data.close()
    found = data.verify()
    assert (found.answer["totals"]["findings"], len(found.findings)) == (8, 3)
    assert "and 5 more findings" in data.shown()
