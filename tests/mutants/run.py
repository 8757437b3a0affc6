"""One broken copy of the tree, and the tests that are run on it."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants import guard
from tests.mutants.mutant import Mutant

_TREE = Path(__file__).resolve().parents[2]
#: The tree as it was at the beginning: it may be worked on while this runs.
_BASE = "base"
_COPIED = ("pidlease", "proxy", "tests", "deploy", "requirements", "examples")
_TIMEOUT_S = 240
#: The control runs the tests of all mutants, beside some of them.
_CONTROL_TIMEOUT_S = 1800
#: Some mutants hang: their tests must fail before they are ended.
_HANG_S = 40
_OUTPUT_LINES = 40

#: pytest's exit codes.
_GREEN, _RED = 0, 1
#: Each process that imports the copy writes down its name where this says.
_MARKS = "MUTANT_MARKS"
#: How the process is called from which servers are forked (`pidlease/testing/forked_server.py`).
_FORK_SERVER = "-c"
_MARKING = f"""
import os as _os, sys as _sys
with open(_os.environ["{_MARKS}"], "a") as _marks:
    print(_sys.argv[0], file=_marks)
"""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a mutant, or of the control.

    Attributes:
        name: whose.
        good: a mutant was noticed; the control was not complained about.
        verdict: by what it was noticed, or what is wrong.
        seconds: how long it took.
        output: the end of what pytest said.
    """

    name: str
    good: bool
    verdict: str
    seconds: float
    output: str = ""


def check(scratch: Path, mutant: Mutant) -> Result:
    """Whether the tests notice a mutant."""
    started = time.monotonic()
    copy = _copy(scratch, mutant.name)
    try:
        broken = copy / mutant.path
        broken.write_text(mutant.apply(broken.read_text()))
    except ValueError as error:
        return Result(mutant.name, good=False, verdict=str(error), seconds=0)
    code, output = _run(copy, ["-x", *mutant.tests])
    seconds = time.monotonic() - started
    problem = _not_the_copy(copy, server=mutant.server)
    if problem:
        return Result(mutant.name, False, problem, seconds, output)
    if code == _RED:
        killer = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        verdict = f"killed by {killer[1] if killer else '?'}"
        shutil.rmtree(copy)
        return Result(mutant.name, bool(killer), verdict, seconds, output if not killer else "")
    verdict = "SURVIVED" if code == _GREEN else f"pytest could not run it (exit code {code})"
    return Result(mutant.name, False, f"{verdict}: {' '.join(mutant.tests)}", seconds, output)


def control(scratch: Path, mutants: Iterable[Mutant]) -> Result:
    """Whether all those tests are green on a copy that is not broken."""
    started = time.monotonic()
    copy = _copy(scratch, "control")
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    code, output = _run(copy, tests, _CONTROL_TIMEOUT_S)
    seconds = time.monotonic() - started
    problem = _not_the_copy(copy, server=any(mutant.server for mutant in mutants))
    if problem or code != _GREEN:
        return Result("control", False, problem or "THE CONTROL FAILS", seconds, output)
    return Result("control", good=True, verdict="green", seconds=seconds)


def prepare(scratch: Path) -> None:
    """Copy the tree, and let it tell who imports it."""
    for part in _COPIED:
        if (_TREE / part).exists():
            # With the compiled code: times are kept, so what is not changed is not compiled again.
            shutil.copytree(_TREE / part, scratch / _BASE / part)
    shutil.copy2(_TREE / "pyproject.toml", scratch / _BASE)
    # The jars of Kafka and ZooKeeper: a copy must not fetch its own.
    (scratch / _BASE / "build").symlink_to(_TREE / "build")
    with (scratch / _BASE / "pidlease" / "__init__.py").open("a") as module:
        module.write(_MARKING)


def _copy(scratch: Path, name: str) -> Path:
    copy = scratch / re.sub(r"\W+", "-", name)
    shutil.copytree(scratch / _BASE, copy, symlinks=True)
    return copy


def _run(copy: Path, arguments: Sequence[str], timeout_s: int = _TIMEOUT_S) -> tuple[int, str]:
    """Run pytest in a copy; its exit code, and the end of what it said."""
    env = {
        **{name: text for name, text in os.environ.items() if not name.startswith("PIDLEASE_")},
        "PYTHONPATH": str(copy),
        guard.ROOT: str(copy),
        _MARKS: str(copy / "marks"),
        "TESTS_WAIT_S": str(_HANG_S),
    }
    # Without tracebacks, and without hypothesis's summary: after a failure in the simulation,
    # with all its garbage, either may end in CPython's "AST constructor recursion depth mismatch".
    options = ("-q", "--tb=no", "--timeout", "120", "-p", guard.__name__)
    without = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    command = [sys.executable, "-m", "pytest", *options, *without, *arguments]
    try:
        done = subprocess.run(
            command,
            check=False,
            cwd=copy,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return -1, f"pytest was not done in {timeout_s} s"
    return done.returncode, "\n".join(done.stdout.splitlines()[-_OUTPUT_LINES:])


def _not_the_copy(copy: Path, *, server: bool) -> str:
    """Why what was tested was not the copy; empty if it was."""
    marks = copy / "marks"
    who = marks.read_text().splitlines() if marks.exists() else []
    if not any("pytest" in name for name in who):
        return "the tests did not import the copy"
    if server and not any("proxy" in name or name == _FORK_SERVER for name in who):
        return "no server ran the copy"
    return ""
