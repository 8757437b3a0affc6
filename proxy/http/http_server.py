"""uvicorn's server, with TLS handshakes that are bounded and logged as those of Kafka clients."""

import asyncio
from collections.abc import Sequence
from functools import partial
from socket import socket
from typing import Any, Final, cast

from typing_extensions import override
from uvicorn import Config, Server


class HttpServer(Server):
    """Serves an application at some addresses.

    Parameters:
        sockets: bound to these.
    """

    def __init__(self, config: Config, sockets: Sequence[socket]) -> None:
        super().__init__(config)
        self._sockets: Final = sockets

    @override
    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup([])
        for each in self._sockets:
            await self.accept_at(each)

    async def accept_at(self, listening: socket) -> None:
        """Accept connections at one more address, until this server stops.

        Raises:
            OSError: another process listens there.
        """
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
