"""How many examples the property tests run, and that a failure says how to replay it.

`TESTS_SOAK=1` runs twenty times as many. A failing example is printed step by step, shrunk,
with the `@reproduce_failure` line that replays it; nothing is derandomized, so every run looks
elsewhere, and `--hypothesis-seed=N` (printed with a failure) replays a whole run.
"""

from typing import Final

from hypothesis import HealthCheck, settings

from tests.crash.seeds import SOAK

SCALE: Final = 20 if SOAK else 1
PROFILE: Final = "pidlease"

settings.register_profile(
    PROFILE,
    print_blob=True,
    derandomize=False,
    deadline=None,
    max_examples=100 * SCALE,
    suppress_health_check=[HealthCheck.too_slow],
)


def examples(count: int, steps: int = 50) -> settings:
    """The profile with a number of examples (before the soak's factor) and of steps in each."""
    return settings(
        settings.get_profile(PROFILE), max_examples=count * SCALE, stateful_step_count=steps
    )
