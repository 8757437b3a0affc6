"""The simulated file system shows programs what the real one shows, whatever they do."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from pidlease.storage.files import Files, OpenFile, RealFiles
from tests.sim.files import SimFiles

NAMES = ("a", "b", "f", "f/a", "f/g", "f/g/a")

Action = Callable[[Files, Path, dict[int, OpenFile]], object]


def draw_action(random: Random) -> tuple[str, Action]:
    """Something to do with a file system, a folder in it, and some open files."""
    one, other = random.choice(NAMES), random.choice(NAMES)
    slot, place, size = random.randrange(3), random.randrange(2000), random.randrange(1500)
    data = random.randbytes(size)

    def reopen(files: Files, root: Path, opened: dict[int, OpenFile]) -> None:
        file = files.open(root / one, create=place % 2 == 0)
        opened.pop(slot).close()
        opened[slot] = file

    actions: list[tuple[str, Action]] = [
        (f"open {one} as {slot}", reopen),
        (f"open {one} as {slot}", reopen),
        (f"write {slot} {size}@{place}", lambda _, __, o: o[slot].write_at([data], place)),
        (f"write {slot} {size}@end", lambda _, __, o: o[slot].write_at([data], o[slot].size())),
        (f"read {slot} {size}@{place}", lambda _, __, o: o[slot].read_at(size, place)),
        (f"truncate {slot} {size}", lambda _, __, o: o[slot].truncate(size)),
        (f"fsync {slot}", lambda _, __, o: o[slot].fsync()),
        (f"make_folder {one}", lambda f, r, _: f.make_folder(r / one)),
        (f"rename {one} {other}", lambda f, r, _: f.rename(r / one, r / other)),
        (f"rename {one} {other}", lambda f, r, _: f.rename(r / one, r / other)),
        (f"remove {one}", lambda f, r, _: f.remove(r / one)),
        (f"fsync_folder {one}", lambda f, r, _: f.fsync_folder(r / one)),
        (f"list {one}", lambda f, r, _: f.list(r / one)),
        (f"exists {one}", lambda f, r, _: (f.exists(r / one), f.is_folder(r / one))),
    ]
    return random.choice(actions)


def result(action: Action, files: Files, root: Path, opened: dict[int, OpenFile]) -> object:
    try:
        return action(files, root, opened)
    except OSError as error:
        return type(error), error.errno


@pytest.mark.parametrize("seed", range(15))
def test_random_operations_agree(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    random = Random(seed)
    real, sim = RealFiles(), SimFiles(seed)
    sim.make_folder(tmp_path)
    real_opened: dict[int, OpenFile] = {}
    sim_opened: dict[int, OpenFile] = {}
    for slot in range(3):
        real_opened[slot] = real.open(tmp_path / str(slot), create=True)
        sim_opened[slot] = sim.open(tmp_path / str(slot), create=True)
    for _ in range(400):
        name, action = draw_action(random)
        print(name)
        expected = result(action, real, tmp_path, real_opened)
        assert result(action, sim, tmp_path, sim_opened) == expected, f"{name}; seed {seed}"
    for file in real_opened.values():
        file.close()
