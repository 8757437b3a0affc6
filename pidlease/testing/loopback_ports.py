"""Loopback ports that stay free while a server is down."""

import fcntl
import os
import random
import socket
import tempfile
from collections import deque
from pathlib import Path
from typing import BinaryIO, Final

LOOPBACK: Final = "127.0.0.1"
# Below the range of ephemeral ports (from 32768 on, on Linux). A client that keeps connecting to a
# port of that range while the server is dead may get the same number as its own port, and connect
# to itself: the restarted server would find its port in use.
_PORTS: Final = range(12000, 32000)
_TRIES_MAX: Final = 2000
#: The most ports that one process keeps; beyond, it releases the oldest.
_KEPT_MAX: Final = 3000


class _Claims:
    """Reserves ports between test processes, whether bound or not.

    A server may bind its port many seconds after it was chosen, or be down for a while. A claim is
    a lock on one byte of a common file, and ends with its process.
    """

    def __init__(self) -> None:
        self._kept: deque[int] = deque()
        self._file: BinaryIO | None = None
        self._process = -1

    def take(self, port: int) -> bool:
        """Claim a port; return False if it is claimed already."""
        if self._process != os.getpid():  # a fork has none of its parent's locks
            path = Path(tempfile.gettempdir()) / f"pidlease-test-ports-{os.getuid()}"
            self._file, self._process = path.open("ab"), os.getpid()
            self._kept.clear()
        if port in self._kept or self._file is None:
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            return False
        self._kept.append(port)
        if len(self._kept) > _KEPT_MAX:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._kept.popleft())
        return True


_claims: Final = _Claims()


def _is_free(port: int) -> bool:
    # Without SO_REUSEADDR: with it, a port that is bound but not listened on yet would seem free,
    # as that of a server that stands by.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def adjacent_free_ports(count: int) -> list[int]:
    """Return `count` free ports in a row, for this process alone."""
    source = random.SystemRandom()
    for _ in range(_TRIES_MAX):
        first = source.choice(_PORTS)
        found = range(first, first + count)
        if all(_claims.take(port) and _is_free(port) for port in found):
            return list(found)
    raise RuntimeError(f"found no {count} free ports in a row in {_PORTS}")


def free_ports(count: int) -> list[int]:
    """Return `count` different ports on which nothing listens now, for this process alone."""
    # Not `random` itself: a test that seeds it would get the same ports in each run.
    source = random.SystemRandom()
    found: set[int] = set()
    for _ in range(_TRIES_MAX):
        if len(found) == count:
            break
        port = source.choice(_PORTS)
        if _claims.take(port) and _is_free(port):
            found.add(port)
    if len(found) < count:
        raise RuntimeError(f"found only {len(found)} of {count} free ports in {_PORTS}")
    return sorted(found)
