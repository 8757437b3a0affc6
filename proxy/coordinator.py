"""Where PIDs come from, ZooKeeper or a file; a data directory stays with what it began with."""

import os
import socket
from pathlib import Path

from pidlease.coordination.file_sequence import FileSequence
from pidlease.coordination.ports import ZOOKEEPER_MARK, PidSequence, SequenceError
from pidlease.coordination.zookeeper.connection import ZooKeeper, ZooKeeperError
from pidlease.coordination.zookeeper.identity import identity_of
from pidlease.coordination.zookeeper.sequence import ZooKeeperSequence
from pidlease.engine.engine import wall_clock_ms
from pidlease.storage.files import Files, make_durable_folder, read_file, write_aside
from proxy.configs import zookeeper_config
from proxy.settings import Settings


class Coordinator:
    """The coordinator of a server.

    Parameters:
        files: the file system.
        path: the file of the PID sequence, for a server without ZooKeeper.
        settings: all of the server's.
    """

    def __init__(self, files: Files, path: Path, settings: Settings) -> None:
        self._files = files
        self._path = path
        self._settings = settings
        self._owner = f"{socket.gethostname()}:{os.getpid()}"
        self._keep_ms = 2 * int(settings.lease_seconds * 1000)
        self._zookeeper: ZooKeeper | None = None

    def sequence(self) -> PidSequence:
        """The PID sequence. Blocks, until ZooKeeper is connected.

        Raises:
            SequenceError: it cannot be read, or is not the one that the data directory knows.
        """
        mark = self._path.with_name(ZOOKEEPER_MARK)
        known = self._read_mark(mark)
        config = zookeeper_config(self._settings)
        if config is None:
            if known:
                raise SequenceError(
                    f"the PIDs of this directory come from ZooKeeper: say --zookeeper. ({mark} says"
                    " so; a sequence of its own would hand out PIDs for a second time)"
                )
            return self._file_sequence()
        self._zookeeper = ZooKeeper(config)
        self._zookeeper.start()
        try:
            self._zookeeper.wait(self._settings.zookeeper_timeout_seconds)
            identity = identity_of(self._zookeeper)
        except ZooKeeperError as error:
            raise SequenceError(f"--zookeeper {config.hosts}: {error}") from error
        if known and known != identity:
            raise SequenceError(
                f"--zookeeper {config.hosts} is {identity}, and this directory's PIDs come from"
                f" {known} ({mark}): another one would hand them out for a second time"
            )
        if not known:
            make_durable_folder(self._files, mark.parent)
            write_aside(self._files, mark, [identity.encode()])
        begin = self._file_sequence().end if self._files.exists(self._path) else 1
        return ZooKeeperSequence(self._zookeeper, self._owner, wall_clock_ms, self._keep_ms, begin)

    def _file_sequence(self) -> FileSequence:
        return FileSequence(self._files, self._path, self._owner, wall_clock_ms, self._keep_ms)

    def _read_mark(self, mark: Path) -> str:
        return read_file(self._files, mark).decode() if self._files.exists(mark) else ""

    def close(self) -> None:
        """Blocks."""
        if self._zookeeper is not None:
            self._zookeeper.close()
