"""Topics: legal names, and definitions that are there as a whole or refused."""

from contextlib import suppress
from pathlib import Path

import pytest

from pidlease.storage.errors import DataFolderError
from pidlease.storage.files import read_file
from pidlease.storage.topics.topic_store import Topic, TopicStore, illegal_name
from tests.sim.files import SimFiles, SimulatedCrash

FOLDER = Path("/data/topics")
SEEDS = range(20)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__consumer", "0"])
def test_legal_names(name: str) -> None:
    assert illegal_name(name) == ""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        (".", "'.'"),
        ("..", "'..'"),
        ("x" * 250, "249"),
        ("a/b", "ASCII"),
        ("a b", "ASCII"),
        ("ü", "ASCII"),
        ("a\n", "ASCII"),
        ("a\0", "ASCII"),
        ("../up", "ASCII"),
        ("٣", "ASCII"),
    ],
)
def test_illegal_names(name: str, reason: str) -> None:
    assert reason in illegal_name(name)


def test_new_topics_have_ids_of_their_own() -> None:
    assert Topic.new("a", 1).topic_id != Topic.new("a", 1).topic_id


def test_what_is_saved_is_loaded_after_any_power_cut() -> None:
    files = SimFiles()
    store = TopicStore(files, FOLDER)
    topics = [Topic.new("a", 3), Topic.new("b.c", 1, {"retention.ms": "5"})]
    for topic in topics:
        store.save(topic)
    changed = Topic("a", topics[0].topic_id, 7, {})
    store.save(changed)
    for seed in SEEDS:
        assert TopicStore(files.power_loss(seed), FOLDER).load() == [changed, topics[1]]


@pytest.mark.parametrize("replaced", [True, False])
def test_a_crash_at_every_step_of_a_save(replaced: bool) -> None:
    old, new = Topic.new("a", 1), Topic.new("a", 2)
    for step in range(1, 30):
        files = SimFiles(step)
        store = TopicStore(files, FOLDER)
        if replaced:
            store.save(old)
        files.crash_at(step)
        try:
            store.save(new)
        except SimulatedCrash:
            pass
        else:
            assert step > 4
            return
        for seed in (None, *SEEDS):
            view = files.process_death() if seed is None else files.power_loss(seed)
            found = TopicStore(view, FOLDER).load()
            assert found in ([old] if replaced else [], [new])
            # What a start found is served from then on: it must be on the disk.
            assert TopicStore(view.power_loss(seed), FOLDER).load() == found, (step, seed)


def test_any_flipped_bit_of_a_definition_is_refused() -> None:
    files = SimFiles()
    topic = Topic.new("a", 3, {"segment.bytes": "5000"})
    TopicStore(files, FOLDER).save(topic)
    path = FOLDER / "a.json"
    for position in range(len(read_file(files, path))):
        for bit in range(8):
            files.flip(path, position, bit)
            # A blank of the outer JSON may be another one; the definition may not.
            with suppress(DataFolderError):
                assert TopicStore(files, FOLDER).load() == [topic]
            files.flip(path, position, bit)


def test_a_cut_definition_is_refused() -> None:
    files = SimFiles()
    TopicStore(files, FOLDER).save(Topic.new("a", 3))
    path = FOLDER / "a.json"
    content = read_file(files, path)
    for size in range(len(content)):
        files.cut(path, size)
        with pytest.raises(DataFolderError, match=r"a\.json is damaged"):
            TopicStore(files, FOLDER).load()
        files.open(path).write_at([content], 0)


@pytest.mark.parametrize("operation", ["open", "write", "fsync", "rename"])
def test_a_failed_save_leaves_the_old_definition_and_no_litter(operation: str) -> None:
    files = SimFiles()
    store = TopicStore(files, FOLDER)
    old = Topic.new("a", 1)
    store.save(old)
    failure = files.fail_next(operation)
    with pytest.raises(OSError, match="error"):
        store.save(Topic.new("a", 2))
    assert failure.fired == 1
    assert store.load() == [old]
    assert files.list(FOLDER) == ["a.json"]
