"""A secured server in the test's own event loop, and a client that logs in."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from scramp import ScramClient

from pidlease.storage.files import RealFiles
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.security.acls import ACL_FILE, Acl, Operation, Pattern, Permission, ResourceKind
from proxy.security.entry_file import EntryFile
from proxy.security.scram_credentials import USER_FILE, changed, credential_for
from proxy.security.security import Security
from proxy.security.security_config import ListenerSecurity, SecurityConfig
from tests.kafka_listener.client import WireClient
from tests.kafka_listener.harness import Server, Wanted, serving

SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
PASSWORDS: Final = {"alice": "alice-secret", "bob": "bob-secret", "root": "root-secret"}
ROOT: Final = "User:root"
LOGIN: Final = ListenerSecurity(login=True)
SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def allow(
    user: str,
    operation: Operation,
    kind: ResourceKind,
    name: str,
    *,
    pattern: Pattern = Pattern.LITERAL,
    permission: Permission = Permission.ALLOW,
    host: str = "*",
) -> Acl:
    return Acl(kind, pattern, name, f"User:{user}", host, operation, permission)


def write_acls(folder: Path, *acls: Acl) -> None:
    """Replace the file of the ACLs, as an operator does."""
    EntryFile(RealFiles(), folder / "security", ACL_FILE).change(lambda _: acls)


def write_users(folder: Path, *users: str) -> None:
    made = [credential_for(user, each, PASSWORDS[user], 4096) for user in users for each in SCRAM]
    file = EntryFile(RealFiles(), folder / "security", USER_FILE)
    file.change(lambda known: changed(known, made))


@dataclass
class Secured:
    """A running server, with its security."""

    server: Server
    security: Security
    folder: Path

    async def connect(self, context: ssl.SSLContext | None = None) -> WireClient:
        reader, writer = await asyncio.open_connection(
            LOOPBACK, self.server.port, limit=64 << 20, ssl=context,
            server_hostname="localhost" if context else None,
        )  # fmt: skip
        return WireClient(reader, writer)

    async def login(
        self, user: str, mechanism: str = "SCRAM-SHA-256", context: ssl.SSLContext | None = None
    ) -> WireClient:
        client = await self.connect(context)
        assert await scram(client, user, PASSWORDS[user], mechanism) == 0
        return client

    async def set_acls(self, *acls: Acl) -> None:
        await self.security.change_acls(lambda _: acls)

    def audit(self) -> list[dict[str, Any]]:
        """The lines of the audit log, after the thread has written them."""
        self.security.audit.close()
        path = self.security.config.audit_log
        assert path is not None
        return [json.loads(line) for line in path.read_text().splitlines()]


@asynccontextmanager
async def secured(
    folder: Path, config: SecurityConfig, acls: Iterable[Acl] = (), wanted: Wanted | None = None
) -> AsyncIterator[Secured]:
    """A server with the users alice, bob and root; root may do everything."""
    data = folder / "data"
    write_users(data, *PASSWORDS)
    write_acls(data, *acls)
    config = replace(
        config, super_users=config.super_users or (ROOT,), mechanisms=config.mechanisms or SCRAM,
        audit_log=folder / "audit.log",
    )  # fmt: skip
    async with serving(data, replace(wanted or Wanted(), security=config)) as server:
        assert server.security is not None
        yield Secured(server, server.security, data)


async def handshake(client: WireClient, mechanism: str) -> Any:
    return await client.call(SASL_HANDSHAKE, 1, mechanism=mechanism)


async def authenticate(client: WireClient, message: bytes, version: int = 2) -> Any:
    return await client.call(SASL_AUTHENTICATE, version, auth_bytes=message)


async def scram(
    client: WireClient, user: str, password: str, mechanism: str = "SCRAM-SHA-256"
) -> int:
    """Log in; the error code of the last step."""
    body = await handshake(client, mechanism)
    if body.error_code != 0:
        return int(body.error_code)
    login = ScramClient([mechanism], user, password)
    body = await authenticate(client, login.get_client_first().encode())
    if body.error_code != 0:
        return int(body.error_code)
    login.set_server_first(bytes(body.auth_bytes).decode())
    body = await authenticate(client, login.get_client_final().encode())
    if body.error_code == 0:
        login.set_server_final(bytes(body.auth_bytes).decode())
    return int(body.error_code)


async def plain(client: WireClient, user: str, password: str) -> int:
    body = await handshake(client, "PLAIN")
    if body.error_code != 0:
        return int(body.error_code)
    return int((await authenticate(client, f"\0{user}\0{password}".encode())).error_code)
