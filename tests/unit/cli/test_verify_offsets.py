"""`pidlease verify` on the journal of committed offsets."""

from pathlib import Path

import pytest
from crc32c import crc32c

from pidlease.storage.offsets.offset_journal import OffsetJournal
from tests.unit.cli.datadir import DataDir, filled
from tests.unit.storage.offsets.lives import commit, wide


def journal_of(data: DataDir) -> Path:
    return data.path / "groups" / "offsets"


def with_offsets(path: Path, *, closed: bool = True) -> DataDir:
    data = filled(path)
    journal = OffsetJournal(data.files, journal_of(data), durable=True)
    assert list(journal.open()) == []
    for number in range(4):
        journal.append([commit("g", number), wide("h", number, 50)])
    if closed:
        journal.close()
    else:
        (data.path / "clean-stop").unlink()
    return data


@pytest.mark.parametrize("closed", [False, True])
def test_a_journal_that_is_intact(tmp_path: Path, *, closed: bool) -> None:
    data = with_offsets(tmp_path / "d", closed=closed)
    found = data.verify()
    assert (found.code, found.findings) == (0, [])
    assert "groups" not in found.notes


def test_a_directory_without_offsets(tmp_path: Path) -> None:
    assert filled(tmp_path / "d").verify().code == 0


@pytest.mark.parametrize("closed", [False, True])
def test_damage_in_the_middle(tmp_path: Path, *, closed: bool) -> None:
    data = with_offsets(tmp_path / "d", closed=closed)
    path = journal_of(data)
    content = bytearray(path.read_bytes())
    lines = content.split(b"\n")
    content[len(lines[0]) + 1 + 20] ^= 1
    path.write_bytes(content)
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["damaged"])
    assert [(each["file"], each["position"]) for each in found.findings] == [("groups/offsets", 2)]


def test_a_torn_last_write_is_no_damage_after_a_crash(tmp_path: Path) -> None:
    data = with_offsets(tmp_path / "d", closed=False)
    path = journal_of(data)
    content = path.read_bytes()
    path.write_bytes(content[:-700] + bytes(300))
    found = data.verify()
    assert (found.code, found.findings) == (0, [])
    assert "groups/offsets: torn last write of" in found.notes
    # A proper stop leaves nothing torn.
    (data.path / "clean-stop").touch()
    assert data.verify().kinds == ["damaged"]


def test_what_has_no_place_there_and_what_is_newer(tmp_path: Path) -> None:
    data = with_offsets(tmp_path / "d")
    (data.path / "groups" / "other").write_bytes(b"")
    assert data.verify().kinds == ["stray"]
    (data.path / "groups" / "other").unlink()
    (data.path / "groups" / ".aside-12-3").write_bytes(b"half")
    assert data.verify().code == 0
    line = b'{"kind":"something"}'
    with journal_of(data).open("ab") as journal:
        journal.write(b"%s %08x\n" % (line, crc32c(line)))
    found = data.verify()
    assert found.kinds == ["damaged"]
    assert "newer version" in found.output
