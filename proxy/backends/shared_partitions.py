"""Builds what a server needs to share a Kafka cluster with other active servers (--shared)."""

from pathlib import Path
from typing import Final

from pidlease.coordination.members import Member, Members, MembersError
from pidlease.engine.shared_cluster import SharedCluster
from pidlease.storage.errors import DataFolderError
from pidlease.storage.files import Files, read_file, write_aside
from pidlease.storage.io_pool import IoPool
from proxy.configuration.settings import Settings, split_address

#: The file with this server's id as a broker. Clients know it by this id, so it stays.
_NODE_ID: Final = "node-id"


def shared_cluster(
    settings: Settings, files: Files, members: Members, server: str, pool: IoPool
) -> SharedCluster:
    """Prepare this server's membership, without joining yet. Blocks.

    Parameters:
        server: this server's name, for the operator.

    Raises:
        DataFolderError: the server has no node id, and can get none now.
    """
    host, port = split_address(settings.kafka_advertise or settings.kafka_listen)
    address = settings.http_advertise or settings.http_listen
    try:
        node_id = _node_id(files, Path(settings.data_dir), members)
    except MembersError as error:
        raise DataFolderError(f"--shared: {error}") from error
    own = Member(node_id, server, host, port, f"http://{address}")
    return SharedCluster(members, own, pool, settings.zookeeper_session_seconds)


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
