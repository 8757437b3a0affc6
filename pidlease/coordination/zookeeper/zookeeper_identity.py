"""The coordinator's id: a data directory must not use another one, with a sequence from 1."""

import uuid

from kazoo.exceptions import KazooException

from pidlease.coordination.zookeeper.zookeeper_connection import ZooKeeper, ZooKeeperError


def identity_of(zookeeper: ZooKeeper) -> str:
    """Return the id of the tree below the chroot; create it if there is none. Blocks.

    Raises:
        ZooKeeperError: the id cannot be read.
    """
    path = zookeeper.path("id")
    try:
        zookeeper.ensure(path, uuid.uuid4().hex.encode())
        return str(uuid.UUID(zookeeper.data(path).decode()))
    except KazooException as error:
        raise ZooKeeperError(f"{path}: {type(error).__name__} {error}".strip()) from error
    except ValueError as error:
        raise ZooKeeperError(f"{path} holds no id of pidlease: {error}") from error
