"""The seed of a run: printed, and given again by TESTS_CRASH_SEED.

It decides what is decided here: moments, partitions, sizes, which answers get lost. Threads and
the kernel have their own mind, so a seed makes a failure likely to come again, not certain.
"""

import os
from random import Random, SystemRandom

SOAK = os.environ.get("TESTS_SOAK", "") not in ("", "0")
_GIVEN = os.environ.get("TESTS_CRASH_SEED", "")


def new_random(what: str) -> Random:
    """A generator of its own for each run of a test; its seed is in the test's output."""
    seed = int(_GIVEN) if _GIVEN else SystemRandom().randrange(1 << 32)
    print(f"{what}: TESTS_CRASH_SEED={seed}")
    return Random(f"{seed}/{what}")
