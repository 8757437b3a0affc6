"""What `make test` does with tests that fail beside the others."""

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_ONCE = """
from pathlib import Path

def test_once():
    place = Path(__file__).with_name("failed")
    fails = not place.exists()
    place.touch()
    print("{printed}")
    assert not fails
"""


def _run(folder: Path, *, at_once: int = 2) -> tuple[int, str]:
    """Run the tests of a folder; return the exit code and what was printed."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable, "-m", "pytest", "-p", "tests.second_look", f"-n{at_once}", str(folder),
        "-p", "no:schemathesis", "-p", "no:cacheprovider",
    ]  # fmt: skip
    environ = {"PYTHONPATH": str(_ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=folder, env=environ
    )
    return done.returncode, done.stdout


def test_what_passes_alone_is_unstable(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(_ONCE.format(printed="no number"))
    code, text = _run(tmp_path)
    assert code == 0, text
    assert "\nUNSTABLE test_it.py::test_once\n" in text
    assert "1 failed" in text
    assert text.count("1 passed") == 3


@pytest.mark.parametrize("printed", ["A_SEED=7", "Falsifying example: f(x=1)"])
def test_what_is_random_is_not_run_again(tmp_path: Path, printed: str) -> None:
    (tmp_path / "test_it.py").write_text(_ONCE.format(printed=printed))
    code, text = _run(tmp_path)
    assert code == 1
    assert "UNSTABLE" not in text


def test_what_fails_again_fails(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        _ONCE.format(printed="") + "\ndef test_always():\n    assert 0\n"
    )
    code, text = _run(tmp_path)
    assert code == 1
    assert "UNSTABLE" not in text


def test_many_failures_are_not_run_again(tmp_path: Path) -> None:
    for number in range(3):
        path = tmp_path / f"{number}" / f"test_{number}.py"
        path.parent.mkdir()
        path.write_text(_ONCE.format(printed=""))
    code, text = _run(tmp_path)
    assert code == 1
    assert "UNSTABLE" not in text


def test_a_run_that_cannot_begin_is_not_saved(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import nothing_of_this_name\n")
    code, text = _run(tmp_path, at_once=0)
    assert code == 2
    assert "UNSTABLE" not in text
