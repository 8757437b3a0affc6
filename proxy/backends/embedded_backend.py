"""The base class of backends, and the embedded log."""

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from pidlease.coordination.common_files import CommonFiles
from pidlease.coordination.pid_sequence import Coordination
from pidlease.engine.appenders.group_appender import AppenderFactory, GroupAppender
from pidlease.engine.engine import Engine
from pidlease.engine.shared_cluster import SharedCluster
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
from proxy.http.console_answers import Broker
from proxy.kafka.embedded_apis import Apis, EmbeddedApis
from proxy.kafka.groups.groups_api import GroupsApi
from proxy.kafka.listener_config import KafkaListenerConfig
from proxy.kafka.memory_budget import MemoryBudget

if TYPE_CHECKING:
    from pidlease.log.kafka.kafka_journal import KafkaJournal
    from pidlease.log.kafka.kafka_shared_journal import SharedKafkaJournal
    from proxy.backends.state_requests import HttpStateRequests
    from proxy.security.kafka_acls import KafkaAcls


class Backend(ABC):
    """A log, the data directory, and all that depends on the kind of log.

    Attributes:
        lost: set when another server serves the log, so that this one must end.
        loss: why, and what to do; empty: the common reason.
        waiting: why `open` waits; empty: it does not.
        acls: gets Kafka's ACLs as soon as Kafka answers; None: they do not count.
        to_members: TLS of connections to other active servers; None: they have no TLS.
        shared: the other active servers of a Kafka cluster; None: this server serves alone.
        standing_by: whether another server serves the log, and this one waits for its end.
        rows: the coordinator's rows in Kafka, if several servers are active; None: there are none.
        common: the files that all servers of the coordinator have; None: each has its own.
        states: asks the other active servers for their producers' states; None: there are none.
    """

    store: LogStore
    snapshots: SnapshotStore
    coordination: Coordination
    cluster_id: str
    appends: AppenderFactory

    def __init__(
        self, settings: Settings, files: Files, pool: IoPool, coordinator_pool: IoPool
    ) -> None:
        self._settings: Final = settings
        self._files: Final = files
        self._pool: Final = pool
        self._coordinator_pool: Final = coordinator_pool
        self._coordinator: Coordinator | None = None
        self._folder: DataDirectory | None = None
        self.lost: Final = asyncio.Event()
        self.loss = ""
        self.waiting = ""
        self.standing_by = False
        self.acls: KafkaAcls | None = None
        self.to_members: ssl.SSLContext | None = None
        self.shared: SharedCluster | None = None
        self.rows: SharedKafkaJournal | None = None
        self.states: HttpStateRequests | None = None
        self.common: CommonFiles | None = None

    @abstractmethod
    async def open(self) -> None:
        """Open logs, snapshots and coordination; wait for a Kafka cluster that is unavailable.

        Raises:
            DataFolderError: the data directory cannot be used.
            SequenceError: the PID sequence cannot be read.
            NamesError: the bindings of names cannot be read.
            OSError: a file cannot be read or written.
        """

    def _open_directory(self, folder: DataDirectory) -> Coordinator:
        """Open the directory's snapshots; return the coordinator, which is not open yet. Blocks."""
        self._folder = folder
        self._coordinator = Coordinator(self._files, folder.sequence, folder.names, self._settings)
        self.snapshots = SnapshotStore(self._files, folder.snapshots)
        return self._coordinator

    def _open_coordinator(
        self, coordinator: Coordinator, journal: "KafkaJournal | None" = None
    ) -> None:
        """Open the coordinator. Blocks.

        Parameters:
            journal: its rows, if Kafka has them.
        """
        self.coordination = coordinator.open(journal)._replace(pool=self._coordinator_pool)

    @abstractmethod
    async def follow(self, engine: Engine) -> None:
        """Forward changes of topics to the engine, from its recovery on."""

    @abstractmethod
    def apis(self, engine: Engine, config: KafkaListenerConfig, budget: MemoryBudget) -> Apis:
        """Make the handlers of Kafka requests."""

    async def join(self, engine: Engine) -> None:  # noqa: B027 - most have nothing to join
        """Join the other active servers: the listeners are open."""

    async def drain(self) -> None:  # noqa: B027 - most have nothing to drain
        """Let the other active servers take over, while the listeners are still open."""

    @abstractmethod
    async def close(self) -> None:
        """Accept nothing new: the listener is closed, the engine not yet."""

    def coordinator_state(self) -> tuple[str, bool] | None:
        """Return the coordinator's kind, and whether it is connected; None: not opened yet."""
        return None if self._coordinator is None else self._coordinator.state

    def brokers(self) -> Sequence[Broker]:
        """Return the brokers of the Kafka cluster; none if the log is embedded."""
        return ()

    def release(self) -> None:
        """Release the data directory, after the engine has closed or failed to start. Blocks."""
        if self._coordinator is not None:
            self._coordinator.close()
        if self._folder is not None:
            self._folder.release()


class EmbeddedBackend(Backend):
    """The embedded log. `lost` is never set: a lock on the data directory keeps servers out."""

    appends = GroupAppender
    _offsets: OffsetStore | None = None

    @override
    async def open(self) -> None:
        await self._pool.run(self._open)

    def _open(self) -> None:
        settings = self._settings
        defaults = log_config(settings)
        logs_max = open_logs_max(settings.connections_max)
        path = Path(settings.data_dir)
        folder = DataDirectory(self._files, path, defaults, self._pool, logs_max)
        self.store, self.cluster_id = folder, folder.cluster_id
        self._open_coordinator(self._open_directory(folder))
        self._offsets = OffsetStore(
            self._files, folder.groups, self._pool, defaults.fsync,
            settings.flush_seconds, settings.offsets_max,
        )  # fmt: skip
        self._offsets.open()
        folder.note_kept()

    @override
    async def follow(self, engine: Engine) -> None:
        pass  # topics change only through the engine

    @override
    def apis(self, engine: Engine, config: KafkaListenerConfig, budget: MemoryBudget) -> Apis:
        if self._offsets is None:
            raise AssertionError("open comes first")
        addresses = config.cluster.addresses()
        groups = GroupsApi(engine, self._offsets, group_limits(self._settings), addresses)
        return EmbeddedApis(engine, config, budget, check_settings, groups)

    @override
    async def close(self) -> None:
        if self._offsets is not None:
            await self._offsets.close()
