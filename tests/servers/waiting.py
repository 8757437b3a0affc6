"""Waits for a condition by polling."""

import os
import time
from collections.abc import Callable
from typing import Final

#: Nothing takes longer, even on a very busy machine: after this time it is taken to hang.
WAIT_S: Final = float(os.environ.get("TESTS_WAIT_S", "300"))


def until(
    happened: Callable[[], bool], what: str, poll_s: float = 0.05, within_s: float = WAIT_S
) -> None:
    """Wait until `happened` returns True; `what` describes it in the error."""
    assert happens(happened, within_s, poll_s), f"waited {within_s} s for {what}"


def happens(happened: Callable[[], bool], within_s: float, poll_s: float = 0.05) -> bool:
    """Wait until `happened` returns True; return False if it does not in time."""
    deadline = time.monotonic() + within_s
    while not happened():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_s)
    return True
