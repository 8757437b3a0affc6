"""The audit log: repeats are counted, nothing blocks, and a file that is away loses only lines."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from proxy.security import audit_log
from proxy.security.audit_log import AuditLog

_LINE = ("refused", "User:a", "10.0.0.1", "WRITE", "TOPIC:t", "denied")


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in path.read_text().splitlines()]


def test_repeats_are_counted(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit")
    log.start()
    for _ in range(1000):
        log.write(*_LINE)
    log.write("change", *_LINE[1:])
    log.write("change", *_LINE[1:])
    log.close()
    found = _lines(tmp_path / "audit")
    assert [each["event"] for each in found] == ["refused", "change", "change", "refused"]
    assert found[-1]["repeats_before"] == 999
    assert (tmp_path / "audit").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", [None, "audit"])
def test_logins_and_refusals_are_counted(tmp_path: Path, name: str | None) -> None:
    """Each of them, with and without a file."""
    log = AuditLog(None if name is None else tmp_path / name)
    log.start()
    for outcome in ("success", "wrong user or password", "success", "no rule"):
        log.write("login", "User:a", "10.0.0.1", "PLAIN", "kafka", outcome)
    for _ in range(3):
        log.write(*_LINE)
    log.write("change", *_LINE[1:])
    log.close()
    assert log.logins == {
        ("kafka", "PLAIN", "success"): 2, ("kafka", "PLAIN", "refused"): 2,
    }  # fmt: skip
    assert log.denied == {("WRITE",): 3}


def test_a_name_of_a_client_is_one_line(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit")
    log.start()
    log.write("login", 'User:"\n{}\u2028' + "x" * 10_000, "h", "op", "r", "o")
    log.close()
    (found,) = _lines(tmp_path / "audit")
    assert len(found["principal"]) == 256


def test_a_renamed_file_is_made_anew(tmp_path: Path) -> None:
    """Rotation: also when the new file cannot be made for a while."""
    path = tmp_path / "folder" / "audit"
    path.parent.mkdir()
    log = AuditLog(path)
    log.start()
    log.write("change", *_LINE[1:])
    while not path.read_text():
        time.sleep(0.01)
    path.parent.rename(tmp_path / "old")
    log.write("change", *_LINE[1:])
    while not log.lost:
        time.sleep(0.01)
    path.parent.mkdir()
    log.write("change", *_LINE[1:])
    log.close()
    assert len(_lines(tmp_path / "old" / "audit")) == 1
    assert len(_lines(path)) == 1
    assert log.lost == 1


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "_KINDS_MAX", 50)
    log = AuditLog(tmp_path / "audit")
    log.start()
    for number in range(500):
        log.write("refused", f"User:{number}", *_LINE[2:])
        log.write("refused", f"User:{number}", *_LINE[2:])
    assert len(log._repeats) <= 50
    log.close()
    found = _lines(tmp_path / "audit")
    assert len([each for each in found if not each.get("repeats_before")]) == 500
    assert sum(each.get("repeats_before", 0) for each in found) == 500


def test_a_file_that_cannot_be_made_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="absent"):
        AuditLog(tmp_path / "absent" / "audit").start()


def test_without_a_file_nothing_is_kept() -> None:
    log = AuditLog(None)
    log.start()
    log.write(*_LINE)
    assert not log._repeats
    log.close()
