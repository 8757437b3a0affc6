"""Waiting for something that is seen by looking."""

import time
from collections.abc import Callable
from typing import Final

#: So long everybody may take at most to get on; beyond that it hangs.
WAIT_S: Final = 120.0


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
    deadline = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < deadline, f"waited {within_s} s for {what}"
        time.sleep(poll_s)
