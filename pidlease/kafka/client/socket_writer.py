"""Writes to the socket of a connection; of what the socket has no room for, its owner decides.

A transport sends the rest as soon as there is room. After a suspension that is before timers run.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from pidlease.core.buffer import Buffer

#: The most parts of one write: Linux's IOV_MAX.
_PARTS_MAX: Final = 1024


class SocketWriter:
    """Writes like a transport, but asks before it sends what the socket had no room for.

    Parameters:
        fd: of the socket; a transport reads it, and has nothing to write.
        protocol: gets `pause_writing` and `resume_writing`.
        outdated: returns whether nothing of before may be sent any more.
        on_failure: called when it is so, with None, or with the error of the socket; closes this.
    """

    def __init__(
        self,
        fd: int,
        protocol: asyncio.BaseProtocol,
        outdated: Callable[[], bool],
        on_failure: Callable[[OSError | None], None],
    ) -> None:
        # An event loop does not watch a descriptor that a transport has.
        self._socket: Final = socket.socket(fileno=os.dup(fd))
        self._socket.settimeout(0.0)
        self._loop: Final = asyncio.get_running_loop()
        self._protocol: Final = protocol
        self._outdated: Final = outdated
        self._on_failure: Final = on_failure
        self._unsent: Final[deque[Buffer]] = deque()

    def write(self, data: Buffer) -> None:
        """Send bytes, or keep them until the socket has room."""
        if not self._unsent:
            try:
                sent = self._socket.send(data)
            except OSError:
                sent = 0  # `writelines` tries again
            if sent == len(data):
                return
            data = memoryview(data)[sent:]
        self.writelines((data,))

    def writelines(self, parts: Sequence[Buffer]) -> None:
        """Send parts, or keep them until the socket has room."""
        unsent = self._unsent
        waits = bool(unsent)
        unsent.extend(parts)
        if waits:
            return
        self._send()
        if unsent:
            self._loop.add_writer(self._socket.fileno(), self._send_rest)
            self._protocol.pause_writing()

    def close(self) -> None:
        """Send nothing any more."""
        self._unsent.clear()
        if self._socket.fileno() >= 0:
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()

    def _send_rest(self) -> None:
        if self._outdated():
            self._on_failure(None)
            return
        self._send()
        if not self._unsent and self._socket.fileno() >= 0:
            self._loop.remove_writer(self._socket.fileno())
            self._protocol.resume_writing()

    def _send(self) -> None:
        unsent = self._unsent
        while unsent:
            try:
                sent = self._socket.sendmsg(islice(unsent, _PARTS_MAX))
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._on_failure(error)
                return
            while unsent and sent >= len(unsent[0]):
                sent -= len(unsent.popleft())
            if sent:
                unsent[0] = memoryview(unsent[0])[sent:]
