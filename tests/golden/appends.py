"""Golden histories of appends that fail, for whatever appends: the engine alone, and the doors.

A history is a list of steps, each with one of these:

``send``       a name for what is sent, with ``first`` and ``last`` of its range; generation 0.
``wait``       what was sent so far goes into an append of its own.
``log``        what the log does with the append that waits, and those behind it: store or fail.
``told``       who has been told what since; all others wait still.
``reconnect``  the producer goes on over a fresh connection.
``holds``      the ranges that stand in the log.
"""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple


class AppendHistory(NamedTuple):
    """One history."""

    name: str
    policy: str
    steps: list[dict[str, Any]]


APPENDS: Final = [
    AppendHistory(**each)
    for each in json.loads(Path(__file__).with_name("appends.json").read_text())["histories"]
]


def append_id(history: AppendHistory) -> str:
    """The pytest id."""
    return history.name
