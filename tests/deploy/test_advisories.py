"""What is made of pip-audit's answers, of a program that answers as it does."""

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.package.advisories import AdvisoryError, Audited, audit

_ROOT: Final = Path(__file__).resolve().parents[2]
_LOCKED: Final = "a==1 \\\n    --hash=sha256:0\n    # via b\nb==2 \\\n    --hash=sha256:1\n"


def _program(folder: Path, answer: object, code: int = 0) -> Path:
    path = folder / "pip-audit"
    text = answer if isinstance(answer, str) else json.dumps(answer)
    path.write_text(f"#!{sys.executable}\nimport sys\nprint({text!r})\nsys.exit({code})\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def _found(*packages: dict[str, Any]) -> dict[str, Any]:
    return {"dependencies": list(packages), "fixes": []}


@pytest.mark.parametrize(("answer", "code", "expected"), [
    (_found({"name": "a", "version": "1", "vulns": []}, {"name": "b", "version": "2", "vulns": []}),
     0, Audited(2, 0)),
    (_found({"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not found"}),
     0, Audited(1, 1)),
    (_found({"name": "a", "skip_reason": "?"}, {"name": "b", "skip_reason": "?"}),
     0, Audited(0, 2)),
    ("Traceback (most recent call last): ConnectionError", 1, Audited(0, 2)),
    ("", 1, Audited(0, 2)),
])  # fmt: skip
def test_what_is_known(tmp_path: Path, answer: object, code: int, expected: Audited) -> None:
    locked = tmp_path / "dev.txt"
    locked.write_text(_LOCKED)
    assert audit(_program(tmp_path, answer, code), locked) == expected


def test_a_vulnerability_fails_the_check(tmp_path: Path) -> None:
    vulnerable = {"name": "a", "version": "1", "vulns": [{"id": "GHSA-1"}, {"id": "CVE-2"}]}
    program = _program(tmp_path, _found(vulnerable), 1)
    locked = tmp_path / "dev.txt"
    locked.write_text(_LOCKED)
    with pytest.raises(AdvisoryError, match="a 1: GHSA-1, CVE-2"):
        audit(program, locked)
    for answer, code, text in (
        (_found(vulnerable), 1, "a 1: GHSA-1, CVE-2"),
        ("", 0, "the advisory service does not answer"),
    ):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "deploy.package", "advisories", "--program",
             str(_program(tmp_path, answer, code))],
            cwd=_ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, text in done.stdout + done.stderr) == (code, True)


def test_a_program_that_was_called_wrongly_is_an_error(tmp_path: Path) -> None:
    """Else a newer version with other options would find nothing for ever."""
    program = tmp_path / "pip-audit"
    program.write_text(
        "#!/bin/sh\necho usage >&2\necho 'error: unrecognized arguments' >&2\nexit 2\n"
    )
    program.chmod(0o700)
    locked = tmp_path / "dev.txt"
    locked.write_text(_LOCKED)
    with pytest.raises(AdvisoryError, match="unrecognized arguments"):
        audit(program, locked)
