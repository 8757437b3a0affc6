"""What is missing is said; what is locked names no registry; what is there is not made again."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import install

_HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Before each test and behind it: others of the same worker would be skipped for it."""
    _forget()
    yield
    _forget()


def _forget() -> None:
    install.go_missing.cache_clear()
    install.node_missing.cache_clear()


def test_without_go_and_node_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert "need Go 1." in str(install.go_missing())
    assert "needs Node.js" in str(install.node_missing())


def test_an_old_go_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    said = subprocess.CompletedProcess[str]([], 0, "go version go1.19.8 linux/amd64\n", "")
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/go")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: said)
    assert "found: 1.19" in str(install.go_missing())


def test_lock_files_name_no_registry() -> None:
    lock = _HERE / "node" / "package-lock.json"
    packages = json.loads(lock.read_text())["packages"]
    assert not [name for name, each in packages.items() if "resolved" in each]
    assert all("integrity" in each for name, each in packages.items() if name)
    for path in (lock, _HERE / "node" / ".npmrc", _HERE / "go" / "go.mod", _HERE / "go" / "go.sum"):
        assert not re.search(r"https?://", path.read_text()), path


def test_it_is_built_once_for_each_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(install, "_BUILD", tmp_path / "build")
    source = tmp_path / "source"
    built: list[str] = []

    def build(target: Path) -> None:
        built.append(source.read_text())
        if source.read_text() == "broken":
            raise install.InstallError("broken off")
        (target / "program").write_text(source.read_text())

    def program() -> str:
        return (install.built("it", [source], build) / "program").read_text()

    source.write_text("one")
    assert [program(), program()] == ["one", "one"]
    source.write_text("broken")
    for _ in range(2):  # nothing half made is taken for whole
        with pytest.raises(install.InstallError):
            program()
    source.write_text("two")
    assert program() == "two"
    assert built == ["one", "broken", "broken", "two"]
