"""Why a server is not ready."""

from types import SimpleNamespace
from typing import Any

import pytest

from proxy.ops.status_response import reason_of


def engine(*, ready: bool = False, leaving: bool = False, done: int = 0, total: int = 0) -> Any:
    replay = SimpleNamespace(done=done, total=total, offsets_left=12)
    return SimpleNamespace(welcoming=ready and not leaving, leaving=leaving, replay=replay, lost="")


@pytest.mark.parametrize(
    ("server", "waiting", "reason"),
    [
        (None, "", "starting"),
        (None, "standing by: a serves this cluster", "standing by: a serves this cluster"),
        (engine(), "", "loading the snapshot"),
        (
            engine(done=63, total=100),
            "",
            "replay at 63 %, 12 offsets left in its running partitions",
        ),
        (engine(ready=True), "", ""),
        (engine(ready=True, leaving=True), "", "stopping"),
    ],
)
def test_reasons(server: Any, waiting: str, reason: str) -> None:
    assert reason_of(server, waiting) == reason
