"""Opens the coordinator: ZooKeeper, Kafka or files. A data directory always keeps the same one."""

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from kazoo.exceptions import KazooException

from pidlease.coordination.common_files import CommonFiles
from pidlease.coordination.file.file_names import FileNames
from pidlease.coordination.file.file_sequence import FileSequence
from pidlease.coordination.file.file_topic_book import FileTopicBook
from pidlease.coordination.file.file_writer_ids import FileWriterIds
from pidlease.coordination.journal.journal import JournalError
from pidlease.coordination.journal.journal_fences import JournalFences
from pidlease.coordination.journal.journal_files import JournalFiles
from pidlease.coordination.journal.journal_members import JournalMembers
from pidlease.coordination.journal.journal_names import JournalNames
from pidlease.coordination.journal.journal_sequence import JournalSequence
from pidlease.coordination.journal.journal_topic_book import JournalTopicBook
from pidlease.coordination.journal.journal_writer_ids import JournalWriterIds
from pidlease.coordination.journal.moved_rows import is_moving, was_moved
from pidlease.coordination.members import Members
from pidlease.coordination.name_bindings import BindingConflictError, NameBindings
from pidlease.coordination.ownership import Ownership
from pidlease.coordination.pid_sequence import (
    KAFKA_BEGUN_MARK,
    KAFKA_MARK,
    ZOOKEEPER_MARK,
    Coordination,
    SequenceError,
)
from pidlease.coordination.topic_book import ALL_TOPICS, TopicBook, TopicBookError
from pidlease.coordination.writer_ids import WriterIds, WriterIdsError
from pidlease.coordination.zookeeper.zookeeper_connection import ZooKeeper, ZooKeeperError
from pidlease.coordination.zookeeper.zookeeper_fences import ZooKeeperFences
from pidlease.coordination.zookeeper.zookeeper_files import ZooKeeperFiles
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

if TYPE_CHECKING:  # the embedded log needs no client of Kafka
    from pidlease.log.kafka.kafka_journal import KafkaJournal
    from pidlease.log.kafka.kafka_shared_journal import SharedKafkaJournal

_log = structlog.get_logger(__name__)


class Coordinator:
    """The coordinator of a server.

    Parameters:
        path: the file of the PID sequence, for a server with files as its coordinator.
        names: the file of the name bindings, for the same.
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
        self._journal: KafkaJournal | None = None

    def open(self, journal: "KafkaJournal | None" = None) -> Coordination:
        """Open the PID sequence and the name bindings. Blocks until ZooKeeper is connected.

        Parameters:
            journal: rows in Kafka; None: there are none.

        Raises:
            SequenceError: the sequence cannot be read, or is not the data directory's.
            NamesError: the bindings cannot be read.
        """
        if journal is not None:
            return self._open_journal(journal)
        if self.topic_of_pids():
            raise SequenceError(
                "the PIDs of this directory come from the Kafka cluster: say --log kafka, without"
                f" --zookeeper and without --coordination files. ({self._mark(KAFKA_MARK)} says so;"
                " another sequence would lease the same PIDs again)"
            )
        known = self._read_mark(ZOOKEEPER_MARK)
        config = zookeeper_config(self._settings)
        if config is None:
            if known:
                raise SequenceError(
                    "the PIDs of this directory come from ZooKeeper: say --zookeeper."
                    f" ({self._mark(ZOOKEEPER_MARK)} says so; a sequence in a file would lease the"
                    " same PIDs again)"
                )
            own = self._file_sequence()
            in_file = FileNames(self._files, self._names)
            return Coordination(own, in_file, writers=self._file_writers())
        self._zookeeper = ZooKeeper(config)
        self._zookeeper.start()
        try:
            self._zookeeper.wait(self._settings.zookeeper_timeout_seconds)
            identity = self._zookeeper.identity()
            self._zookeeper.check_not_moved()
        except (ZooKeeperError, KazooException) as error:
            raise SequenceError(f"--zookeeper {config.hosts}: {error}") from error
        if known and known != identity:
            raise SequenceError(
                f"--zookeeper {config.hosts} is {identity}, and this directory's PIDs come from"
                f" {known} ({self._mark(ZOOKEEPER_MARK)}): another ZooKeeper would lease the same"
                " PIDs again"
            )
        fences = None
        if self._settings.shared:
            fences = ZooKeeperFences(self._zookeeper, wall_clock_ms, self._keep_ms)
        names = ZooKeeperNames(self._zookeeper, fences)
        ids = ZooKeeperWriterIds(self._zookeeper)
        sequence = ZooKeeperSequence(
            self._zookeeper, self.server, wall_clock_ms, self._keep_ms, self._end_of_file()
        )
        if not known:
            if self._files.exists(self._path):
                sequence.take()  # so that a server with another directory begins after the file's
            self._move(names, ids, ZOOKEEPER_MARK, identity)
        return Coordination(sequence, names, writers=ids, fences=fences)

    def use(self, journal: "KafkaJournal") -> None:
        """Report on rows in Kafka from now on, before they are opened."""
        self._journal = journal

    def _open_journal(self, journal: "KafkaJournal") -> Coordination:
        fences = None
        if self._settings.shared:
            fences = JournalFences(journal, wall_clock_ms, self._keep_ms)
        names, ids = JournalNames(journal, fences), JournalWriterIds(journal)
        sequence = JournalSequence(journal, self.server, wall_clock_ms, self._keep_ms)
        tree = self._read_mark(ZOOKEEPER_MARK)
        if tree:  # `pidlease coordination migrate` has moved all, files are from before ZooKeeper
            self._set_mark(KAFKA_MARK, journal.topic_id)
            self._files.remove(self._mark(ZOOKEEPER_MARK))
            self._files.fsync_folder(self._path.parent)
        if not self.topic_of_pids():
            try:
                if self._files.exists(self._path):
                    in_file = self._file_sequence()
                    sequence.adopt(in_file.blocks(), in_file.end)
                JournalTopicBook(journal).adopt(self._file_topics().load())
            except (SequenceError, TopicBookError) as error:
                raise SequenceError(f"the files cannot be moved to Kafka: {error}") from error
            self._move(names, ids, KAFKA_MARK, journal.topic_id)
        return Coordination(sequence, names, writers=ids, fences=fences)

    def topic_of_pids(self) -> str:
        """Return the id of the topic in Kafka that the directory's PIDs come from; empty: none."""
        return self._read_mark(KAFKA_MARK)

    def may_begin(self) -> bool:
        """Return whether this directory may put the first rows into a topic that has none.

        It may if it was there before the topic was, or has files to move. Otherwise another server
        has served the cluster, with PIDs in files or in ZooKeeper. Blocks.
        """
        begun = self._mark(KAFKA_BEGUN_MARK)
        return any(map(self._files.exists, (begun, self._path, self._mark(KAFKA_MARK))))

    def note_begun(self) -> None:
        """Note that there is no topic yet. Blocks."""
        self._set_mark(KAFKA_BEGUN_MARK, "")

    def check_moved(self, journal: "KafkaJournal | None") -> None:
        """Check that the directory's PIDs are not in ZooKeeper, or were moved to Kafka. Blocks.

        Parameters:
            journal: rows in Kafka, before this server puts any; None: the topic does not exist.

        Raises:
            SequenceError: they come from ZooKeeper, or not all were moved.
        """
        tree = self._read_mark(ZOOKEEPER_MARK)
        if journal is not None:
            try:
                journal.refresh()
            except JournalError as error:
                raise SequenceError(f"the PIDs in Kafka cannot be read: {error}") from error
            if is_moving(journal):
                raise SequenceError(
                    "a move from ZooKeeper was begun and not completed: run `pidlease coordination"
                    " migrate` again"
                )
        if tree and (journal is None or not was_moved(journal, tree)):
            raise SequenceError(
                "the PIDs of this directory come from ZooKeeper: say --zookeeper, or move them to"
                f" Kafka by `pidlease coordination migrate`. ({self._mark(ZOOKEEPER_MARK)} says so)"
            )

    def _end_of_file(self) -> int:
        """Return where the sequence in the file ended; another one begins there."""
        return self._file_sequence().end if self._files.exists(self._path) else 1

    def _move(self, names: NameBindings, ids: WriterIds, mark: str, identity: str) -> None:
        """Copy what is in files to another coordinator, and mark the directory as its own."""
        self._move_names(names)
        self._move_writers(ids)
        self._set_mark(mark, identity)

    def _set_mark(self, mark: str, identity: str) -> None:
        path = self._mark(mark)
        make_durable_folder(self._files, path.parent)
        write_aside(self._files, path, [identity.encode()])

    def _move_writers(self, ids: WriterIds) -> None:
        """Copy the writers' producer ids from the file."""
        try:
            for pid, partition in self._file_writers().all().items():
                ids.add(pid, partition)
        except WriterIdsError as error:
            raise SequenceError(str(error)) from error

    def _file_topics(self) -> FileTopicBook:
        return FileTopicBook(self._files, self._path.with_name("topics"))

    def _file_writers(self) -> FileWriterIds:
        return FileWriterIds(self._files, self._path.with_name("writers"))

    def ownership(self, cluster: str, folder: str) -> Ownership | None:
        """Return the claim to serve a cluster; None without ZooKeeper: there is only this server.

        Parameters:
            cluster: the Kafka cluster's id.
            folder: the data directory's id.
        """
        if self._zookeeper is None:
            return None
        return ZooKeeperOwnership(self._zookeeper, cluster, self.server, folder)

    def members(self, cluster: str, rows: "SharedKafkaJournal | None") -> Members:
        """Return the active servers that share a Kafka cluster.

        Parameters:
            cluster: the Kafka cluster's id.
            rows: the coordinator's rows in Kafka; None: they are in ZooKeeper.
        """
        if rows is not None:
            return JournalMembers(rows, lambda: rows.stranger)
        if self._zookeeper is None:
            raise AssertionError("the settings allow no shared cluster without a coordinator")
        return ZooKeeperMembers(self._zookeeper, cluster)

    def topic_book(self, cluster: str) -> TopicBook:
        """Open the settings of a Kafka cluster's topics. Blocks.

        Raises:
            TopicBookError: the directory's settings could not be copied to ZooKeeper.
        """
        if self._journal is not None:
            return JournalTopicBook(self._journal)
        in_files = self._file_topics()
        if self._zookeeper is None:
            return in_files
        book, before = ZooKeeperTopicBook(self._zookeeper, cluster), in_files.load()
        if any(before) and not any(book.load()):
            for topic_id, settings in {ALL_TOPICS: before.shared, **before.own}.items():
                book.change("", topic_id, settings.__or__)
        return book

    def common_files(self, cluster: str) -> CommonFiles | None:
        """Return the files that servers have in common; None: each has its own.

        Parameters:
            cluster: the Kafka cluster's id.
        """
        if self._journal is not None:
            return JournalFiles(self._journal)
        return None if self._zookeeper is None else ZooKeeperFiles(self._zookeeper, cluster)

    def _move_names(self, names: NameBindings) -> None:
        """Copy bindings from the file; bindings that the coordinator has stay."""
        if not self._files.exists(self._names):
            return
        for name, binding in FileNames(self._files, self._names).all().items():
            try:
                names.change(name, None, binding)
            except BindingConflictError as error:
                _log.warning("a name is bound already", name=name, reason=str(error))

    def _file_sequence(self) -> FileSequence:
        return FileSequence(self._files, self._path, self.server, wall_clock_ms, self._keep_ms)

    def _mark(self, name: str) -> Path:
        return self._path.with_name(name)

    def _read_mark(self, name: str) -> str:
        mark = self._mark(name)
        if not self._files.exists(mark):
            return ""
        content = read_file(self._files, mark).decode()
        if not content:
            raise SequenceError(f"{mark} is empty, and was not; take the file from a backup")
        return content

    @property
    def state(self) -> tuple[str, bool]:
        """The coordinator's kind, and whether it is connected."""
        if self._journal is not None:
            return "kafka", self._journal.connected
        if self._zookeeper is None:
            return "file", True
        return "zookeeper", self._zookeeper.state == "connected"

    def close(self) -> None:
        """Close the connection. Blocks."""
        if self._zookeeper is not None:
            self._zookeeper.close()
