"""`pidlease verify` on what is set for topics: all of them, and each."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pidlease.storage.topics.topic_store import TopicStore
from tests.unit.cli.datadir import DataDir, batch, filled, flip

ON = {"pidlease.deduplication": "on"}
OFF = {"pidlease.deduplication": "off"}


def store(data: DataDir) -> TopicStore:
    return TopicStore(data.files, data.path / "topics")


def test_what_is_set_for_all_topics_is_no_stray(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    for settings in (OFF, {}):
        store(data).save_defaults(settings)
        found = data.verify()
        assert (found.code, found.findings, found.notes) == (0, [], "")


def test_damage(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    store(data).save_defaults(OFF)
    path = data.path / "topics" / "defaults"
    flip(path, path.read_bytes().index(b"deduplication"))
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["damaged"])
    assert found.findings[0]["file"] == "topics/defaults"
    assert "is damaged (checksum); take it from a backup" in found.output
    assert "topics/defaults" in data.shown()


@pytest.mark.parametrize("settings", [{"pidlease.policies": "quantum"}, {"retention.ms": "5"}])
def test_what_a_server_would_not_start_with(tmp_path: Path, settings: dict[str, str]) -> None:
    data = filled(tmp_path / "d")
    store(data).save_defaults(settings)
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["damaged"])
    (name,) = settings
    assert name in found.output


def repeated(path: Path) -> DataDir:
    """A log with a repeated batch and one that leaves some out."""
    data = DataDir(path)
    data.fill(5)
    data.append(batch(2), batch(90))
    data.snapshot()
    data.close()
    return data


def test_what_was_stored_without_deduplication_is_a_note(tmp_path: Path) -> None:
    data = repeated(tmp_path / "d")
    found = data.verify()
    assert (found.code, found.kinds) == (1, ["duplicate", "gap"])
    for own, shared, code in (({}, OFF, 0), (OFF, {}, 0), (ON, OFF, 1), (OFF, ON, 0)):
        store(data).save(replace(data.topic, overrides=own))
        store(data).save_defaults(shared)
        found = data.verify()
        assert (found.code, len(found.findings)) == (code, 2 * code)
        said = "logs/t-0: 2 batches that are repeated, or out of line; deduplication is off"
        assert (said in found.notes) == (code == 0)


def test_what_no_server_stores_is_wrong_also_without_deduplication(tmp_path: Path) -> None:
    data = repeated(tmp_path / "d")
    store(data).save_defaults(OFF)
    flip(data.logs[0], 500)
    found = data.verify()
    assert found.code == 1
    assert "damaged" in found.kinds
    assert not {"duplicate", "gap"} & set(found.kinds)


def test_a_creation_that_was_interrupted_is_a_note_and_a_log_of_no_topic_a_finding(
    tmp_path: Path,
) -> None:
    data = filled(tmp_path / "d")
    (data.path / "logs" / "u-0").mkdir()
    found = data.verify()
    assert (found.code, found.findings) == (0, [])
    assert "logs/u-0: is of no topic, and has no record" in found.notes
    (data.path / "logs" / "u-0" / f"{0:020d}.log").write_bytes(b"x")
    assert data.verify().kinds == ["stray"]


def test_a_log_that_is_gone_and_one_of_another_topic(tmp_path: Path) -> None:
    data = filled(tmp_path / "d")
    store(data).save(replace(data.topic, topic_id="0" * 32))
    assert "stray" in data.verify().kinds
    store(data).save(data.topic)
    shutil.rmtree(data.folder)
    found = data.verify()
    assert "missing" in found.kinds
    assert "there is no segment" in found.output
