"""`pidlease verify` on the bindings of names."""

from pathlib import Path

import pytest
from crc32c import crc32c

from pidlease.coordination.file.file_names import FileNames
from pidlease.coordination.name_bindings import RELEASED, Binding, NamesError
from pidlease.core.pid import Policy, make_pid
from tests.unit.cli.datadir import DataDir, filled

PID = make_pid(Policy.STRICT, 3)
REST = b'"former":-1,"generation":0,"granted_ms":1'


def with_names(path: Path, *, closed: bool = True) -> DataDir:
    data = filled(path)
    names = FileNames(data.files, names_of(data))
    binding = Binding(PID, 5)
    names.change("a/b", None, binding)
    names.change("a/b", binding, Binding(PID, RELEASED, make_pid(Policy.STRICT, 1)))
    names.change("c", None, Binding(make_pid(Policy.MONOTONIC, 4), 0))
    if not closed:
        (data.path / "clean-stop").unlink()
    return data


def names_of(data: DataDir) -> Path:
    return data.path / "sequence" / "names"


@pytest.mark.parametrize("closed", [False, True])
def test_names_that_are_intact(tmp_path: Path, *, closed: bool) -> None:
    data = with_names(tmp_path / "d", closed=closed)
    found = data.verify()
    assert (found.code, found.findings, found.notes) == (0, [], "")


@pytest.mark.parametrize("closed", [False, True])
def test_a_damaged_line(tmp_path: Path, *, closed: bool) -> None:
    data = with_names(tmp_path / "d", closed=closed)
    content = bytearray(names_of(data).read_bytes())
    content[content.index(b"\n") + 5] ^= 1
    names_of(data).write_bytes(content)
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["sequence"])
    assert found.findings[0]["position"] == 2
    assert "sequence/names, line 2: is damaged" in data.shown()


def test_an_emptied_file(tmp_path: Path) -> None:
    data = with_names(tmp_path / "d")
    names_of(data).write_bytes(b"")
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["sequence"])
    assert "sequence/names, line 1: it is empty, and was not" in data.shown()


def test_a_torn_line_is_no_damage_after_a_crash(tmp_path: Path) -> None:
    data = with_names(tmp_path / "d", closed=False)
    names_of(data).write_bytes(names_of(data).read_bytes()[:-9])
    found = data.verify()
    assert (found.code, found.findings) == (0, [])
    assert "sequence/names: torn last line" in found.notes
    (data.path / "clean-stop").touch()
    assert data.verify().kinds == ["sequence"]


def test_a_damaged_last_line_is_damage_to_the_start_and_to_verify(tmp_path: Path) -> None:
    data = with_names(tmp_path / "d", closed=False)
    content = bytearray(names_of(data).read_bytes())
    content[-20] ^= 1
    names_of(data).write_bytes(content)
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["sequence"])
    assert found.findings[0]["position"] == 4
    with pytest.raises(NamesError, match="line 4 is damaged"):
        FileNames(data.files, names_of(data))


def test_a_last_line_with_zeros_was_never_answered(tmp_path: Path) -> None:
    data = with_names(tmp_path / "d", closed=False)
    content = bytearray(names_of(data).read_bytes())
    start = content.rindex(b"\n", 0, -1) + 1
    content[start : start + 30] = bytes(30)
    names_of(data).write_bytes(content)
    found = data.verify()
    assert (found.code, found.findings) == (0, [])
    assert "sequence/names: torn last line" in found.notes
    assert list(FileNames(data.files, names_of(data)).all()) == ["a/b"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{%s,"name":"k","pid":562949953421313}' % REST, "no name can have"),
        (b'{%s,"name":"","pid":281474976710657}' % REST, "1 to 256 bytes"),
        (b'{"pid":281474976710657}', "is no binding"),
        (b"[]", "is no binding"),
    ],
)
def test_lines_that_make_no_sense(tmp_path: Path, line: bytes, text: str) -> None:
    data = with_names(tmp_path / "d")
    with names_of(data).open("ab") as file:
        file.write(b"%s %08x\n" % (line, crc32c(line)))
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["sequence"])
    assert text in found.output
