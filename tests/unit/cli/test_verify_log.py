"""`pidlease verify` on damaged logs: bytes, offsets, sequences, indexes."""

from pathlib import Path

import pytest

from pidlease.core.pid import Policy, make_pid
from pidlease.kafka.records.identity_header import Identity
from pidlease.kafka.records.record_batch import read_header
from pidlease.kafka.records.writer_batch import under_writer
from tests.kafka_listener.batches import identified
from tests.unit.cli.datadir import OTHER, PID, DataDir, batch, filled, flip

BATCH_BYTES = 961


def test_a_sound_directory(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    found = data.verify()
    assert (found.code, found.findings, found.notes) == (0, [], "")
    totals = found.answer["totals"]
    assert (totals["segments"], totals["batches"], totals["records"]) == (3, 38, 76)
    assert (totals["producers"], totals["snapshots"], totals["bytes"]) == (2, 2, 38 * BATCH_BYTES)
    shown = data.shown()
    assert all(each in shown for each in ("last stop", "clean", "36,518", "findings"))


def test_a_directory_that_a_crash_left_is_sound(tmp_path: Path) -> None:
    data = filled(tmp_path / "d", clean=False)
    found = data.verify()
    assert (found.code, found.answer["clean_stop"]) == (0, False)
    assert "not clean" in data.shown()


def test_a_flipped_bit_anywhere_in_a_header(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    content = data.logs[0].read_bytes()
    for at in range(61):
        data.logs[0].write_bytes(content)
        flip(data.logs[0], BATCH_BYTES * 2 + at)
        found = data.verify()
        assert found.code == 1, at
        first = found.findings[0]
        assert first["file"] == "logs/t-0/00000000000000000000.log"
        assert first["position"] == BATCH_BYTES * 2
        assert first["kind"] in ("damaged", "hole", "repeated", "malformed")


def test_a_flipped_bit_in_a_record_is_the_only_finding(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    flip(data.logs[1], 3 * BATCH_BYTES + 500)
    found = data.verify()
    assert [f["kind"] for f in found.findings] == ["damaged"]
    assert found.findings[0]["offset"] == 14 * 2 + 6
    assert "CRC is" in found.output
    assert found.answer["totals"]["batches"] == 37


def test_a_record_format_that_is_newer(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    content = bytearray(data.logs[0].read_bytes())
    content[16] = 3
    data.logs[0].write_bytes(content)
    found = data.verify()
    assert found.code == 1
    assert "record format 3; only 2 is understood" in found.output


def test_a_missing_segment(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    data.logs[1].unlink()
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["hole"])
    assert "the segment begins at offset 56 where 28 should follow" in found.output
    assert "t-0 at offset 42: not compared, the log is damaged before it" in found.notes
    assert "00000000000000000028.index" in found.notes


def test_a_missing_first_segment_that_a_snapshot_needs(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    for log in data.logs[:2]:
        log.unlink()
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["missing"])
    assert "begins at offset 56; snapshot-000000000001 needs it from 42 on" in found.output


def test_all_segments_missing(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    for log in data.logs:
        log.unlink()
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["missing", "snapshot"])
    assert "beyond the log's end at 0" in found.output


def test_a_hole_and_a_doubled_batch(tmp_path: Path) -> None:
    data = filled(tmp_path / "hole")
    content = data.logs[2].read_bytes()
    data.logs[2].write_bytes(content[:BATCH_BYTES] + content[2 * BATCH_BYTES :])
    shown = data.shown()
    assert data.verify().code == 1
    assert "hole: logs/t-0/00000000000000000056.log, byte 961, offset 58: " in shown

    data = filled(tmp_path / "doubled")
    content = data.logs[2].read_bytes()
    data.logs[2].write_bytes(content[:BATCH_BYTES] + content)
    found = data.verify()
    assert found.code == 1
    assert "a batch stands at offset 56 where 58 should follow" in found.output
    assert {"repeated", "duplicate"} <= set(found.kinds)


@pytest.mark.parametrize(
    ("wrong", "kind", "text"),
    [
        (batch(8), "duplicate", "a duplicate stands in the log; the first one is at offset 8"),
        (batch(0, records=3), "duplicate", "a duplicate stands in the log"),
        (batch(9, records=4), "overlap", "10 should follow"),
        (batch(12), "gap", "sequences 12..13: a gap; 10 should follow"),
        (batch(4, generation=1), "gap", "sequences 4..5: a gap; 0 should follow"),
        (batch(2, pid=OTHER), "gap", "begins in the middle"),
        (batch(0, pid=5), "malformed", "PID 5 belongs to no policy"),
        (batch(-2), "malformed", "are not within"),
    ],
)
def test_sequences(tmp_path: Path, wrong: bytearray, kind: str, text: str) -> None:
    data = DataDir(tmp_path / "d")
    data.fill(5)
    data.append(wrong)
    data.close()
    found = data.verify()
    assert (found.code, [f["kind"] for f in found.findings]) == (1, [kind])
    assert found.findings[0]["offset"] == 10
    assert text in found.output


def test_a_generation_that_goes_back(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "d")
    data.append(batch(0, generation=2), batch(0, generation=1), batch(2, generation=2))
    data.close()
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["fencing"])
    assert "generation 1, sequences 0..1: generation 2 stands before it" in found.output


def test_numbers_that_wrap_are_dense(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "d")
    step = 2**22
    data.append(*(batch(number * step, records=step) for number in range(511)))
    data.append(batch(511 * step, records=step - 3), batch(2**31 - 3, records=5), batch(2))
    data.close()
    assert data.verify().code == 0


def test_behind_retention_any_sequence_may_be_the_first(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "d")
    data.fill(40)
    data.snapshot()
    data.fill(3, first=80)
    data.snapshot()
    data.log._sealed[0].remove()
    data.close()
    found = data.verify()
    assert (found.code, found.findings) == (0, [])


def test_behind_retention_the_first_snapshot_is_held_against_what_is_left(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "d")
    data.fill(40)
    data.snapshot({PID: data.folded()[PID]._replace(generation=1)})
    data.log._sealed[0].remove()
    data.close()
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["snapshot"])


def test_a_torn_tail(tmp_path: Path) -> None:
    data = filled(tmp_path / "d", clean=False)
    size = data.logs[-1].stat().st_size
    torn = batch(4, generation=3)
    with data.logs[-1].open("ab") as log:
        log.write(torn[:700])
    found = data.verify()
    assert found.code == 0
    assert "torn tail of 700 bytes after offset 76" in found.notes
    assert found.answer["totals"]["torn_bytes"] == 700

    # A sector that never reached the disk, of a batch that is there in its whole length.
    lost = bytearray(torn)
    sector = 512 - size % 512
    lost[sector : sector + 512] = bytes(512)
    with data.logs[-1].open("r+b") as log:
        log.seek(size)
        log.write(lost)
    assert data.verify().code == 0

    (data.path / "clean-stop").touch()
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["damaged"])
    assert found.findings[0]["position"] == size


def test_a_tail_that_a_snapshot_knows_cannot_be_torn(tmp_path: Path) -> None:
    data = filled(tmp_path / "d", clean=False)
    with data.logs[-1].open("r+b") as log:
        log.truncate(data.logs[-1].stat().st_size - 100)
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["damaged", "missing", "snapshot"])
    assert "beyond the log's end at 74" in found.output


def test_what_does_not_belong_there(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    (data.folder / "notes.txt").touch()
    (data.path / "logs" / "no-partition").mkdir()
    found = data.verify()
    assert (found.code, [f["file"] for f in found.findings]) == (
        1,
        ["logs/no-partition", "logs/t-0/notes.txt"],
    )


def test_the_durable_mark(tmp_path: Path) -> None:
    data = filled(tmp_path / "d", clean=False)
    mark = data.folder / "durable"
    content = mark.read_bytes()
    for at in range(len(content)):
        mark.write_bytes(content)
        flip(mark, at)
        found = data.verify()
        assert (found.code, found.kinds) == (1, ["damaged"])
        assert "the mark is damaged" in found.output
    mark.write_bytes(bytes(len(content)))
    found = data.verify()
    assert found.code == 0
    assert "the mark is empty" in found.notes


def test_a_log_that_ends_before_its_durable_mark(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "d")
    data.fill(5)
    with data.logs[-1].open("r+b") as log:
        log.truncate(4 * BATCH_BYTES)
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["missing"])
    assert "the log ends at offset 8, and was durable up to 10" in found.output


def leased(identity: Identity) -> bytearray:
    data = bytearray(identified([b"x", b"y"], identity))
    under_writer(read_header(data), data)
    return data


def test_strict_numbers_go_on_across_generations(tmp_path: Path) -> None:
    pid = make_pid(Policy.STRICT, 9)
    data = DataDir(tmp_path / "d")
    data.append(leased(Identity(pid, "", 7, 0, 1)), leased(Identity(pid, "", 8, 2, 2**40)))
    data.close()
    assert data.verify().code == 0
