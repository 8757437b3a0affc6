"""What is set for all topics: one small file, old or new after any crash, or refused."""

import json
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
from crc32c import crc32c

from pidlease.core.log_config import LogConfig
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.storage.errors import DataFolderError
from pidlease.storage.files import read_file, write_aside
from pidlease.storage.io_pool import IoPool
from pidlease.storage.topics.topic_store import Topic, TopicStore
from tests.sim.files import SimFiles, SimulatedCrash

DATA = Path("/data")
FOLDER = DATA / "topics"
PATH = FOLDER / "defaults"
SEEDS = range(20)
OLD = {"pidlease.deduplication": "off"}
NEW = {"pidlease.policies": "none,kafka", "pidlease.initial": "zero"}


def open_folder(files: SimFiles) -> DataDirectory:
    return DataDirectory(files, DATA, LogConfig(), cast("IoPool", None))


def test_where_nothing_was_set_there_is_nothing() -> None:
    files = SimFiles()
    assert TopicStore(files, FOLDER).load_defaults() == {}
    assert not files.exists(PATH)


@pytest.mark.parametrize("saves", [[OLD], [OLD, NEW], [OLD, NEW, {}], [NEW, {}, OLD]])
def test_what_is_saved_is_loaded_after_any_power_cut(saves: list[dict[str, str]]) -> None:
    files = SimFiles()
    store = TopicStore(files, FOLDER)
    for settings in saves:
        store.save_defaults(settings)
    for seed in SEEDS:
        assert TopicStore(files.power_loss(seed), FOLDER).load_defaults() == saves[-1]


def test_no_topic_is_in_its_way() -> None:
    """Whatever a topic is called, its files have suffixes."""
    files = SimFiles()
    store = TopicStore(files, FOLDER)
    topics = [Topic.new(name, 1) for name in ("defaults", "defaults.json")]
    for topic in topics:
        store.save(topic)
    store.save_defaults(NEW)
    assert store.load() == topics
    for topic in topics:
        store.doom(topic)
        store.forget(topic)
    assert store.load_defaults() == NEW
    assert files.list(FOLDER) == ["defaults"]


@pytest.mark.parametrize("before", [{}, OLD])
def test_a_crash_at_every_step_of_a_save(before: dict[str, str]) -> None:
    found_new = 0
    for step in range(1, 30):
        files = SimFiles(step)
        store = TopicStore(files, FOLDER)
        if before:
            store.save_defaults(before)
        files.crash_at(step, torn=step % 2 == 0)
        try:
            store.save_defaults(NEW)
        except SimulatedCrash:
            pass
        else:
            assert step > 4
            assert found_new
            return
        for seed in (None, *SEEDS):
            view = files.process_death() if seed is None else files.power_loss(seed)
            found = TopicStore(view, FOLDER).load_defaults()
            assert found in (before, NEW)
            found_new += found == NEW
            # What a start found holds from then on: it must be on the disk.
            assert TopicStore(view.power_loss(seed), FOLDER).load_defaults() == found


def test_any_flipped_bit_is_refused() -> None:
    files = SimFiles()
    TopicStore(files, FOLDER).save_defaults(NEW)
    for position in range(len(read_file(files, PATH))):
        for bit in range(8):
            files.flip(PATH, position, bit)
            with suppress(DataFolderError):  # but for a blank of the outer JSON
                assert TopicStore(files, FOLDER).load_defaults() == NEW
            files.flip(PATH, position, bit)


def test_a_cut_file_is_refused() -> None:
    files = SimFiles()
    TopicStore(files, FOLDER).save_defaults(NEW)
    content = read_file(files, PATH)
    for size in range(len(content)):
        files.cut(PATH, size)
        with pytest.raises(DataFolderError, match="topics/defaults is damaged"):
            TopicStore(files, FOLDER).load_defaults()
        files.open(PATH).write_at([content], 0)


@pytest.mark.parametrize("operation", ["open", "write", "fsync", "rename"])
def test_a_failed_save_leaves_the_old_ones_and_no_litter(operation: str) -> None:
    files = SimFiles()
    store = TopicStore(files, FOLDER)
    store.save_defaults(OLD)
    failure = files.fail_next(operation)
    with pytest.raises(OSError, match="error"):
        store.save_defaults(NEW)
    assert failure.fired == 1
    assert store.load_defaults() == OLD
    assert files.list(FOLDER) == ["defaults"]


def _write(files: SimFiles, content: object) -> None:
    text = json.dumps(content)
    outer = json.dumps({"crc": crc32c(text.encode()), "defaults": text})
    write_aside(files, PATH, [outer.encode()])


@pytest.mark.parametrize("content", [{"pidlease.initial": 0}, ["pidlease.initial"], 5, [[1, 2]]])
def test_what_is_intact_and_no_table_of_settings_is_refused(content: object) -> None:
    files = SimFiles()
    TopicStore(files, FOLDER)
    _write(files, content)
    with pytest.raises(DataFolderError, match="topics/defaults is damaged"):
        TopicStore(files, FOLDER).load_defaults()


@pytest.mark.parametrize(
    "content",
    [{"pidlease.policies": "kafka,quantum"}, {"pidlease.new": "1"}, {"retention.ms": "5"}],
)
def test_settings_of_a_newer_version_are_told_at_the_start(content: dict[str, str]) -> None:
    """Not passed over: what a topic was not to take would be taken."""
    files = SimFiles()
    folder = open_folder(files)
    _write(files, content)
    (name,) = content
    with pytest.raises(DataFolderError, match=f"topics/defaults is invalid here: {name}"):
        folder.topic_defaults()


def test_a_data_folder_keeps_them() -> None:
    files = SimFiles()
    folder = open_folder(files)
    assert folder.topic_defaults() == {}
    assert folder.change_topic_defaults(lambda _: NEW) == NEW
    folder.close()
    assert open_folder(files.power_loss(1)).topic_defaults() == NEW
