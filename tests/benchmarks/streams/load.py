"""HTTP requests as fast as a server answers them: some connections, some requests in flight."""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Final

from pidlease.testing.loopback_ports import LOOPBACK

_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_CHUNKED: Final = re.compile(rb"(?i)\r\ntransfer-encoding: *chunked")
_READ_BYTES: Final = 1 << 20
_WAIT_S: Final = 60.0


class LoadError(RuntimeError):
    """A server refused a request of the load, or did not answer."""


class Connection:
    """One connection, and the requests that it sends."""

    def __init__(self, port: int, requests: Iterator[bytes], wanted: int, depth: int) -> None:
        """Connect.

        Parameters:
            port: of the server.
            requests: one after the other.
            wanted: the status of each response.
            depth: how many may be in flight.
        """
        self.socket = socket.create_connection((LOOPBACK, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._requests = requests
        self._wanted = f"HTTP/1.1 {wanted} ".encode()
        self._depth = depth
        self._received = bytearray()
        self.in_flight = 0

    def send(self) -> None:
        """Send as many requests as may be in flight."""
        count = self._depth - self.in_flight
        self.socket.sendall(b"".join(next(self._requests) for _ in range(count)))
        self.in_flight = self._depth

    def receive(self) -> int:
        """Read what is there; return how many responses were complete."""
        data = self.socket.recv(_READ_BYTES)
        if not data:
            raise LoadError(f"the server closed a connection after {bytes(self._received)!r}")
        self._received += data
        done = at = 0
        while (end := self._end_of_response(at)) is not None:
            at = end
            done += 1
        del self._received[:at]
        self.in_flight -= done
        return done

    def _end_of_response(self, at: int) -> int | None:
        received = self._received
        end = received.find(_HEAD_END, at)
        if end < 0:
            return None
        if not received.startswith(self._wanted, at):
            raise LoadError(f"wanted {self._wanted!r}, got {bytes(received[at:])!r}")
        end += len(_HEAD_END)
        length = _LENGTH.search(received, at, end)
        if length is not None:
            end += int(length[1])
        elif _CHUNKED.search(received, at, end) is not None:
            last = received.find(b"0\r\n\r\n", end)
            return None if last < 0 else last + 5
        return end if end <= len(received) else None


def burst(connections: Sequence[Connection], seconds: float) -> tuple[int, float]:
    """Send for some seconds, and wait for all responses.

    Returns:
        how many there were, and how long it took, in seconds.
    """
    began = time.monotonic()
    end = began + seconds
    done = 0
    by_file = {each.socket.fileno(): each for each in connections}
    with select.epoll() as poll:
        for file, each in by_file.items():
            poll.register(file, select.EPOLLIN)
            each.send()
        open_ = len(connections)
        while open_:
            events = poll.poll(_WAIT_S)
            if not events:
                raise LoadError(f"no response within {_WAIT_S} s")
            sends = time.monotonic() < end
            for file, _ in events:
                each = by_file[file]
                done += each.receive()
                if sends:
                    each.send()
                elif not each.in_flight:
                    poll.unregister(file)
                    open_ -= 1
    return done, time.monotonic() - began


def get(port: int, path: str) -> tuple[bytes, bytes]:
    """The head and the body of a response to a GET, on a connection of its own."""
    with socket.create_connection((LOOPBACK, port), timeout=_WAIT_S) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        received = bytearray()
        while data := connection.recv(_READ_BYTES):
            received += data
    head, _, body = bytes(received).partition(_HEAD_END)
    if not head.startswith(b"HTTP/1.1 200 "):
        raise LoadError(repr(head))
    return head, _dechunked(body) if _CHUNKED.search(head) else body


def _dechunked(body: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while True:
        line = body.index(b"\r\n", at)
        size = int(body[at:line], 16)
        if not size:
            return b"".join(parts)
        parts.append(body[line + 2 : line + 2 + size])
        at = line + 2 + size + 2
