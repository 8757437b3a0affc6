"""docs/reference/compatibility.md says what the tests run, at the locked versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients import facts, report
from tests.clients.client import CODECS, READER
from tests.clients.facts import Produced, recorded


def test_the_document_is_what_would_be_made_now() -> None:
    assert report.DOCUMENT.read_text() == report.render(report.expected()), (
        "make compatibility makes it anew"
    )


def test_each_client_writes_and_reads() -> None:
    assert set(READER) == set(READER.values())
    assert all(writer is not reader for writer, reader in READER.items())


def test_what_was_not_seen_is_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(facts, "FOLDER", tmp_path)
    monkeypatch.setattr(report, "DOCUMENT", tmp_path / "document.md")
    due = list(report.expected())
    for fact in due[1:]:
        facts.record(fact)
    assert report.main() == 1
    assert str(due[0]) in capsys.readouterr().err
    facts.record(due[0])
    assert set(recorded()) == set(due)
    assert report.main() == 0
    assert (tmp_path / "document.md").read_text() == report.render(due)
    facts.record(Produced("somebody", "1", CODECS))
    assert report.main() == 1
