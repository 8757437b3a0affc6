"""Recorded traces: one text file each, so that a longer path shows as a diff."""

import os
from collections.abc import Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Final

import pytest

from tests.traces.tracer import Calls, modules_of

#: Traces of each kind. Background work only adds calls, so the shortest trace has none.
RUNS: Final = 8
_RECORD: Final = Path(__file__).with_name("record")
_WRITE: Final = "TESTS_WRITE_TRACES"


def check(name: str, traces: Sequence[Calls], *, side_by_side: bool = False) -> None:
    """Compare the shortest of several traces of one kind with the one on record.

    Parameters:
        name: of the file.
        traces: `RUNS` of them.
        side_by_side: whether threads work at the same time, so that modules are sorted by name.
    """
    assert len(traces) == RUNS
    calls = min(traces, key=len)
    assert calls, "nothing was traced"
    found, path = _text(calls, side_by_side=side_by_side), _RECORD / f"{name}.txt"
    print(f"{name}: {found.splitlines()[0]}")
    if os.environ.get(_WRITE) == "1":
        path.write_text(found)
        return
    known = path.read_text() if path.exists() else ""
    if found == known:
        return
    known_lines, found_lines = known.splitlines(), found.splitlines()
    changed = {line.split()[-1] for line in set(found_lines[1:]) - set(known_lines)}
    pytest.fail("\n".join([
        f"the trace {name} has changed; if that is intended, write the record anew with:",
        f"  {_WRITE}=1 python -m pytest tests/traces",
        *unified_diff(known_lines, found_lines, "on record", "traced now", n=2, lineterm=""),
        "calls of the modules whose lines changed, as traced now:",
        *(f"  {each}" for each in calls if each.partition(":")[0] in changed),
    ]), pytrace=False)  # fmt: skip


def _text(calls: Calls, *, side_by_side: bool) -> str:
    modules = modules_of(calls)
    rows = sorted(modules.items()) if side_by_side else modules.items()
    first = f"{len(modules)} modules, {len(calls)} calls"
    return "\n".join([first, *(f"{count:4} {module}" for module, count in rows), ""])
