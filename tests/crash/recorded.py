"""`pidlease serve` that also writes down every file operation it passes (RECORD_STEPS: where).

So the list of points to die at is held against what the code really does.
"""

import os
from pathlib import Path
from unittest.mock import patch

from pidlease.storage.file_faults import FaultPlan, HalfWrite
from proxy.__main__ import main

#: Faults must be on for the operations to pass where they are written down; this one does nothing.
NO_FAULT = "slow=0 before fsync nothing 1"
VARIABLE = "RECORD_STEPS"


class RecordingPlan(FaultPlan):
    """Fails nothing; writes down."""

    def reach(self, when: str, operation: str, path: Path, half: HalfWrite | None = None) -> None:
        """See `FaultPlan`."""
        if when == "before":
            # One write call for each line: several threads come by here.
            os.write(_FILE, f"{operation} {path}\n".encode())


def record() -> None:
    """Serve, and record."""
    with patch("proxy.app.FaultPlan", RecordingPlan):
        main()


if __name__ == "__main__":
    _FILE = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    record()
