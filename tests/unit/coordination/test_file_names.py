"""Bindings of names from a file: what was answered is there after any crash."""

import errno
from pathlib import Path

import pytest

from pidlease.coordination.file import file_names as module
from pidlease.coordination.file.file_names import FileNames
from pidlease.coordination.name_bindings import (
    NAMES_AT_ONCE_MAX,
    Binding,
    BindingChange,
    BindingConflictError,
    NamesError,
    StoredBinding,
    check_name,
)
from pidlease.storage.files import read_file, write_aside
from tests.sim.files import SimFiles
from tests.sim.gate import SimulatedCrash

PATH = Path("/data/sequence/names")
FIRST, SECOND = Binding(7, 0), Binding(7, 1, fenced=((5, 99),))


def names_in(files: SimFiles) -> FileNames:
    return FileNames(files, PATH)


def test_a_name_is_bound_raised_and_let_go() -> None:
    files = SimFiles()
    names = names_in(files)
    assert names.get("a") is None
    names.change("a", None, FIRST)
    names.change("b", None, Binding(8, 5))
    names.change("a", FIRST, SECOND)
    assert names.get("a") == SECOND
    again = names_in(files.power_loss(1))
    assert (again.get("a"), again.get("b"), len(again)) == (SECOND, Binding(8, 5), 2)
    again.change("a", SECOND, None)
    assert names_in(files.power_loss(1)).get("a") == SECOND, "that was another disk"
    again.change("a", None, Binding(9, 0))
    assert again.get("a") == Binding(9, 0)


def test_who_was_slower_looks_again() -> None:
    names = names_in(SimFiles())
    names.change("a", None, FIRST)
    for expected, new in ((None, SECOND), (SECOND, None), (Binding(8, 0), FIRST)):
        with pytest.raises(BindingConflictError, match="pid=7"):
            names.change("a", expected, new)
    with pytest.raises(BindingConflictError, match="None"):
        names.change("b", FIRST, None)
    assert names.get("a") == FIRST


@pytest.mark.parametrize("name", ["x", "\u20ac" * 85, " a\n\0\"b' ", "a/b", "x" * 256])
def test_any_text_is_a_name(name: str) -> None:
    check_name(name)
    files = SimFiles()
    names_in(files).change(name, None, FIRST)
    assert names_in(files.power_loss(0)).get(name) == FIRST


@pytest.mark.parametrize("name", ["", "x" * 257, "\u20ac" * 86, "\ud800"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="a producer's name"):
        check_name(name)


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_every_step(*, power: bool) -> None:
    """Also of writing the file anew: what was answered counts, what was not may."""
    step = 0
    crashed = True
    while crashed:
        step += 1
        files = SimFiles(step)
        names = names_in(files)
        names._changes = module._SPARE_CHANGES  # so that it is written anew soon
        answered = -1
        files.crash_at(step)
        try:
            for number in range(4):
                binding = Binding(7, number)
                names.change("a", names.get("a"), binding)
                answered = number
            crashed = False
        except SimulatedCrash:
            pass
        after = names_in(files.power_loss(step) if power else files.process_death()).get("a")
        found = -1 if after is None else after.generation
        assert answered <= found <= answered + 1, (step, answered, found)
    assert step > 8


def _change(name: str, expected: Binding | None, new: Binding | None) -> BindingChange:
    return BindingChange(name, StoredBinding(expected), new)


def test_changes_that_are_made_together_have_one_fsync_and_an_outcome_each() -> None:
    files = SimFiles()
    names = names_in(files)
    for name in ("a", "b"):
        names.change(name, None, FIRST)
    before = len(files.trace)
    changes = [
        _change("a", FIRST, SECOND),
        _change("b", SECOND, FIRST),
        _change("b", FIRST, None),
        _change("c", None, Binding(8, 0)),
        _change("c", Binding(8, 0), Binding(8, 1)),
    ]
    made, conflict, *rest = names.change_many(changes)
    assert made is None
    assert isinstance(conflict, BindingConflictError)
    assert rest == [None] * 3
    done = [each.operation for each in files.trace[before:]]
    assert [done.count(each) for each in ("write", "fsync")] == [1, 1]
    expected = {"a": SECOND, "c": Binding(8, 1)}
    again = names_in(files.power_loss(0))
    assert names.all() == again.all() == expected
    assert again._changes == 5


def test_a_crash_at_every_step_of_changes_that_are_made_together() -> None:
    """They count together, or not at all; a power cut may lose any of their sectors."""
    many = [f"producer {number}" for number in range(NAMES_AT_ONCE_MAX)]
    torn, steps = 0, 0
    for seed in range(6):
        crashed, step = True, 0
        while crashed:
            step += 1
            files = SimFiles(seed)
            names = names_in(files)
            answered = -1
            files.crash_at(step, torn=bool(seed % 2))
            try:
                for number in range(2):
                    before = Binding(7, number - 1) if number else None
                    changes = [_change(name, before, Binding(7, number)) for name in many]
                    assert names.change_many(changes) == [None] * len(many)
                    answered = number
                crashed = False
            except SimulatedCrash:
                pass
            files = files.process_death() if seed == 0 else files.power_loss(step)
            torn += files.torn_files
            again = names_in(files)
            found = {-1 if each is None else each.generation for each in map(again.get, many)}
            assert len(found) == 1, (seed, step, found)
            assert answered <= found.pop() <= answered + 1, (seed, step, answered)
            # What a crash has torn is no obstacle to the next change.
            again.change("z", None, FIRST)
            assert names_in(files.power_loss(step)).all() == again.all()
            steps += 1
    assert steps > 20
    assert torn > 0


@pytest.mark.parametrize("operation", ["write", "fsync"])
@pytest.mark.parametrize("also_the_cut", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_what_was_refused_does_not_count(operation: str, seed: int, *, also_the_cut: bool) -> None:
    files = SimFiles(seed)
    names = names_in(files)
    names.change("a", None, FIRST)
    faults = [files.fail_next(operation, str(PATH), errno.EIO)]
    if also_the_cut:
        faults.append(files.fail_next("truncate", str(PATH), errno.EIO))
    with pytest.raises(NamesError):
        names.change("a", FIRST, SECOND)
    assert all(fault.fired for fault in faults)
    assert names.get("a") == FIRST
    if not also_the_cut:
        files = files.process_death()
        names = names_in(files)
        assert names.get("a") == FIRST
    # The next change writes all of it anew, so that nothing hangs on what that fsync lost.
    names.change("b", None, Binding(8, 0))
    again = names_in(files.power_loss(seed))
    assert (again.get("a"), again.get("b")) == (FIRST, Binding(8, 0))


@pytest.mark.parametrize("seed", range(12))
def test_a_start_makes_durable_what_a_failed_fsync_gave_up(seed: int) -> None:
    """Once the next fsync succeeded without writing it; a power cut took an answer back."""
    files = SimFiles(seed)
    names = names_in(files)
    names.change("a", None, FIRST)
    files.fail_next("fsync", str(PATH))
    files.fail_next("truncate", str(PATH))
    with pytest.raises(NamesError):
        names.change("b" * 256, None, Binding(8, 5))
    again = names_in(files := files.process_death())
    found = again.all()
    assert len(found) == 2
    for power in range(12):
        assert names_in(files.power_loss(power)).all() == found


@pytest.mark.parametrize("line", [0, 1, 2])
def test_a_damaged_line_is_told(line: int) -> None:
    files = SimFiles()
    names = names_in(files)
    for number in range(3):
        names.change(f"name {number}", None, Binding(number, 0))
    lines = read_file(files, PATH).splitlines(keepends=True)
    files.flip(PATH, sum(map(len, lines[:line])) + 12, 1)
    with pytest.raises(NamesError, match=f"line {line + 1} is damaged"):
        names_in(files)


def test_a_file_that_was_emptied_is_refused() -> None:
    """Once a bug: names resumed at 0."""
    for changes in (0, 1):
        files = SimFiles()
        for number in range(changes):
            names_in(files).change(f"{number}", None, FIRST)
        names_in(files)
        files.cut(PATH, 0)
        with pytest.raises(NamesError, match="it is empty, and was not; take the file from a"):
            names_in(files)
        assert read_file(files, PATH) == b""


def test_a_torn_line_is_left_out() -> None:
    files = SimFiles()
    names = names_in(files)
    names.change("a", None, FIRST)
    file = files.open(PATH)
    file.write_at([b'{"name":"a","pi'], names._length)
    file.close()
    again = names_in(files)
    assert again.get("a") == FIRST
    again.change("a", FIRST, SECOND)
    assert names_in(files).get("a") == SECOND


def test_a_damaged_last_line_is_not_taken_for_a_torn_one() -> None:
    """Once a bug: the generation that was told last would be told again."""
    files = SimFiles()
    names = names_in(files)
    names.change("a", None, FIRST)
    names.change("a", FIRST, SECOND)
    content = bytearray(read_file(files, PATH))
    content[-20] ^= 1
    write_aside(files, PATH, [bytes(content)])
    with pytest.raises(NamesError, match="line 3 is damaged"):
        names_in(files)
    torn = bytes(content[:-30]) + bytes(29) + b"\n"
    write_aside(files, PATH, [torn])
    assert names_in(files).get("a") == FIRST, "a write that reached the disk in part"
