"""A server on a fresh data directory, with one topic of one partition."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.servers.pidlease import PidleaseServer

TOPIC = "t"


@contextmanager
def one_topic_server(folder: Path, fsync: str) -> Iterator[PidleaseServer]:
    """Start a server, and kill it at the end of the block.

    Parameters:
        folder: for the data directory, which is removed at the end.
        fsync: the policy of the topic.
    """
    with (
        tempfile.TemporaryDirectory(dir=folder) as data,
        PidleaseServer(Path(data), settings={"fsync": fsync}) as server,
    ):
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(30)
        yield server
