"""Waiting for something that is seen by looking."""

import time
from collections.abc import Callable
from typing import Final

#: Longer than this nobody takes, on however busy a machine: it hangs.
WAIT_S: Final = 300.0


def until(
    happened: Callable[[], bool], what: str, poll_s: float = 0.05, within_s: float = WAIT_S
) -> None:
    """Wait until something happened.

    Parameters:
        happened: looks.
        what: for the message where it does not.
        poll_s: between two looks.
        within_s: at most.
    """
    assert happens(happened, within_s, poll_s), f"waited {within_s} s for {what}"


def happens(happened: Callable[[], bool], within_s: float, poll_s: float = 0.05) -> bool:
    """Wait until something happened; whether it did.

    Parameters:
        happened: looks.
        within_s: at most.
        poll_s: between two looks.
    """
    deadline = time.monotonic() + within_s
    while not happened():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_s)
    return True
