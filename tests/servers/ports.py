"""Loopback ports that stay free while a server is down."""

from __future__ import annotations

import random
import socket

LOOPBACK = "127.0.0.1"
# Below the range that the kernel hands out to outgoing connections (32768 and up on Linux).
# A client that keeps connecting to a port of that range while its server is dead can be given
# the very same number as its own and so connect to itself: the restarted server would then
# find its port in use.
_PORTS = range(12000, 32000)
_TRIES_MAX = 200


def _is_free(port: int) -> bool:
    # Without SO_REUSEADDR, which would share one that is taken and not listened on yet: a server
    # that stands by has such.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def free_ports(count: int) -> list[int]:
    """Return `count` different ports on which nothing listens now."""
    # A generator of its own: a test that seeds `random` must not make two runs meet.
    source = random.SystemRandom()
    found: set[int] = set()
    for _ in range(_TRIES_MAX):
        if len(found) == count:
            break
        port = source.choice(_PORTS)
        if _is_free(port):
            found.add(port)
    if len(found) < count:
        raise RuntimeError(f"found only {len(found)} of {count} free ports in {_PORTS}")
    return sorted(found)
