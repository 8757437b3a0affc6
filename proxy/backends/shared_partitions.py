"""Builds what a server needs to share a Kafka cluster with other active servers (--shared)."""

import asyncio
import ssl
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from pidlease.coordination.members import Member, Members, MembersError
from pidlease.engine.shared_cluster import SharedCluster
from pidlease.kafka.api import API_DESCRIBE_TRANSACTIONS
from pidlease.kafka.client.cluster import Cluster
from pidlease.kafka.errors import UpstreamError
from pidlease.storage.errors import DataFolderError
from pidlease.storage.files import Files, read_file, write_aside
from pidlease.storage.io_pool import IoPool
from proxy.configuration.component_configs import advertised_listeners
from proxy.configuration.settings import Settings
from proxy.http.ping_connection import HttpPings

#: The file with this server's id as a broker. Clients know it by this id, so it stays.
_NODE_ID: Final = "node-id"
#: Silence that ends a session with the coordinator in Kafka. Kafka itself needs some ten seconds to
#: go on without a broker that was killed.
SESSION_SECONDS: Final = 30.0
#: Brokers that are asked at once for the APIs that they serve.
_ASKED_AT_ONCE: Final = 16

_log = structlog.get_logger(__name__)


def shared_cluster(
    settings: Settings,
    files: Files,
    members: Members,
    server: str,
    pool: IoPool,
    tls: ssl.SSLContext | None,
) -> SharedCluster:
    """Prepare this server's membership, without joining yet. Blocks.

    Parameters:
        server: this server's name, for the operator.
        tls: of connections to other active servers; None: they have no TLS.

    Raises:
        DataFolderError: the server has no node id, and can get none now.
    """
    listeners = advertised_listeners(settings)
    default = listeners[0]
    try:
        node_id = _node_id(files, Path(settings.data_dir), members)
    except MembersError as error:
        raise DataFolderError(f"--shared: {error}") from error
    named = tuple((name, host, port) for name, host, port in listeners if name)
    own = Member(
        node_id, server, default.host, default.port, member_url(settings, tls), listeners=named
    )
    in_kafka = settings.coordinated_by_kafka
    session = SESSION_SECONDS if in_kafka else settings.zookeeper_session_seconds
    return SharedCluster(members, own, pool, session, connect=partial(HttpPings, tls=tls))


def member_url(settings: Settings, tls: ssl.SSLContext | None) -> str:
    """Return where other active servers reach this one's HTTP port."""
    scheme = "http" if tls is None else "https"
    return f"{scheme}://{settings.http_advertise or settings.http_listen}"


async def check_brokers(cluster: Cluster) -> None:
    """Check that each broker reports the writer of a partition, as from Kafka 3.0 on (KIP-664).

    Any of them may be a writer's coordinator. With one that does not report it, a server that was
    replaced could not learn that before it says where a producer continues. A cluster has no
    version: each broker names the APIs that it serves. A broker that does not answer now is left
    out, with a warning: a start must not wait for all brokers.

    Raises:
        DataFolderError: a broker does not.
    """
    slots = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def reports(broker: int) -> bool | None:
        async with slots:
            try:
                connection = await cluster.connection_to(broker)
            except UpstreamError:
                return None
            return API_DESCRIBE_TRANSACTIONS in connection.versions

    brokers = dict(sorted(cluster.view.brokers.items()))
    found = dict(zip(brokers, await asyncio.gather(*map(reports, brokers)), strict=True))
    for broker, (host, port) in brokers.items():
        if found[broker] is False:
            raise DataFolderError(
                f"--shared needs Kafka 3.0 or newer, and broker {broker} ({host}:{port}) does not"
                " report the writer of a partition (DescribeTransactions); upgrade Kafka, or start"
                " one server without --shared and others to stand by"
            )
    if unknown := [broker for broker in brokers if found[broker] is None]:
        _log.warning("brokers cannot be asked now; --shared needs Kafka 3.0 or newer on each",
                     brokers=unknown)  # fmt: skip


def _node_id(files: Files, folder: Path, members: Members) -> int:
    """Return the id of this data directory; the first start gets one.

    Raises:
        DataFolderError: the file holds something else.
        MembersError: no id can be assigned now.
    """
    path = folder / _NODE_ID
    if files.exists(path):
        text = read_file(files, path).decode(errors="replace").strip()
        if not text.isdecimal() or int(text) < 1:
            raise DataFolderError(f"{path} holds no node id, but {text[:50]!r}; remove it")
        return int(text)
    number = members.node_id()
    write_aside(files, path, [str(number).encode()])
    return number
