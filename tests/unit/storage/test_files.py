"""The contract of the file port, on the real file system and on the simulated one."""

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pidlease.core.buffer import Buffer
from pidlease.storage import files as files_module
from pidlease.storage.files import (
    Files,
    RealFiles,
    aside_path,
    make_durable_folder,
    read_file,
    remove_tree,
    sweep_asides,
    write_aside,
)
from tests.sim.files import SimFiles


@dataclass(frozen=True, slots=True)
class Place:
    """A file system, and a folder in it to work in."""

    files: Files
    folder: Path

    def write(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        opened = self.files.open(path, create=True)
        opened.write_at([data], 0)
        opened.close()
        return path

    def read(self, name: str) -> bytes:
        return read_file(self.files, self.folder / name)


@pytest.fixture(params=["real", "sim"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "real":
        return Place(RealFiles(), tmp_path)
    files = SimFiles()
    folder = Path("/data")
    make_durable_folder(files, folder)
    return Place(files, folder)


def test_a_file_must_exist_or_be_created(place: Place) -> None:
    path = place.folder / "a"
    with pytest.raises(FileNotFoundError):
        place.files.open(path)
    with pytest.raises(FileNotFoundError):
        place.files.open_readonly(path)
    assert not place.files.exists(path)
    place.files.open(path, create=True).close()
    assert place.files.exists(path)
    assert not place.files.exists(path / "below")
    assert place.files.is_folder(place.folder)
    assert not place.files.is_folder(path)
    assert not place.files.is_folder(place.folder / "missing")
    assert place.read("a") == b""


def test_create_keeps_what_is_there(place: Place) -> None:
    path = place.write("a", b"old")
    place.files.open(path, create=True).close()
    assert place.read("a") == b"old"


def test_create_needs_the_folder(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.files.open(place.folder / "missing" / "a", create=True)
    place.write("file", b"")
    with pytest.raises(NotADirectoryError):
        place.files.open(place.folder / "file" / "a", create=True)


def test_a_folder_cannot_be_opened_for_writing(place: Place) -> None:
    with pytest.raises(IsADirectoryError):
        place.files.open(place.folder)


def test_read_and_write_at_places(place: Place) -> None:
    opened = place.files.open(place.folder / "a", create=True)
    opened.write_at([b"hello", bytearray(b" "), memoryview(b"world")], 0)
    opened.write_at([b"W"], 6)
    assert opened.size() == 11
    assert opened.read_at(5, 6) == b"World"
    assert opened.read_at(100, 6) == b"World"
    assert opened.read_at(5, 11) == b""
    assert opened.read_at(0, 0) == b""
    opened.write_at([b"!"], 13)
    assert opened.read_at(100, 10) == b"d\0\0!"


def test_what_is_in_the_page_cache_is_read_as_a_whole_or_not_at_all(place: Place) -> None:
    opened = place.files.open_readonly(place.write("a", b"hello world"))
    found = opened.read_cached(5, 6)
    if found is None:
        pytest.skip("this file system does not read from the page cache only")
    assert found == b"world"
    assert opened.read_cached(6, 6) is None, "the file ends"
    assert opened.read_at(6, 6) == b"world"


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EOPNOTSUPP, errno.EIO, 0])
def test_what_cannot_be_read_at_once_is_left_to_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (tmp_path / "a").write_bytes(b"hello")
    opened = RealFiles().open_readonly(tmp_path / "a")
    calls: list[tuple[int, int]] = []

    def preadv(_: int, buffers: list[bytearray], position: int, flags: int) -> int:
        calls.append((position, flags))
        if number:
            raise OSError(number, os.strerror(number))
        return len(buffers[0]) - 1  # some pages are in the cache

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", preadv)
        assert opened.read_cached(3, 1) is None
        assert calls == [(1, os.RWF_NOWAIT)]
        assert opened.read_cached(3, 1) is None
        tries = 1 if number == errno.EOPNOTSUPP else 2
        assert len(calls) == tries, "a file system that cannot do it is tried once"
        patch.setattr(files_module, "_NOWAIT", 0)
        without = RealFiles().open_readonly(tmp_path / "a")
        assert without.read_cached(3, 1) is None
        assert len(calls) == tries, "without the flag it would wait"
        without.close()
    assert opened.read_at(3, 1) == b"ell"
    opened.close()


def test_nothing_written_changes_nothing(place: Place) -> None:
    opened = place.files.open(place.folder / "a", create=True)
    opened.write_at([], 10)
    opened.write_at([b"", b""], 10)
    assert opened.size() == 0


@pytest.mark.parametrize("count", [1023, 1024, 1025, 5000])
def test_many_buffers_in_one_write(place: Place, count: int) -> None:
    buffers = [index.to_bytes(2, "big") * (index % 3) for index in range(count)]
    opened = place.files.open(place.folder / "a", create=True)
    opened.write_at(buffers, 7)
    assert opened.read_at(opened.size(), 0) == bytes(7) + b"".join(buffers)


def test_truncate_cuts_and_extends(place: Place) -> None:
    place.write("a", b"abcdef")
    opened = place.files.open(place.folder / "a")
    opened.truncate(3)
    assert (opened.size(), place.read("a")) == (3, b"abc")
    opened.truncate(5)
    assert (opened.size(), place.read("a")) == (5, b"abc\0\0")


def test_readonly_reads_what_others_write(place: Place) -> None:
    path = place.write("a", b"one")
    writer, reader = place.files.open(path), place.files.open_readonly(path)
    writer.write_at([b"two"], 3)
    assert reader.read_at(6, 0) == b"onetwo"
    with pytest.raises(OSError, match="Bad file descriptor"):
        reader.write_at([b"x"], 0)
    with pytest.raises(OSError, match=r"Bad file descriptor|Invalid argument"):
        reader.truncate(0)
    assert reader.size() == 6


def test_a_closed_file_is_closed(place: Place) -> None:
    opened = place.files.open(place.write("a", b"one"))
    opened.fsync()
    opened.close()
    opened.close()
    actions: list[Callable[[], object]] = [
        opened.size,
        lambda: opened.read_at(1, 0),
        lambda: opened.write_at([b"x"], 0),
    ]
    for action in actions:
        with pytest.raises(OSError, match="Bad file descriptor"):
            action()


def test_list_is_sorted_and_empty_where_nothing_is(place: Place) -> None:
    for name in ("b", "a", "C"):
        place.write(name, b"")
    place.files.make_folder(place.folder / "ab")
    assert place.files.list(place.folder) == ["C", "a", "ab", "b"]
    assert place.files.list(place.folder / "missing") == []
    with pytest.raises(NotADirectoryError):
        place.files.list(place.folder / "a")


def test_make_folder_makes_those_above(place: Place) -> None:
    deep = place.folder / "x" / "y" / "z"
    place.files.make_folder(deep)
    place.files.make_folder(deep)
    assert place.files.list(place.folder / "x") == ["y"]
    place.write("file", b"")
    with pytest.raises(FileExistsError):
        place.files.make_folder(place.folder / "file")
    with pytest.raises(NotADirectoryError):
        place.files.make_folder(place.folder / "file" / "x")


def test_rename_replaces_and_open_files_go_along(place: Place) -> None:
    source, target = place.write("new", b"new"), place.write("old", b"old")
    old, new = place.files.open_readonly(target), place.files.open(source)
    place.files.rename(source, target)
    assert place.files.list(place.folder) == ["old"]
    assert old.read_at(3, 0) == b"old"
    new.write_at([b"er"], 3)
    assert place.read("old") == b"newer"
    place.files.rename(target, target)
    assert place.read("old") == b"newer"


def test_rename_moves_folders(place: Place) -> None:
    aside, final = place.folder / "aside", place.folder / "final"
    place.files.make_folder(aside)
    place.write("aside/a", b"a")
    place.files.make_folder(final)
    place.files.rename(aside, final)
    assert place.files.list(place.folder) == ["final"]
    assert place.read("final/a") == b"a"


def test_rename_refuses_what_does_not_fit(place: Place) -> None:
    files, folder = place.files, place.folder
    file = place.write("file", b"")
    files.make_folder(folder / "full")
    files.make_folder(folder / "other")
    place.write("full/a", b"")
    with pytest.raises(FileNotFoundError):
        files.rename(folder / "missing", file)
    with pytest.raises(FileNotFoundError):
        files.rename(file, folder / "missing" / "a")
    with pytest.raises(IsADirectoryError):
        files.rename(file, folder / "other")
    with pytest.raises(NotADirectoryError):
        files.rename(folder / "other", file)
    with pytest.raises(OSError, match="not empty"):
        files.rename(folder / "other", folder / "full")
    with pytest.raises(OSError, match="Invalid argument"):
        files.rename(folder / "full", folder / "full" / "in")


def test_remove_files_and_empty_folders(place: Place) -> None:
    files, folder = place.files, place.folder / "f"
    files.make_folder(folder)
    path = place.write("f/a", b"still here")
    opened = files.open(path)
    with pytest.raises(OSError, match="not empty"):
        files.remove(folder)
    files.remove(path)
    assert opened.read_at(5, 0) == b"still"
    files.remove(folder)
    assert not files.exists(folder)
    with pytest.raises(FileNotFoundError):
        files.remove(folder)


def test_fsync_folder_needs_a_folder(place: Place) -> None:
    place.files.fsync_folder(place.folder)
    with pytest.raises(FileNotFoundError):
        place.files.fsync_folder(place.folder / "missing")
    with pytest.raises(NotADirectoryError):
        place.files.fsync_folder(place.write("a", b""))


def test_a_lock_has_one_holder_who_is_named(place: Place) -> None:
    path = place.folder / "lock"
    place.write("lock", b"a much longer word from before")
    first = place.files.lock(path, "process 7")
    with pytest.raises(BlockingIOError, match=r"lock is locked by process 7$"):
        place.files.lock(path, "process 8")
    assert place.read("lock") == b"process 7"
    first.release()
    second = place.files.lock(path, "process 8")
    assert place.read("lock") == b"process 8"
    second.release()


def test_write_aside_replaces_as_a_whole(place: Place) -> None:
    path = place.folder / "a.json"
    write_aside(place.files, path, [b"old, and longer"])
    reader = place.files.open_readonly(path)
    chunks: list[Buffer] = [b"n", bytearray(b"e"), memoryview(b"w")]
    write_aside(place.files, path, iter(chunks))
    assert place.read("a.json") == b"new"
    assert reader.read_at(100, 0) == b"old, and longer"
    write_aside(place.files, place.folder / "bare", [])
    assert place.read("bare") == b""
    assert place.files.list(place.folder) == ["a.json", "bare"]


def test_what_a_crash_left_aside_is_swept(place: Place) -> None:
    path = place.folder / "a.json"

    def interrupted() -> Iterator[bytes]:
        yield b"very long content"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_aside(place.files, path, interrupted())
    assert not place.files.exists(path)
    write_aside(place.files, path, [b"short"])
    assert place.read("a.json") == b"short"
    folder = aside_path(place.folder)
    place.files.make_folder(folder)
    place.write(f"{folder.name}/part", b"")
    assert len(place.files.list(place.folder)) == 3
    sweep_asides(place.files, place.folder)
    assert place.files.list(place.folder) == ["a.json"]


def test_make_durable_folder_and_remove_tree(place: Place) -> None:
    deep = place.folder / "x" / "y"
    make_durable_folder(place.files, deep)
    make_durable_folder(place.files, deep)
    place.write("x/y/a", b"a")
    place.write("x/y/b", b"b")
    remove_tree(place.files, deep)
    assert place.files.list(place.folder / "x") == []


@pytest.mark.parametrize("name", ["exists", "is_folder"])
def test_a_file_that_cannot_be_looked_at_is_not_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty file would take its place. From Python 3.14 on, `Path.exists` says False."""

    def fails(_: Path, **options: object) -> os.stat_result:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "stat", fails)
    with pytest.raises(OSError, match="Input/output error"):
        getattr(RealFiles(), name)(tmp_path / "a")


def test_what_is_below_a_file_is_missing(place: Place) -> None:
    path = place.write("a", b"")
    assert not place.files.exists(path / "b")
    assert not place.files.is_folder(path / "b")
    assert not place.files.is_folder(path)
    assert place.files.is_folder(place.folder)
