"""The Kafka listener with TLS, logins and rights."""

from collections import OrderedDict
from functools import partial
from socket import socket
from typing import Final, cast

import structlog
from typing_extensions import override

from pidlease.engine.engine import Engine
from pidlease.engine.leases.lease_owners import LeaseOwners
from pidlease.kafka.api import API_SASL_AUTHENTICATE, API_SASL_HANDSHAKE
from pidlease.kafka.codec.primitives import RequestHeader
from pidlease.observability.repeated_lines import LINES
from proxy.kafka.access.secure_connection import SecureConnection
from proxy.kafka.access.secured_apis import SecuredApis
from proxy.kafka.client_connection import KafkaConnection, Slot
from proxy.kafka.embedded_apis import Apis
from proxy.kafka.kafka_listener import Acceptor, KafkaListener
from proxy.kafka.listener_config import KafkaListenerConfig
from proxy.kafka.memory_budget import MemoryBudget
from proxy.security.security import Security, user_of
from proxy.security.tls_acceptor import TlsAcceptor

#: Connections without a login. When there are more, the oldest of them is closed.
LOGINS_MAX: Final = 1000

_log = structlog.get_logger(__name__)


def secure_listener(
    config: KafkaListenerConfig, budget: MemoryBudget, apis: Apis, engine: Engine,
    security: Security,
) -> "SecureListener":  # fmt: skip
    """Make a listener in front of request handlers, and bound the leases of users from now on."""
    engine.leases.owners = LeaseOwners(security.quotas.leases_max)
    return SecureListener(
        config, budget, SecuredApis(apis, engine, config.cluster, security), security
    )


class SecureListener(KafkaListener):
    """Listens for Kafka clients, which log in.

    Parameters:
        security: what the listeners share.
    """

    def __init__(
        self,
        config: KafkaListenerConfig,
        budget: MemoryBudget,
        apis: SecuredApis,
        security: Security,
    ) -> None:
        super().__init__(config, budget, apis)
        self._security: Final = security
        self._unknown: OrderedDict[SecureConnection, None] = OrderedDict()
        security.on_users_removed.append(self._close_users)
        security.quotas.on_change.append(self._quotas_changed)
        if security.authorizer is not None:
            security.authorizer.on_change.append(self._rights_changed)

    @override
    def new_connection(self, listener: str = "") -> KafkaConnection:
        return SecureConnection(self, self._security, listener)

    @override
    async def accept_at(self, listening: socket, listener: str = "") -> Acceptor:
        if not self._security.config.of_kafka(listener).tls:
            return await super().accept_at(listening, listener)
        certificates = self._security.certificates
        if certificates is None:
            raise AssertionError("a listener with TLS has certificates")
        accepted = partial(self.new_connection, listener)
        return TlsAcceptor(listening, accepted, certificates.context)

    @override
    def opened(self, connection: KafkaConnection) -> bool:
        if not super().opened(connection):
            return False
        self._unknown[cast(SecureConnection, connection)] = None
        if len(self._unknown) > LOGINS_MAX:
            oldest, _ = self._unknown.popitem(last=False)
            LINES.write(_log, "warning", "connection closed: too many clients log in at once",
                        oldest.host, peer=oldest.peer)  # fmt: skip
            oldest.abort()
        return True

    def known(self, connection: SecureConnection) -> None:
        """Note that a connection's client is known now."""
        self._unknown.pop(connection, None)

    @override
    def closed(self, connection: KafkaConnection) -> None:
        super().closed(connection)
        self._unknown.pop(cast(SecureConnection, connection), None)

    @override
    def close_overdue(self, connection: KafkaConnection, now: float) -> None:
        secured = cast(SecureConnection, connection)
        late = secured in self._unknown and (
            now - secured.began > self._security.config.login_seconds
        )
        if late or secured.is_expired(now):
            reason = "no login in time" if late else "the login has expired"
            LINES.write(_log, "warning", f"connection closed: {reason}", connection.host,
                        peer=connection.peer)  # fmt: skip
            connection.abort()
        else:
            super().close_overdue(connection, now)

    @override
    def handle(self, slot: Slot, header: RequestHeader, frame: bytearray) -> None:
        if header.api_key == API_SASL_HANDSHAKE:
            self._check_version(header)
            slot.measure(self.counts, header.api_key)
            login = cast(SecureConnection, slot.connection).login
            self._fill(slot, header, login.handshake(header, frame))
        elif header.api_key == API_SASL_AUTHENTICATE:
            self._check_version(header)
            slot.measure(self.counts, header.api_key)
            login = cast(SecureConnection, slot.connection).login
            self._fill(slot, header, login.authenticate(header, frame))
        else:
            super().handle(slot, header, frame)

    def _close_users(self, users: frozenset[str]) -> None:
        """Close the connections of removed users that logged in with a password."""
        for connection in list(self.connections):
            secured = cast(SecureConnection, connection)
            if secured.has_password and secured.caller is not None:
                user = user_of(secured.caller.principal)
                if user in users:
                    LINES.write(_log, "info", "connection closed: its user was removed", user,
                                peer=secured.peer, user=user)  # fmt: skip
                    secured.abort()

    def _rights_changed(self) -> None:
        for connection in self.connections:
            cast(SecureConnection, connection).end_poll()

    def _quotas_changed(self) -> None:
        for connection in list(self.connections):
            cast(SecureConnection, connection).quotas_changed()
