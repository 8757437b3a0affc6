"""A log and its topic: lost definitions come back, and no log is taken for another topic's."""

import errno
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from pidlease.core.log_config import LogConfig
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.log.segments.log_topics import COPY_NAME, LogExistsError, partition_of, read_copy
from pidlease.storage.errors import LogStoppedError
from pidlease.storage.files import remove_tree
from pidlease.storage.io_pool import IoPool
from pidlease.storage.topics.topic_store import Topic
from tests.sim.batches import simple
from tests.sim.files import SimFiles, SimulatedCrash

PATH = Path("/srv/data")
LOGS = PATH / "logs"
TOPIC = Topic.new("t", 2, {"retention.ms": "5"})
DEFINITION = PATH / "topics" / "t.json"


def open_folder(files: SimFiles) -> DataDirectory:
    return DataDirectory(files, PATH, LogConfig(), cast("IoPool", None))


def served(topic: Topic = TOPIC, *, records: bool = True) -> SimFiles:
    """A directory after a clean stop, with a record in each partition of a topic."""
    files = SimFiles()
    folder = open_folder(files)
    folder.make_topic(topic)
    for number in range(topic.partitions):
        log = folder.open_partition(topic, number, 0)
        if records:
            log.append_blocking([simple(0)])
    folder.close()
    return files.process_death()


def started(files: SimFiles) -> tuple[list[Topic], list[str]]:
    """What a start finds, and the levels of what it says."""
    with capture_logs() as lines:
        folder = open_folder(files)
        topics = folder.topics()
        folder.release()
    return topics, [line["log_level"] for line in lines]


# ---------------------------------------------------------------------- lost definitions


def test_a_lost_definition_is_restored_as_it_was_and_said() -> None:
    files = served()
    files.remove(DEFINITION)
    assert started(files) == ([TOPIC], ["error"])
    assert started(files.power_loss(1)) == ([TOPIC], [])


def test_it_has_the_settings_and_the_partitions_of_the_last_change() -> None:
    files = served()
    folder = open_folder(files)
    grown = replace(TOPIC, partitions=4, overrides={"segment.bytes": "2048"})
    folder.make_topic(replace(TOPIC, partitions=4), 2)
    folder.save_topic(grown)
    folder.release()
    files.remove(DEFINITION)
    assert started(files)[0] == [grown]


def test_every_kill_while_a_topic_is_made_leaves_all_of_it_or_nothing_in_the_way() -> None:
    kills = 0
    for step in range(1, 1000):
        files = SimFiles(step)
        folder = open_folder(files)
        files.crash_at(step)
        try:
            folder.make_topic(TOPIC)
        except SimulatedCrash:
            kills += 1
        else:
            break
        for seed in (None, *range(3)):
            view = files.process_death() if seed is None else files.power_loss(seed)
            again = open_folder(view)
            topics = again.topics()
            assert topics in ([], [TOPIC]), (step, seed)
            if not topics:
                again.make_topic(TOPIC)
            for number in range(TOPIC.partitions):
                log = again.open_partition(TOPIC, number, 0)
                assert (log.stopped, log.append_blocking([simple(0)])) == ("", [0]), (step, seed)
    assert kills > 20


def test_every_kill_while_partitions_are_added_leaves_whole_partitions() -> None:
    kills, grown = 0, replace(TOPIC, partitions=4)
    for step in range(1, 1000, 2):
        files = served()
        folder = open_folder(files)
        files.crash_at(step)
        try:
            folder.make_topic(grown, TOPIC.partitions)
        except SimulatedCrash:
            kills += 1
        else:
            break
        for seed in (None, 1, 2):
            view = files.process_death() if seed is None else files.power_loss(seed)
            again = open_folder(view)
            (found,) = again.topics()
            assert found in (TOPIC, grown), (step, seed)
            for number in range(found.partitions):
                log = again.open_partition(found, number, 0)
                assert (log.stopped, log.end_offset) == ("", number < 2), (step, seed)
            if found == TOPIC:
                again.make_topic(grown, TOPIC.partitions)
    assert kills > 10


def test_a_definition_with_fewer_partitions_than_logs_gets_them_back() -> None:
    files = served()
    folder = open_folder(files)
    folder.save_topic(replace(TOPIC, partitions=1))  # as one of an older backup
    folder.release()
    assert started(files) == ([TOPIC], ["error"])


def test_a_log_without_a_copy_cannot_be_restored_and_its_name_is_not_used() -> None:
    files = served()
    files.remove(DEFINITION)
    for number in range(2):
        files.remove(LOGS / f"t-{number}" / COPY_NAME)
    assert started(files) == ([], ["error"])
    folder = open_folder(files)
    assert folder.topics() == []
    with pytest.raises(LogExistsError, match=r"t-0 has the log of a topic that is not defined"):
        folder.make_topic(Topic.new("t", 2))
    with pytest.raises(LogExistsError, match="t-1"):
        folder.make_topic(Topic.new("t", 2), 1)
    assert files.exists(LOGS / "t-0" / f"{0:020d}.log")
    folder.make_topic(Topic.new("t-0", 2))  # its folders are others


def test_a_topic_that_meets_the_log_of_another_one_makes_nothing() -> None:
    files = served()
    folder = open_folder(files)
    files.remove(DEFINITION)
    remove_tree(files, LOGS / "t-0")
    with pytest.raises(LogExistsError, match="t-1"):
        folder.make_topic(Topic.new("t", 2))
    assert not files.exists(LOGS / "t-0")
    assert not files.exists(DEFINITION)


@pytest.mark.parametrize("operation", ["open", "make_folder", "rename", "fsync_folder"])
def test_a_topic_that_cannot_be_made_leaves_nothing(operation: str) -> None:
    files = SimFiles()
    folder = open_folder(files)
    failure = files.fail_next(operation, "*t-1*" if operation != "rename" else "*t.json")
    with pytest.raises(OSError, match="error"):
        folder.make_topic(TOPIC)
    assert failure.fired == 1
    assert files.list(LOGS) == files.list(PATH / "topics") == []
    folder.make_topic(Topic.new("t", 2))


# ---------------------------------------------------------------------- lost logs


@pytest.mark.parametrize("all_of_it", [True, False])
def test_a_defined_partition_without_its_log_is_stopped(*, all_of_it: bool) -> None:
    files = served(records=False)
    if all_of_it:
        remove_tree(files, LOGS / "t-1")
    else:
        for name in files.list(LOGS / "t-1"):
            if name != COPY_NAME:
                files.remove(LOGS / "t-1" / name)
    for _ in range(2):  # a start makes no empty log in its place
        folder = open_folder(files)
        assert folder.topics() == [TOPIC]
        assert folder.open_partition(TOPIC, 0, 0).stopped == ""
        log = folder.open_partition(TOPIC, 1, 0)
        assert "gone" in log.stopped
        assert (log.end_offset, log.promised_end) == (0, 1)
        with pytest.raises(LogStoppedError):
            log.append_blocking([simple(0)])
        folder.close()
        files = files.process_death()


def test_a_log_of_another_topic_id_is_stopped_and_left_alone() -> None:
    files = served()
    other = Topic.new("t", 2)
    folder = open_folder(files)
    files.remove(DEFINITION)
    folder._topics.save(other)
    folder.release()
    folder = open_folder(files)
    assert folder.topics() == [other]
    log = folder.open_partition(other, 0, 0)
    assert TOPIC.topic_id in log.stopped
    assert other.topic_id in log.stopped
    folder.close()
    # What the text says to do does it.
    files = files.process_death()
    files.remove(DEFINITION)
    assert started(files) == ([TOPIC], ["error"])
    assert open_folder(files).open_partition(TOPIC, 0, 0).end_offset == 1


@pytest.mark.parametrize("damaged", [True, False])
def test_a_lost_copy_is_said_and_written_again(*, damaged: bool) -> None:
    files = served()
    path = LOGS / "t-1" / COPY_NAME
    if damaged:
        files.cut(path, 10)
    else:
        files.remove(path)
    with capture_logs() as lines:
        log = open_folder(files).open_partition(TOPIC, 1, 0)
    assert (log.stopped, log.end_offset) == ("", 1)
    assert {line["log_level"] for line in lines} == {"error"}
    assert read_copy(files, LOGS / "t-1") == TOPIC


def test_an_outdated_copy_is_replaced_by_a_start() -> None:
    files = served()
    folder = open_folder(files)
    changed = replace(TOPIC, overrides={})
    files.fail_next("open", "*t-0/.aside*", errno.ENOSPC)
    with capture_logs() as lines:
        folder.save_topic(changed)
    assert [line["log_level"] for line in lines] == ["error"]
    assert read_copy(files, LOGS / "t-0") == TOPIC
    folder.release()
    open_folder(files).open_partition(changed, 0, 0)
    assert read_copy(files, LOGS / "t-0") == changed


@pytest.mark.parametrize(
    ("name", "found"),
    [("a-1", ("a", 1)), ("a-1-0", ("a-1", 0)), ("a-01", None), ("-1", None), ("a", None),
     ("a-", None), ("a-\u0661", None), ("lost+found", None)],
)  # fmt: skip
def test_names_of_folders(name: str, found: tuple[str, int] | None) -> None:
    assert partition_of(name) == found
