"""What differs with the log that a server has: how it is built, and who answers its clients."""

import asyncio
from pathlib import Path
from typing import Final, Protocol

from pidlease.coordination.pid_sequence import Coordination
from pidlease.engine.appenders.group_appender import AppenderFactory, GroupAppender
from pidlease.engine.engine import Engine
from pidlease.log.ports import LogStore
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.storage.files import Files
from pidlease.storage.io_pool import IoPool
from pidlease.storage.offsets.offset_store import OffsetStore
from pidlease.storage.snapshots import SnapshotStore
from pidlease.storage.topics.topic_settings import check_settings
from proxy.backends.coordination_backend import Coordinator
from proxy.configuration.component_configs import group_limits, log_config, open_logs_max
from proxy.configuration.settings import Settings
from proxy.kafka.embedded_apis import Apis, EmbeddedApis
from proxy.kafka.groups.groups_api import GroupsApi
from proxy.kafka.listener_config import KafkaListenerConfig
from proxy.kafka.memory_budget import MemoryBudget


class Backend(Protocol):
    """What `app.py` asks for.

    Attributes:
        store: the logs.
        snapshots: the snapshots.
        coordination: the PID sequence, and the bindings of names.
        cluster_id: what the cluster is called.
        appends: how admitted batches come into the log.
        lost: set when another server serves the log, so that this one is to end.
        standing_by: whether another server serves the log, and this one waits for its end.
    """

    store: LogStore
    snapshots: SnapshotStore
    coordination: Coordination
    cluster_id: str
    appends: AppenderFactory
    lost: asyncio.Event
    standing_by: bool

    async def open(self) -> None:
        """Open what there is.

        Raises:
            DataFolderError: it cannot be used.
            SequenceError: the PID sequence cannot be read.
            NamesError: the bindings of names cannot be read.
            OSError: something cannot be read or written.
        """

    async def follow(self, engine: Engine) -> None:
        """The engine has recovered: tell it from now on what changes without it."""

    def apis(self, engine: Engine, config: KafkaListenerConfig, budget: MemoryBudget) -> Apis:
        """Who answers the requests of Kafka clients."""

    async def close(self) -> None:
        """The door is closed, the engine not yet: take nothing new."""

    def coordinator_state(self) -> tuple[str, bool] | None:
        """What coordinates, and whether it can be asked now; None: it is not known yet."""

    def release(self) -> None:
        """The engine is closed, or never came to be. Blocks."""


class EmbeddedBackend:
    """A log of its own, in the data directory (see `Backend`).

    Parameters:
        settings: all of them.
        files: the file system.
        pool: the threads for blocking work.
    """

    store: LogStore
    snapshots: SnapshotStore
    coordination: Coordination
    cluster_id: str
    appends: AppenderFactory = GroupAppender
    standing_by: bool = False

    def __init__(self, settings: Settings, files: Files, pool: IoPool) -> None:
        self._settings: Final = settings
        self._files: Final = files
        self._pool: Final = pool
        self._coordinator: Coordinator | None = None
        self._offsets: OffsetStore | None = None
        self._folder: DataDirectory | None = None
        self.lost = asyncio.Event()  # never: a lock keeps others out

    async def open(self) -> None:
        """See `Backend`."""
        await self._pool.run(self._open)

    def _open(self) -> None:
        settings = self._settings
        defaults = log_config(settings)
        logs_max = open_logs_max(settings.connections_max)
        path = Path(settings.data_dir)
        folder = DataDirectory(self._files, path, defaults, self._pool, logs_max)
        self.store = self._folder = folder
        self.cluster_id = folder.cluster_id
        self._coordinator = Coordinator(self._files, folder.sequence, folder.names, settings)
        self.coordination = self._coordinator.open()
        self._offsets = OffsetStore(
            self._files, folder.groups, self._pool, defaults.fsync,
            settings.flush_seconds, settings.offsets_max,
        )  # fmt: skip
        self._offsets.open()
        self.snapshots = SnapshotStore(self._files, folder.snapshots)

    async def follow(self, engine: Engine) -> None:
        """See `Backend`: nothing changes without it."""

    def apis(self, engine: Engine, config: KafkaListenerConfig, budget: MemoryBudget) -> Apis:
        """See `Backend`."""
        if self._offsets is None:
            raise AssertionError("it is opened first")
        at = (config.cluster.host, config.cluster.port)
        groups = GroupsApi(engine, self._offsets, group_limits(self._settings), at)
        return EmbeddedApis(engine, config, budget, check_settings, groups)

    async def close(self) -> None:
        """See `Backend`."""
        if self._offsets is not None:
            await self._offsets.close()

    def coordinator_state(self) -> tuple[str, bool] | None:
        """See `Backend`."""
        return None if self._coordinator is None else self._coordinator.state

    def release(self) -> None:
        """See `Backend`."""
        if self._coordinator is not None:
            self._coordinator.close()
        if self._folder is not None:
            self._folder.release()
