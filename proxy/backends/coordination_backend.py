"""Opens the coordinator, ZooKeeper or files; a data directory always keeps the same one."""

import os
import socket
from pathlib import Path

import structlog

from pidlease.coordination.file.file_names import FileNames
from pidlease.coordination.file.file_sequence import FileSequence
from pidlease.coordination.file.file_topic_book import FileTopicBook
from pidlease.coordination.file.file_writer_ids import FileWriterIds
from pidlease.coordination.members import Members
from pidlease.coordination.name_bindings import BindingConflictError, NameBindings
from pidlease.coordination.pid_sequence import ZOOKEEPER_MARK, Coordination, SequenceError
from pidlease.coordination.topic_book import TopicBook
from pidlease.coordination.writer_ids import WriterIds, WriterIdsError
from pidlease.coordination.zookeeper.zookeeper_connection import ZooKeeper, ZooKeeperError
from pidlease.coordination.zookeeper.zookeeper_fences import ZooKeeperFences
from pidlease.coordination.zookeeper.zookeeper_members import ZooKeeperMembers
from pidlease.coordination.zookeeper.zookeeper_names import ZooKeeperNames
from pidlease.coordination.zookeeper.zookeeper_ownership import ZooKeeperOwnership
from pidlease.coordination.zookeeper.zookeeper_sequence import ZooKeeperSequence
from pidlease.coordination.zookeeper.zookeeper_topic_book import ZooKeeperTopicBook
from pidlease.coordination.zookeeper.zookeeper_writer_ids import ZooKeeperWriterIds
from pidlease.engine.engine import wall_clock_ms
from pidlease.storage.files import Files, make_durable_folder, read_file, write_aside
from proxy.configuration.component_configs import zookeeper_config
from proxy.configuration.settings import Settings

_log = structlog.get_logger(__name__)


class Coordinator:
    """The coordinator of a server.

    Parameters:
        path: the file of the PID sequence, for a server without ZooKeeper.
        names: the file of the name bindings, for a server without ZooKeeper.
    """

    def __init__(self, files: Files, path: Path, names: Path, settings: Settings) -> None:
        self._files = files
        self._path = path
        self._names = names
        self._settings = settings
        #: This server's name, for the operator.
        self.server = f"{socket.gethostname()}:{os.getpid()}"
        self._keep_ms = 2 * int(settings.lease_seconds * 1000)
        self._zookeeper: ZooKeeper | None = None

    def open(self) -> Coordination:
        """Open the PID sequence and the name bindings. Blocks until ZooKeeper is connected.

        Raises:
            SequenceError: the sequence cannot be read, or is not the data directory's.
            NamesError: the bindings cannot be read.
        """
        mark = self._path.with_name(ZOOKEEPER_MARK)
        known = self._read_mark(mark)
        config = zookeeper_config(self._settings)
        if config is None:
            if known:
                raise SequenceError(
                    f"the PIDs of this directory come from ZooKeeper: say --zookeeper. ({mark} says"
                    " so; a sequence in a file would lease the same PIDs again)"
                )
            own = self._file_sequence()
            names = FileNames(self._files, self._names)
            return Coordination(own, names, writers=self._file_writers())
        self._zookeeper = ZooKeeper(config)
        self._zookeeper.start()
        try:
            self._zookeeper.wait(self._settings.zookeeper_timeout_seconds)
            identity = self._zookeeper.identity()
        except ZooKeeperError as error:
            raise SequenceError(f"--zookeeper {config.hosts}: {error}") from error
        if known and known != identity:
            raise SequenceError(
                f"--zookeeper {config.hosts} is {identity}, and this directory's PIDs come from"
                f" {known} ({mark}): another ZooKeeper would lease the same PIDs again"
            )
        fences = None
        if self._settings.shared:
            fences = ZooKeeperFences(self._zookeeper, wall_clock_ms, self._keep_ms)
        zookeeper_names = ZooKeeperNames(self._zookeeper, fences)
        ids = ZooKeeperWriterIds(self._zookeeper)
        if not known:
            self._move_names(zookeeper_names)
            self._move_writers(ids)
            make_durable_folder(self._files, mark.parent)
            write_aside(self._files, mark, [identity.encode()])
        begin = self._file_sequence().end if self._files.exists(self._path) else 1
        sequence = ZooKeeperSequence(
            self._zookeeper, self.server, wall_clock_ms, self._keep_ms, begin
        )
        return Coordination(sequence, zookeeper_names, writers=ids, fences=fences)

    def _move_writers(self, ids: WriterIds) -> None:
        """Copy the writers' producer ids from the file to ZooKeeper."""
        try:
            for pid, partition in self._file_writers().all().items():
                ids.add(pid, partition)
        except WriterIdsError as error:
            raise SequenceError(str(error)) from error

    def _file_writers(self) -> FileWriterIds:
        return FileWriterIds(self._files, self._path.with_name("writers"))

    def ownership(self, cluster: str, folder: str) -> ZooKeeperOwnership | None:
        """Return the claim to serve a cluster; None without ZooKeeper: there is only this server.

        Parameters:
            cluster: the Kafka cluster's id.
            folder: the data directory's id.
        """
        if self._zookeeper is None:
            return None
        return ZooKeeperOwnership(self._zookeeper, cluster, self.server, folder)

    def members(self, cluster: str) -> Members:
        """Return the active servers that share a Kafka cluster.

        Parameters:
            cluster: the Kafka cluster's id.
        """
        if self._zookeeper is None:
            raise AssertionError("the settings allow no shared cluster without ZooKeeper")
        return ZooKeeperMembers(self._zookeeper, cluster)

    def topic_book(self, cluster: str) -> TopicBook:
        """Open the settings of a Kafka cluster's topics. Blocks.

        Raises:
            TopicBookError: the directory's settings could not be copied to ZooKeeper.
        """
        in_files = FileTopicBook(self._files, self._path.with_name("topics"))
        if self._zookeeper is None:
            return in_files
        book, before = ZooKeeperTopicBook(self._zookeeper, cluster), in_files.load()
        if any(before) and not any(book.load()):
            book.save_shared(before.shared)
            for topic_id, settings in before.own.items():
                book.save_own("", topic_id, settings)
        return book

    def _move_names(self, names: NameBindings) -> None:
        """Copy bindings from the file to ZooKeeper; bindings that exist there stay."""
        if not self._files.exists(self._names):
            return
        for name, binding in FileNames(self._files, self._names).all().items():
            try:
                names.change(name, None, binding)
            except BindingConflictError as error:
                _log.warning("a name is bound in ZooKeeper already", name=name, reason=str(error))

    def _file_sequence(self) -> FileSequence:
        return FileSequence(self._files, self._path, self.server, wall_clock_ms, self._keep_ms)

    def _read_mark(self, mark: Path) -> str:
        return read_file(self._files, mark).decode() if self._files.exists(mark) else ""

    @property
    def state(self) -> tuple[str, bool]:
        """The coordinator's kind, and whether it is connected."""
        if self._zookeeper is None:
            return "file", True
        return "zookeeper", self._zookeeper.state == "connected"

    def close(self) -> None:
        """Close the connection. Blocks."""
        if self._zookeeper is not None:
            self._zookeeper.close()
