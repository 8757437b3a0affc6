"""A clock for what other servers may have done meanwhile."""

import time


def boot_seconds() -> float:
    """Return the time of a clock that goes on while the process, or the machine, is suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)
