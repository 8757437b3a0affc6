"""What the simulated disk loses, and that the port's helpers lose nothing on it."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import pytest

from pidlease.core.buffer import Buffer
from pidlease.storage.files import Files, OpenFile, make_durable_folder, read_file, write_aside
from tests.sim.files import SimFiles, SimulatedCrash

FOLDER = Path("/data")
PATH = FOLDER / "a"
SEEDS = range(60)

Replace = Callable[[Files, Path, Iterable[Buffer]], None]


def make(seed: int = 0, *, ordered_names: bool = False) -> SimFiles:
    files = SimFiles(seed, ordered_names=ordered_names)
    make_durable_folder(files, FOLDER)
    return files


def make_file(files: SimFiles, data: bytes, path: Path = PATH) -> OpenFile:
    """A file that is wholly on the disk."""
    opened = files.open(path, create=True)
    opened.write_at([data], 0)
    opened.fsync()
    files.fsync_folder(path.parent)
    return opened


def content(files: SimFiles, path: Path = PATH) -> bytes | None:
    return read_file(files, path) if files.exists(path) else None


def outcomes(files: SimFiles, path: Path = PATH) -> set[bytes | None]:
    found = {content(files.power_loss(seed), path): seed for seed in SEEDS}
    print(f"content, and a seed that finds it: {found}")
    return set(found)


def test_what_was_fsynced_survives() -> None:
    files = make()
    make_file(files, b"kept")
    for seed in SEEDS:
        after = files.power_loss(seed)
        assert content(after) == b"kept"
        assert (after.lost_writes, after.lost_names, after.torn_files) == (0, 0, 0)


def test_a_missing_fsync_loses_content_and_length() -> None:
    files = make()
    opened = make_file(files, b"kept")
    opened.write_at([b"lost"], 4)
    assert outcomes(files) == {b"kept", b"keptlost", b"kept\0\0\0\0"}
    lost = [files.power_loss(seed) for seed in SEEDS]
    assert {each.lost_writes for each in lost} == {0, 1}
    assert all((each.lost_writes == 0) == (content(each) == b"keptlost") for each in lost)


def test_a_missing_fsync_of_the_folder_loses_the_name_but_never_the_content() -> None:
    files = make()
    opened = files.open(PATH, create=True)
    opened.write_at([b"content"], 0)
    opened.fsync()
    assert outcomes(files) == {None, b"content"}
    assert {files.power_loss(seed).lost_names for seed in SEEDS} == {0, 1}


def test_a_missing_fsync_of_the_file_leaves_an_empty_file_under_a_durable_name() -> None:
    files = make()
    files.open(PATH, create=True).write_at([b"content"], 0)
    files.fsync_folder(FOLDER)
    assert outcomes(files) == {b"", bytes(7), b"content"}


def test_sectors_survive_in_any_order_and_whole() -> None:
    files = make()
    opened = make_file(files, b"o" * 2048)
    opened.write_at([b"n" * 2048], 100)
    patterns = set()
    torn = 0
    for seed in range(300):
        after = files.power_loss(seed)
        found = content(after) or b""
        body = found + b"-" * (2148 - len(found))
        bounds = [0, 100, 512, 1024, 1536, 2048, 2148]
        parts = [set(body[a:b]) for a, b in pairwise(bounds)]
        assert all(len(part) == 1 for part in parts), f"a mixed sector; seed {seed}"
        patterns.add(bytes(part.pop() for part in parts).decode(errors="replace"))
        torn += after.torn_files
        assert after.lost_sectors <= 5
    assert {"ooooo-", "onnnnn", "onooo-", "ooooon"} <= patterns
    assert len(patterns) > 20
    assert torn > 50


def test_a_later_write_survives_without_an_earlier_one() -> None:
    files = make()
    opened = make_file(files, b"")
    opened.write_at([b"first"], 0)
    opened.write_at([b"second"], 512)
    assert bytes(512) + b"second" in outcomes(files)


def test_a_truncate_may_be_lost_and_fsync_keeps_it() -> None:
    files = make()
    opened = make_file(files, b"abcdef")
    opened.truncate(3)
    assert outcomes(files) == {b"abc", b"abcdef"}
    files = make()
    opened = make_file(files, b"abcdef")
    opened.truncate(3)
    opened.fsync()
    assert outcomes(files) == {b"abc"}


def test_rename_is_atomic_and_may_be_lost() -> None:
    files = make()
    make_file(files, b"old")
    make_file(files, b"new", FOLDER / "b")
    files.rename(FOLDER / "b", PATH)
    found = {(content(each), content(each, FOLDER / "b")) for each in map(files.power_loss, SEEDS)}
    assert found == {(b"old", b"new"), (b"new", None)}
    assert {each.lost_names for each in map(files.power_loss, SEEDS)} == {0, 1}


def test_remove_may_be_lost_and_a_folder_takes_its_files_along() -> None:
    files = make()
    make_file(files, b"old")
    files.remove(PATH)
    assert outcomes(files) == {None, b"old"}
    files = make()
    files.make_folder(FOLDER / "sub")
    make_file(files, b"durable, in a folder that is not", FOLDER / "sub" / "a")
    assert None in outcomes(files, FOLDER / "sub" / "a")


@pytest.mark.parametrize("ordered_names", [False, True])
def test_names_survive_in_order_or_in_any(*, ordered_names: bool) -> None:
    files = make(ordered_names=ordered_names)
    for name in "abc":
        files.open(FOLDER / name, create=True)
    found = {"".join(files.power_loss(seed).list(FOLDER)) for seed in range(200)}
    if ordered_names:
        assert found == {"", "a", "ab", "abc"}
    else:
        assert found == {"", "a", "b", "c", "ab", "ac", "bc", "abc"}


def test_a_file_that_was_renamed_twice_never_has_two_names() -> None:
    files = make()
    make_file(files, b"x")
    files.make_folder(FOLDER / "sub")
    files.fsync_folder(FOLDER)
    files.rename(PATH, FOLDER / "b")
    files.rename(FOLDER / "b", FOLDER / "sub" / "c")
    for seed in SEEDS:
        after = files.power_loss(seed)
        names = [*after.list(FOLDER), *after.list(FOLDER / "sub")]
        assert len(names) == 2, f"{names} with seed {seed}"
    files = files.process_death()
    files.fsync_folder(FOLDER / "sub")
    for seed in SEEDS:
        after = files.power_loss(seed)
        assert after.list(FOLDER) == ["sub"], f"seed {seed}"
        assert after.list(FOLDER / "sub") == ["c"], f"seed {seed}"


def crash_points(replace: Replace, *, ordered_names: bool = False) -> Iterable[str]:
    """Replace a file, and stop it before each step; what is wrong with what is found then."""
    old, new = b"old" * 500, [b"new" * 200, b"news" * 300]
    steps = len(_replace_until(replace, new, 0, old, ordered_names=ordered_names).trace)
    for step in [*range(1, steps + 1), 0]:
        files = _replace_until(replace, new, step, old, ordered_names=ordered_names)
        allowed = {b"".join(new)} | ({old} if step else set())
        if content(files.process_death()) not in allowed:
            yield f"kill at step {step}"
        for seed in SEEDS:
            if content(files.power_loss(seed)) not in allowed:
                yield f"power loss at step {step} with seed {seed}"


def _replace_until(
    replace: Replace, new: list[bytes], step: int, old: bytes, *, ordered_names: bool
) -> SimFiles:
    files = make(ordered_names=ordered_names)
    make_file(files, old)
    files.trace.clear()
    if step == 0:
        replace(files, PATH, new)
    else:
        files.crash_at(step, torn=True)
        with pytest.raises(SimulatedCrash):
            replace(files, PATH, new)
        assert files.crashed
    return files


def without_fsync(files: Files, path: Path, chunks: Iterable[Buffer]) -> None:
    """Deliberately broken."""
    opened = files.open(path.parent / "aside", create=True)
    opened.write_at(list(chunks), 0)
    opened.close()
    files.rename(path.parent / "aside", path)
    files.fsync_folder(path.parent)


def without_fsync_folder(files: Files, path: Path, chunks: Iterable[Buffer]) -> None:
    """Deliberately broken."""
    opened = files.open(path.parent / "aside", create=True)
    opened.write_at(list(chunks), 0)
    opened.fsync()
    files.rename(path.parent / "aside", path)


def in_place(files: Files, path: Path, chunks: Iterable[Buffer]) -> None:
    """Deliberately broken."""
    opened = files.open(path)
    opened.truncate(0)
    opened.write_at(list(chunks), 0)
    opened.fsync()


@pytest.mark.parametrize("ordered_names", [False, True])
def test_write_aside_is_atomic_at_every_crash_point(*, ordered_names: bool) -> None:
    assert list(crash_points(write_aside, ordered_names=ordered_names)) == []


@pytest.mark.parametrize("ordered_names", [False, True])
@pytest.mark.parametrize("broken", [without_fsync, without_fsync_folder])
def test_a_broken_write_aside_is_caught(broken: Replace, *, ordered_names: bool) -> None:
    found = list(crash_points(broken, ordered_names=ordered_names))
    assert any(each.startswith("power loss") for each in found)
    assert not any(each.startswith("kill") for each in found)  # only a power cut shows these bugs


def test_a_write_in_place_is_caught_even_by_a_kill() -> None:
    assert any(each.startswith("kill") for each in crash_points(in_place))


def test_a_durable_folder_is_durable_at_once() -> None:
    files = SimFiles()
    deep = Path("/x/y/z")
    make_durable_folder(files, deep)
    assert all(files.power_loss(seed).exists(deep) for seed in SEEDS)
    files = SimFiles()
    files.make_folder(deep)
    assert not all(files.power_loss(seed).exists(deep) for seed in SEEDS)


def test_a_durable_folder_is_durable_after_a_kill_in_the_middle() -> None:
    files = SimFiles()
    files.crash_at(2)  # between make_folder and fsync_folder
    with pytest.raises(SimulatedCrash):
        make_durable_folder(files, FOLDER)
    restarted = files.process_death()
    make_durable_folder(restarted, FOLDER)
    make_file(restarted, b"acknowledged")
    assert outcomes(restarted) == {b"acknowledged"}
