"""Accepts connections with TLS: each handshake in a task that knows the client's address."""

import asyncio
import ssl
from collections.abc import Callable
from socket import socket
from typing import Final

import structlog

from pidlease.observability.repeated_lines import LINES, kind_of
from proxy.security.alerted_handshake import PEER, note_failure

#: How long a TLS handshake may take.
_HANDSHAKE_SECONDS: Final = 10.0
#: How long a client may take to answer the end of TLS; then the connection is just closed.
_SHUTDOWN_SECONDS: Final = 5.0
#: The pause after an accept that failed: there are too many open files, for example.
_PAUSE_SECONDS: Final = 0.5
_BACKLOG: Final = 1024

_log = structlog.get_logger(__name__)


class TlsAcceptor:
    """Accepts connections at one address, until it is closed.

    asyncio's own servers do not report which client has failed in its handshake.

    Parameters:
        listening: bound to the address.
        new_connection: makes the protocol of a connection.
    """

    def __init__(
        self,
        listening: socket,
        new_connection: Callable[[], asyncio.BaseProtocol],
        context: ssl.SSLContext,
    ) -> None:
        self._listening: Final = listening
        self._new_connection: Final = new_connection
        self._context: Final = context
        self._handshakes: Final[set[asyncio.Task[None]]] = set()
        listening.settimeout(0)
        listening.listen(_BACKLOG)
        self._accepting: Final = asyncio.create_task(self._accept())
        self._accepting.add_done_callback(self._ended)

    def close(self) -> None:
        """Accept no more connections, and end those that are in their handshake."""
        for task in (self._accepting, *self._handshakes):
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait for the end of what `close` has ended."""
        await asyncio.wait((self._accepting, *self._handshakes))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._listening.close()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("no more connections are accepted", exc_info=error)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(self._listening)
            except OSError as error:
                LINES.write(_log, "error", "a connection could not be accepted", kind_of(error),
                            error=str(error))  # fmt: skip
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            task = loop.create_task(self._begin(accepted, str(address[:2])))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)
            await asyncio.sleep(0)  # connections may come faster than they are handled

    async def _begin(self, accepted: socket, peer: str) -> None:
        PEER.set(peer)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._new_connection, accepted, ssl=self._context,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS, ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
            )  # fmt: skip
        except ConnectionAbortedError:
            note_failure(f"it was not done in {_HANDSHAKE_SECONDS} s")
        except OSError:
            pass  # `AlertedHandshake` has noted it, or the client has left
