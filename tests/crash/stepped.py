"""`pidlease serve` with a clock that a test steps (STEPPED_CLOCK: a file of 8 bytes, ns to add)."""

import mmap
import os
import struct
import time
from pathlib import Path

from tests.servers.pidlease import PidleaseServer

VARIABLE = "STEPPED_CLOCK"
_OFFSET = struct.Struct("<q")


class SteppedServer(PidleaseServer):
    """A server whose clock can be put forward and back while it runs."""

    @property
    def clock(self) -> Path:
        """The file."""
        return self.directory / "clock"

    def command(self) -> list[str]:
        """See `PidleaseServer`."""
        if not self.clock.exists():
            self.step(0)
        os.environ[VARIABLE] = str(self.clock)
        return [part if part != "proxy" else __name__ for part in super().command()]

    def step(self, seconds: float) -> None:
        """Let its clock be so far ahead of the real one, or behind."""
        self.directory.mkdir(parents=True, exist_ok=True)
        content = _OFFSET.pack(int(seconds * 1e9))
        # In place, and as one write: it is mapped.
        with self.clock.open("r+b" if self.clock.exists() else "wb") as file:
            file.write(content)


def serve() -> None:
    """Serve by that clock. The one that only goes forward (monotonic) is the system's."""
    file = os.open(os.environ[VARIABLE], os.O_RDONLY)
    offset = mmap.mmap(file, _OFFSET.size, prot=mmap.PROT_READ)
    real_ns = time.time_ns
    time.time_ns = lambda: real_ns() + int(_OFFSET.unpack_from(offset)[0])
    time.time = lambda: time.time_ns() / 1e9

    from proxy.__main__ import main

    main()


if __name__ == "__main__":
    serve()
