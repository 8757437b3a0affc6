"""uvicorn's server, with connections that end where uvicorn's do not.

- TLS handshakes are bounded and logged as those of Kafka clients.
- A connection is cut if its client does not read what was sent. Its close would wait until it does.
"""

import asyncio
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, cast

from typing_extensions import override
from uvicorn import Config, Server

#: How long a client may read nothing of what has been sent. On Linux; elsewhere there is no bound.
_UNREAD_MS: Final = 30_000


class HttpServer(Server):
    """Serves an application at some addresses.

    Parameters:
        sockets: bound to these.
    """

    def __init__(self, config: Config, sockets: Sequence[socket.socket]) -> None:
        super().__init__(config)
        self._sockets: Final = sockets

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        for each in self._sockets:
            await self.accept_at(each)

    async def accept_at(self, listening: socket.socket) -> None:
        """Accept connections at one more address, until this server stops.

        Raises:
            OSError: another process listens there.
        """
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # the sockets of its connections inherit it
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
        config = self.config
        protocol: Any = config.http_protocol_class
        new_connection = partial(
            protocol,
            config=config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        if config.ssl is None:
            loop = asyncio.get_running_loop()
            acceptor: Any = await loop.create_server(
                new_connection, sock=listening, backlog=config.backlog
            )
        else:
            # Here, because a server without TLS needs none of it.
            from proxy.security.tls_acceptor import TlsAcceptor  # noqa: PLC0415

            acceptor = TlsAcceptor(listening, new_connection, config.ssl)
        self.servers.append(cast("asyncio.Server", acceptor))  # which it closes when it stops
