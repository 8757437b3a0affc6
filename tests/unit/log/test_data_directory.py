"""The data directory: one process, one format, one identity; and what a clean stop means."""

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from pidlease.core.log_config import FsyncPolicy, LogConfig
from pidlease.log.segments.data_directory import FORMAT_VERSION, DataDirectory
from pidlease.storage.errors import DataFolderError
from pidlease.storage.files import Files, RealFiles, make_durable_file, read_file
from pidlease.storage.io_pool import IoPool
from pidlease.storage.topics.topic_settings import check_settings, config_of
from pidlease.storage.topics.topic_store import Topic
from tests.sim.batches import simple
from tests.sim.files import SimFiles, SimulatedCrash

PATH = Path("/srv/data")
SEEDS = range(25)
TOPIC = Topic.new("t", 1)


def open_folder(files: Files, path: Path = PATH) -> DataDirectory:
    return DataDirectory(files, path, LogConfig(), cast("IoPool", None))


# ---------------------------------------------------------------------- lock


def test_one_process_at_a_time() -> None:
    files = SimFiles()
    folder = open_folder(files)
    with pytest.raises(DataFolderError, match=r"in use.*stop that one first"):
        open_folder(files)
    folder.close()
    open_folder(files).release()
    open_folder(files)


def test_one_process_at_a_time_on_the_real_file_system(tmp_path: Path) -> None:
    folder = open_folder(RealFiles(), tmp_path / "data")
    with pytest.raises(DataFolderError, match="in use"):
        open_folder(RealFiles(), tmp_path / "data")
    folder.release()
    open_folder(RealFiles(), tmp_path / "data").close()


def test_a_failed_start_lets_go_of_the_lock() -> None:
    files = SimFiles()
    open_folder(files).close()
    for operation in ("read", "fsync_folder"):
        files.fail_next(operation)
        with pytest.raises(DataFolderError):
            open_folder(files)
    files.fail_next("remove", "*clean-stop")
    with pytest.raises(DataFolderError, match="cannot be used"):
        open_folder(files)
    open_folder(files).close()


def test_after_a_kill_the_lock_is_free() -> None:
    files = SimFiles()
    open_folder(files)
    open_folder(files.process_death())


# ---------------------------------------------------------------------- format and identity


def test_the_cluster_id_stays() -> None:
    files = SimFiles()
    first = open_folder(files).cluster_id
    for seed in SEEDS:
        assert open_folder(files.power_loss(seed)).cluster_id == first


def test_the_cluster_id_stays_after_a_kill_at_any_step_of_the_first_start() -> None:
    """What the second start tells its clients is on the disk, whoever wrote it."""
    for step in range(1, 40):
        files = SimFiles(step)
        files.crash_at(step)
        try:
            open_folder(files)
        except SimulatedCrash:
            files = files.process_death()
        else:
            assert step > 5
            return
        told = open_folder(files).cluster_id
        for seed in SEEDS:
            assert open_folder(files.power_loss(seed)).cluster_id == told, (step, seed)


def test_a_newer_format_is_refused() -> None:
    files = SimFiles()
    open_folder(files).close()
    meta = {"format": FORMAT_VERSION + 1, "cluster_id": "x"}
    files.open(PATH / "meta.json").truncate(0)
    files.open(PATH / "meta.json").write_at([json.dumps(meta).encode()], 0)
    with pytest.raises(DataFolderError, match=r"newer version.*install the newer one"):
        open_folder(files)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"{}", b'{"format": 1}', b'{"cluster_id": "x"}', b"\xff\xfe",
     b'{"format": "one", "cluster_id": "x"}', b'{"format": null, "cluster_id": "x"}'],
)  # fmt: skip
def test_a_damaged_meta_file_is_a_clear_error(content: bytes) -> None:
    files = SimFiles()
    open_folder(files).close()
    files.open(PATH / "meta.json").truncate(0)
    files.open(PATH / "meta.json").write_at([content], 0)
    with pytest.raises(DataFolderError, match=r"meta\.json is damaged"):
        open_folder(files)


def test_a_read_only_directory_is_a_clear_error() -> None:
    files = SimFiles()
    files.make_folder(PATH)
    files.read_only = True
    with pytest.raises(DataFolderError, match="cannot be written"):
        open_folder(files)


@pytest.mark.parametrize("error", [errno.EACCES, errno.ENOSPC])
def test_other_errors_are_clear_ones(error: int) -> None:
    files = SimFiles()
    files.fail_next("open", "*", error)
    with pytest.raises(DataFolderError, match=str(PATH)):
        open_folder(files)


@pytest.mark.parametrize("name", ["sequence/names", "groups/offsets", "sequence/zookeeper"])
def test_a_file_that_was_there_is_missed(name: str) -> None:
    files = SimFiles()
    folder = open_folder(files)
    make_durable_file(files, PATH / name)
    folder.note_kept()
    folder.close()
    for seed in SEEDS:
        open_folder(files.power_loss(seed)).release()
    files = files.process_death()
    files.remove(PATH / name)
    for _ in range(2):
        with pytest.raises(DataFolderError, match=rf"{name} is missing, and was there.*backup"):
            open_folder(files)
    if name.endswith("zookeeper"):
        make_durable_file(files, PATH / "sequence" / "kafka")
        open_folder(files).release()  # moved to Kafka
    # What the text says to do does it.
    meta = json.loads(read_file(files, PATH / "meta.json"))
    assert meta.pop("files") == [name]
    files.open(PATH / "meta.json").truncate(0)
    files.open(PATH / "meta.json").write_at([json.dumps(meta | {"files": []}).encode()], 0)
    open_folder(files).release()


# ---------------------------------------------------------------------- clean stops


def test_a_stop_is_clean_only_if_all_was_closed_and_only_until_the_next_start() -> None:
    files = SimFiles()
    folder = open_folder(files)
    assert not folder.clean
    folder.close()
    for seed in SEEDS:
        view = files.power_loss(seed)
        folder = open_folder(view)
        assert folder.clean
        assert not open_folder(view.power_loss(seed)).clean, "the marker came back"
    folder = open_folder(files.process_death())
    assert folder.clean
    folder.release()


def test_a_killed_process_does_not_leave_a_clean_stop() -> None:
    files = SimFiles()
    open_folder(files).close()
    files = files.process_death()
    open_folder(files)
    assert not open_folder(files.process_death()).clean


def test_a_marker_whose_removal_was_killed_does_not_come_back() -> None:
    for step in range(1, 30):
        files = SimFiles(step)
        open_folder(files).close()
        files.crash_at(step)
        try:
            open_folder(files)
        except SimulatedCrash:
            files = files.process_death()
        else:
            assert step > 3
            return
        open_folder(files)
        for seed in SEEDS:
            assert not open_folder(files.power_loss(seed)).clean, (step, seed)


def test_a_stopped_partition_makes_an_unclean_stop() -> None:
    files = SimFiles()
    folder = open_folder(files)
    folder.make_topic(TOPIC)
    folder.open_partition(TOPIC, 0, 0).stop("broken")
    folder.close()
    assert not open_folder(files.process_death()).clean


def test_a_close_that_fails_makes_an_unclean_stop() -> None:
    files = SimFiles()
    folder = open_folder(files)
    folder.make_topic(TOPIC)
    log = folder.open_partition(TOPIC, 0, 0)
    log.append_blocking([simple(0)])
    files.fail_next("fsync", "*.log")
    folder.close()  # goes on with the others, and lets go of the lock
    assert log.stopped
    again = open_folder(files.process_death())
    assert not again.clean
    assert again.open_partition(TOPIC, 0, 0).end_offset == 1


def test_a_crash_at_every_step_of_a_stop() -> None:
    for step in range(1, 40):
        files = SimFiles(step)
        folder = open_folder(files)
        folder.make_topic(TOPIC)
        folder.open_partition(TOPIC, 0, 0).append_blocking([simple(0)])
        files.crash_at(step)
        try:
            folder.close()
        except SimulatedCrash:
            pass
        else:
            assert step > 4
            return
        for seed in (None, *SEEDS):
            view = files.process_death() if seed is None else files.power_loss(seed)
            again = open_folder(view)
            assert again.topics() == [TOPIC]
            log = again.open_partition(TOPIC, 0, 0)
            assert (log.end_offset, log.stopped) == (1, "")


# ---------------------------------------------------------------------- settings


def test_a_topics_own_settings_win() -> None:
    own = {"segment.bytes": "2048", "retention.ms": "-1", "retention.bytes": "9",
           "pidlease.fsync": "never"}  # fmt: skip
    config = config_of(Topic("t", "", 1, own), LogConfig())
    assert config == LogConfig(2048, -1, 9, FsyncPolicy.NEVER)
    assert config_of(TOPIC, LogConfig(77)) == LogConfig(77)


@pytest.mark.parametrize(
    "own",
    [
        {"cleanup.policy": "compact"},
        {"segment.bytes": "many"},
        {"segment.bytes": "1023"},
        {"segment.bytes": str(2**31)},
        {"retention.ms": "-2"},
        {"retention.bytes": str(2**63)},
        {"retention.ms": "1.5"},
        {"retention.ms": ""},
        {"pidlease.fsync": "sometimes"},
    ],
)
def test_settings_that_make_no_sense(own: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        check_settings(own)


@pytest.mark.parametrize("value", ["x" * 30_000, "\U000e0001" * 5000, "9" * 4000, " " * 9000])
@pytest.mark.parametrize("name", ["retention.ms", "segment.bytes", "pidlease.fsync", "no.such"])
def test_what_is_said_of_a_long_value_is_short(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name) as error:
        check_settings({name: value})
    assert len(str(error.value)) < 1000


def test_numbers_that_were_stored_in_another_form_are_read_and_told_plainly() -> None:
    """Earlier versions stored whatever Python takes for a whole number."""
    odd = {"retention.ms": " 1_000 ", "retention.bytes": "\u0661\u0662", "segment.bytes": "+02048",
           "pidlease.fsync": "never"}  # fmt: skip
    topic = Topic.new("t", 1, odd)
    check_settings(odd)
    files = SimFiles()
    folder = open_folder(files)
    folder.make_topic(topic)
    folder.open_partition(topic, 0, 0)
    folder.close()
    (found,) = open_folder(files.process_death()).topics()
    plain = {"retention.ms": "1000", "retention.bytes": "12", "segment.bytes": "2048",
             "pidlease.fsync": "never"}  # fmt: skip
    assert found == replace(topic, overrides=plain)
    assert config_of(found, LogConfig()) == LogConfig(2048, 1000, 12, FsyncPolicy.NEVER)


def test_files_are_where_the_documentation_says() -> None:
    files = SimFiles()
    folder = open_folder(files)
    folder.make_topic(TOPIC)
    folder.open_partition(TOPIC, 0, 0)
    folder.close()
    assert {"clean-stop", "lock", "logs", "meta.json", "topics"} <= set(files.list(PATH))
    assert folder.snapshots == PATH / "snapshots"
    assert json.loads(read_file(files, PATH / "meta.json"))["cluster_id"] == folder.cluster_id


# ---------------------------------------------------------------------- partitions' folders


def test_a_partition_is_there_after_a_kill_at_any_step_and_then_a_power_cut() -> None:
    """One fsync at the start makes the names of all partitions' folders durable."""
    kills = 0
    for step in range(1, 1000):
        files = SimFiles(step)
        files.crash_at(step)
        try:
            folder = open_folder(files)
            folder.make_topic(TOPIC)
            folder.open_partition(TOPIC, 0, 0)
        except SimulatedCrash:
            kills += 1
        files = files.process_death()
        folder = open_folder(files)
        if not folder.topics():
            folder.make_topic(TOPIC)
        log = folder.open_partition(TOPIC, 0, 0)
        assert log.append_blocking([simple(0)]) == [0]
        for seed in range(4):
            after = open_folder(files.power_loss(seed)).open_partition(TOPIC, 0, 0)
            assert (after.stopped, after.end_offset) == ("", 1), (step, seed)
        if not kills or kills < step:
            break
    assert kills > 20


def test_a_start_fsyncs_the_folder_of_all_partitions_once() -> None:
    files = SimFiles()
    folder, topic = open_folder(files), Topic.new("t", 5)
    folder.make_topic(topic)
    for number in range(5):
        folder.open_partition(topic, number, 0)
    files = files.process_death()
    fsynced: list[Path] = []

    def note(operation: str, path: Path) -> None:
        if operation == "fsync_folder":
            fsynced.append(path)

    files.on_operation = note
    folder = open_folder(files)
    for number in range(5):
        folder.open_partition(topic, number, 0)
    assert fsynced.count(PATH / "logs") == 1
    # Made again in the same process, a folder is not taken for the former one.
    folder.delete_topic(topic)
    fsynced.clear()
    folder.make_topic(topic)
    assert PATH / "logs" in fsynced
