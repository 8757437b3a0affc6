"""Moves PIDs, names, writers, node ids and topics' settings from ZooKeeper to `__pidlease`.

No server may run meanwhile. The move may be repeated after a crash at any point:

1. ZooKeeper gets the node `moved`: from now on no server begins to use this tree.
2. Kafka gets the row `moving`: until the end, no server begins to use the topic.
3. Kafka gets all rows.
4. In one batch, the row `moving` is removed, and `moved` with the tree's id is put. A data
   directory that has used the tree may use the topic now.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Final, NamedTuple

from kazoo.exceptions import KazooException

from pidlease.coordination.common_files import CommonFilesError
from pidlease.coordination.journal.journal import Journal, JournalError, portions
from pidlease.coordination.journal.journal_files import file_row
from pidlease.coordination.journal.journal_members import node_ids_row
from pidlease.coordination.journal.journal_names import name_row
from pidlease.coordination.journal.journal_sequence import JournalSequence, has_blocks
from pidlease.coordination.journal.journal_topic_book import JournalTopicBook
from pidlease.coordination.journal.journal_writer_ids import writer_row
from pidlease.coordination.journal.moved_rows import moved_row, moving_row, was_moved
from pidlease.coordination.members import MembersError
from pidlease.coordination.name_bindings import NamesError
from pidlease.coordination.ownership import OwnershipError
from pidlease.coordination.pid_sequence import SequenceError
from pidlease.coordination.topic_book import TopicBookError
from pidlease.coordination.writer_ids import WriterIdsError
from pidlease.coordination.zookeeper.zookeeper_connection import MOVED, ZooKeeper, ZooKeeperError
from pidlease.coordination.zookeeper.zookeeper_files import ZooKeeperFiles
from pidlease.coordination.zookeeper.zookeeper_members import ZooKeeperMembers
from pidlease.coordination.zookeeper.zookeeper_names import ZooKeeperNames
from pidlease.coordination.zookeeper.zookeeper_sequence import ZooKeeperSequence
from pidlease.coordination.zookeeper.zookeeper_topic_book import ZooKeeperTopicBook
from pidlease.coordination.zookeeper.zookeeper_writer_ids import ZooKeeperWriterIds
from pidlease.engine.engine import wall_clock_ms
from pidlease.kafka.client.kafka_client import Upstream
from pidlease.kafka.errors import UpstreamError
from pidlease.log.kafka.kafka_journal import SILENT_LOOKS, KafkaJournal
from proxy.configuration.component_configs import upstream_config, zookeeper_config
from proxy.configuration.settings import Settings

_NAME: Final = "pidlease coordination migrate"
#: The time between two looks for a server that serves the cluster.
_LOOK_SECONDS: Final = 1.0
_ERRORS: Final = (
    CommonFilesError, JournalError, MembersError, OwnershipError, NamesError, SequenceError,
    TopicBookError, WriterIdsError, ZooKeeperError, KazooException, UpstreamError,
)  # fmt: skip


class MoveError(Exception):
    """The move cannot be done; the text says what to do."""


class Moved(NamedTuple):
    """What was moved."""

    blocks: int
    names: int
    writers: int
    topics: int


async def move_to_kafka(settings: Settings, report: Callable[[str], None]) -> Moved:
    """Move everything.

    Parameters:
        settings: as of a server that uses ZooKeeper.
        report: gets what is being done.

    Raises:
        MoveError: it was not done, or not completed: then it can be repeated.
    """
    config = zookeeper_config(settings)
    if config is None or settings.upstream is None:
        raise MoveError("give --zookeeper and --upstream, as for the servers until now")
    zookeeper, upstream = ZooKeeper(config), Upstream(upstream_config(settings))
    zookeeper.start()
    try:
        await asyncio.to_thread(zookeeper.wait, settings.zookeeper_timeout_seconds)
        await upstream.start()
        return await _move(zookeeper, upstream, settings, report)
    except _ERRORS as error:
        text = f"{type(error).__name__} {error}" if isinstance(error, KazooException) else error
        raise MoveError(f"{text}; try again") from error
    finally:
        await upstream.close()
        await asyncio.to_thread(zookeeper.close)


async def _move(
    zookeeper: ZooKeeper, upstream: Upstream, settings: Settings, report: Callable[[str], None]
) -> Moved:
    cluster = upstream.cluster.view.cluster_id
    tree = await asyncio.to_thread(zookeeper.identity)
    await asyncio.to_thread(_check_clusters, zookeeper, cluster)
    await asyncio.to_thread(_check_no_servers, zookeeper)
    journal = KafkaJournal(upstream, _NAME, f"{_NAME} {tree}", wall_clock_ms)
    await _claim(journal, report)
    try:
        if was_moved(journal, tree):
            raise MoveError("it was moved already; start the servers without --zookeeper")
        moving = moving_row(tree)
        if has_blocks(journal) and journal.get(moving.kind, moving.id) is None:
            raise MoveError(
                "the topic __pidlease has PIDs of its own: servers without --zookeeper have served"
                " this cluster"
            )
        data = json.dumps({"cluster": cluster, "topic": journal.topic_id}).encode()
        await asyncio.to_thread(zookeeper.ensure, zookeeper.path(MOVED), data)
        await asyncio.to_thread(_check_no_servers, zookeeper)
        await asyncio.to_thread(journal.put, [moving])
        found = await asyncio.to_thread(_copy, zookeeper, journal, cluster, settings)
        await asyncio.to_thread(journal.put, [moving._replace(fields=None), moved_row(tree)])
    finally:
        await journal.release()
    return found


async def _claim(journal: KafkaJournal, report: Callable[[str], None]) -> None:
    """Become the writer of the topic; a server that serves the cluster prevents it.

    Raises:
        MoveError: there is such a server.
    """
    for look in range(SILENT_LOOKS + 2):
        owner = await asyncio.to_thread(journal.claim)
        if not owner:
            return
        if not look:
            report(f"{owner} has served this cluster without --zookeeper; is it running?")
        await asyncio.sleep(_LOOK_SECONDS)
    raise MoveError(f"{owner} serves this cluster without --zookeeper; stop it")


def _check_clusters(zookeeper: ZooKeeper, cluster: str) -> None:
    """Check that only one cluster has used the tree: PIDs and names belong to none.

    Raises:
        MoveError: another one has.
    """
    used = {
        each
        for folder in ("owners", "shared", "topics", "files")
        for each in zookeeper.children(zookeeper.path(folder))
    }
    if others := sorted(used - {cluster}):
        raise MoveError(
            f"servers of other Kafka clusters have used this path of ZooKeeper: {others}; it cannot"
            " be moved to one of them"
        )


def _check_no_servers(zookeeper: ZooKeeper) -> None:
    """Check that no server uses the tree, for whatever cluster.

    Raises:
        MoveError: one does.
    """
    running = []
    for folder, below in (("owners", ""), ("shared", "/members")):
        for cluster in zookeeper.children(zookeeper.path(folder)):
            path = f"{zookeeper.path(folder)}/{cluster}{below}"
            found = zookeeper.nodes([f"{path}/{name}" for name in zookeeper.children(path)])
            running += [json.loads(each[0]).get("server") for each in found if each is not None]
    if running:
        raise MoveError(f"stop all servers first: {', '.join(sorted(map(str, running)))}")


def _copy(zookeeper: ZooKeeper, journal: Journal, cluster: str, settings: Settings) -> Moved:
    """Put everything that ZooKeeper has; blocks."""
    keep_ms = 2 * int(settings.lease_seconds * 1000)
    blocks = ZooKeeperSequence(zookeeper, _NAME, wall_clock_ms, keep_ms).blocks()
    names = ZooKeeperNames(zookeeper).all()
    writers = ZooKeeperWriterIds(zookeeper).all()
    topics = ZooKeeperTopicBook(zookeeper, cluster).load()
    files = ZooKeeperFiles(zookeeper, cluster).all()
    JournalSequence(journal, _NAME, wall_clock_ms, keep_ms).adopt(
        blocks, max([block.end for block in blocks], default=1)
    )
    rows = [name_row(name, binding) for name, binding in names.items()]
    rows += [writer_row(pid, of) for pid, of in writers.items()]
    rows.append(node_ids_row(ZooKeeperMembers(zookeeper, cluster).next_node_id()))
    for some in portions(rows):
        journal.put(some)
    for name, content in files.items():
        journal.put([file_row(name, content)])
    JournalTopicBook(journal).adopt(topics)
    return Moved(len(blocks), len(names), len(writers), len(topics.own))
