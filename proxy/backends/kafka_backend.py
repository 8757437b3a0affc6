"""Kafka as the log: the data directory has no records, only snapshots."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
from typing_extensions import override

from pidlease.coordination.journal.journal import JournalError
from pidlease.coordination.journal.journal_beginnings import JournalBeginnings
from pidlease.coordination.journal.journal_sequence import has_blocks
from pidlease.coordination.members import Members, MembersError, MembershipLostError
from pidlease.coordination.ownership import Ownership, OwnershipError
from pidlease.coordination.shared_call import SharedCall
from pidlease.core.backoff import Backoff
from pidlease.core.topic_partition import TopicPartition
from pidlease.engine.appenders.group_appender import Appender, AppenderFactory, AppendTarget
from pidlease.engine.appenders.kafka_appender import KafkaAppender
from pidlease.engine.engine import Engine, wall_clock_ms
from pidlease.engine.shared_cluster import SharedCluster
from pidlease.kafka.client.cluster import View
from pidlease.kafka.client.kafka_client import Upstream
from pidlease.kafka.client.transactions import SERVED_TOPIC
from pidlease.kafka.errors import (
    UpstreamAwayError,
    UpstreamError,
    UpstreamLostError,
)
from pidlease.log.kafka.kafka_journal import KafkaJournal
from pidlease.log.kafka.kafka_log_store import KafkaStore, served
from pidlease.log.kafka.kafka_shared_journal import SharedKafkaJournal
from pidlease.log.kafka.kafka_writers import KafkaWriters
from pidlease.log.ports import PartitionLog
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import DataFolderError, LogError
from pidlease.storage.files import Files, read_file, write_aside
from pidlease.storage.io_pool import IoPool
from pidlease.storage.topics.topic_store import Topic
from proxy.backends.coordination_backend import Coordinator
from proxy.backends.embedded_backend import Backend
from proxy.backends.registrar_requests import RegistrarRequests
from proxy.backends.shared_partitions import (
    SESSION_SECONDS,
    check_brokers,
    member_url,
    shared_cluster,
)
from proxy.backends.state_requests import HttpStateRequests
from proxy.configuration.component_configs import log_config, upstream_config
from proxy.configuration.settings import Settings
from proxy.http.console_answers import Broker
from proxy.kafka.embedded_apis import Apis
from proxy.kafka.forwarded.forwarded_apis import ForwardedApis
from proxy.kafka.listener_config import KafkaListenerConfig
from proxy.kafka.memory_budget import MemoryBudget

#: The file with the id of the cluster that the snapshots belong to.
_MARK: Final = "upstream"
#: Delays between attempts to reach the cluster at the start.
_REACH_BACKOFF: Final = Backoff(0.5, 10.0)
#: How often to check whether this server is, or can become, the owner of the cluster.
_STAND_BY_SECONDS: Final = 1.0
#: How often to check for stopped partitions to reopen, and for topics that Kafka no longer lists.
_LOOK_SECONDS: Final = 10.0
#: How long a stop waits for other active servers to take over.
_DRAIN_SECONDS: Final = 10.0
#: The longest wait for the first server of a cluster to take PIDs, and the time between two looks.
_FIRST_SECONDS: Final = 30.0
_FIRST_LOOK_SECONDS: Final = 0.2
#: Delays before a failed topic sync is tried again.
_FOLLOW_BACKOFF: Final = Backoff(0.1, 15.0)

_log = structlog.get_logger(__name__)


class KafkaBackend(Backend):
    """Kafka as the log."""

    _members: Members
    _writers: KafkaWriters
    _kafka: KafkaStore

    def __init__(
        self, settings: Settings, files: Files, pool: IoPool, coordinator_pool: IoPool
    ) -> None:
        super().__init__(settings, files, pool, coordinator_pool)
        self.appends: AppenderFactory = _kafka_appender
        self._upstream: Final = Upstream(upstream_config(settings))
        self._changed: Final = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._ownership: Ownership | None = None
        self._journal: KafkaJournal | None = None
        self._requests: RegistrarRequests | None = None
        self._watching: asyncio.Task[None] | None = None
        self._engine: Engine | None = None

    @override
    async def open(self) -> None:
        coordinator, folder = await self._pool.run(self._open)
        in_kafka = self._settings.coordinated_by_kafka
        if not in_kafka:
            await self._pool.run(partial(self._open_coordinator, coordinator))
        await self._reach()
        self.cluster_id = self._upstream.cluster.view.cluster_id
        await self._pool.run(self._check_mark)
        if not in_kafka:
            await self._check_no_journal()
        if in_kafka:
            self._journal = await self._open_journal(coordinator, folder)
        if self._settings.shared:
            await check_brokers(self._upstream.cluster)
            if (rows := self.rows) is not None:
                await self._wait_until_owned(rows)
                # It notes where the logs end. Else this one would read all that retention has left.
                await self._wait_for_first(rows, lambda: rows.is_registrar or has_blocks(rows))
            await self._pool.run(partial(self._share, coordinator))
            await self._wait_for_stranger()
        else:
            self._ownership = self._journal or coordinator.ownership(
                self.cluster_id, folder.cluster_id
            )
        if self._ownership is not None:
            await self._wait_until_owned(self._ownership)
            # From now on: a replay may take longer than a standby waits for a sign of life.
            self._watching = asyncio.create_task(self._watch(self._ownership))
            # Read again: the previous owner may have created topics and acknowledged records.
            await self._reach()
        if self._journal is not None:
            await self._pool.run(partial(self._open_coordinator, coordinator, self._journal))
        await self._pool.run(folder.note_kept)
        self.common = coordinator.common_files(self.cluster_id)
        await self._open_store(coordinator)

    async def _open_journal(self, coordinator: Coordinator, folder: DataDirectory) -> KafkaJournal:
        known = await self._pool.run(coordinator.topic_of_pids)
        topic = self._upstream.cluster.view.topics.get(SERVED_TOPIC)
        if known and (topic is None or topic.topic_id != known):
            raise DataFolderError(
                f"this directory's PIDs come from the topic {SERVED_TOPIC} with the id {known}, and"
                f" the cluster has {'none' if topic is None else topic.topic_id}: without its"
                " records the same PIDs would be leased again"
            )
        journal = self._journal_of(coordinator, folder)
        coordinator.use(journal)
        there = None if topic is None else journal
        await self._coordinator_pool.run(partial(coordinator.check_moved, there))
        if there is None:
            await self._pool.run(coordinator.note_begun)
        elif self._settings.coordination == "auto":
            await self._check_begun(coordinator, there)
        return journal

    async def _check_begun(self, coordinator: Coordinator, journal: KafkaJournal) -> None:
        """Wait for the first rows, unless this server may put them.

        Raises:
            DataFolderError: there are none, so another server leases PIDs from files or ZooKeeper.
        """
        if await self._pool.run(coordinator.may_begin):
            return
        await self._wait_for_first(journal, lambda: journal.has_rows)
        if not journal.has_rows:
            raise DataFolderError(
                f"the topic {SERVED_TOPIC} has no rows, so a server has served this cluster with"
                " its PIDs in files or in ZooKeeper, and would lease the same ones. Start a server"
                " with its data directory first, or say --zookeeper. If there is none, say"
                " --coordination kafka"
            )

    def _journal_of(self, coordinator: Coordinator, folder: DataDirectory) -> KafkaJournal:
        if not self._settings.shared:
            return KafkaJournal(
                self._upstream, coordinator.server, folder.cluster_id, wall_clock_ms
            )
        self._requests = RegistrarRequests(self.to_members)
        self.rows = SharedKafkaJournal(
            self._upstream, coordinator.server, wall_clock_ms,
            member_url(self._settings, self.to_members),
            SESSION_SECONDS, self._requests.ask,
        )  # fmt: skip
        return self.rows

    async def _check_no_journal(self) -> None:
        """Refuse another coordinator for a cluster that has its PIDs in Kafka.

        Raises:
            DataFolderError: the topic has rows.
        """
        if SERVED_TOPIC not in self._upstream.cluster.view.topics:
            return
        try:
            end = await self._upstream.end_of(TopicPartition(SERVED_TOPIC, 0))
        except UpstreamError as error:
            _log.warning("it is unknown whether this cluster's PIDs are in Kafka",
                         topic=SERVED_TOPIC, error=str(error))  # fmt: skip
            return
        if end:
            raise DataFolderError(
                f"the PIDs of this cluster are in its topic {SERVED_TOPIC}: start without"
                " --zookeeper and without --coordination files. Another coordinator would lease the"
                " same PIDs"
            )

    async def _open_store(self, coordinator: Coordinator) -> None:
        ids = self.coordination.writers
        if ids is None:
            raise AssertionError("every coordinator has writer ids")
        owned: Callable[[], Coroutine[Any, Any, bool]] | None = None
        if self._ownership is not None:
            # Every partition checks this before it refuses a batch: they share one call.
            owned = SharedCall(partial(self._is_owner, self._ownership))
        owns = None if owned is None and self.shared is None else partial(self._owns, owned)
        # Not the log's threads: all of these may be reading, and wait for ids to be looked up.
        self._writers = KafkaWriters(
            self._upstream.fencing, ids, self._coordinator_pool, wall_clock_ms, owns
        )
        if self.shared is not None:
            self._writers.after_take = self._read_fences
        book = await self._pool.run(partial(coordinator.topic_book, self.cluster_id))
        self._kafka = KafkaStore(self._upstream, self._writers, book, self._pool, owned)
        self._kafka.leave = self._leave
        self._kafka.follow_leaders()
        if self._journal is not None:
            self._kafka.first_service = self._journal.first_service
            self._kafka.beginnings = JournalBeginnings(self._journal)
        self.store = self._kafka

    def _open(self) -> tuple[Coordinator, DataDirectory]:
        path = Path(self._settings.data_dir)
        folder = DataDirectory(self._files, path, log_config(self._settings), self._pool)
        return self._open_directory(folder), folder

    # ------------------------------------------------------------------ several active servers

    def _share(self, coordinator: Coordinator) -> None:
        self._members = coordinator.members(self.cluster_id, self.rows)
        self.shared = shared_cluster(
            self._settings, self._files, self._members, coordinator.server, self._coordinator_pool,
            self.to_members,
        )  # fmt: skip
        self.states = HttpStateRequests(self.to_members, self.snapshots.names, self._pool)
        if self.rows is not None:
            self.rows.is_silent = self.shared.is_silent
            self.rows.abstains = self.shared.abstains

    async def _wait_for_stranger(self) -> None:
        """Wait until no server without --shared serves this cluster."""
        logged = ""
        while True:
            try:
                stranger = (await self._pool.run(self._members.read)).stranger
            except MembershipLostError as error:
                raise DataFolderError(str(error)) from error
            except MembersError as error:
                stranger = f"an unknown server ({error})"
            self.waiting = f"standing by: {stranger} serves this cluster alone" if stranger else ""
            self.standing_by = bool(stranger)
            if not stranger:
                return
            if stranger != logged:
                _log.info("standing by: a server without --shared serves this cluster",
                          owner=stranger)  # fmt: skip
                logged = stranger
            await asyncio.sleep(_STAND_BY_SECONDS)

    async def _wait_for_first(self, rows: KafkaJournal, begun: Callable[[], bool]) -> None:
        """Wait for the first server of this cluster, which may start just now, for a time.

        Parameters:
            begun: returns whether it has put what this server needs, as of the last read.
        """
        self.waiting = "the first server of this cluster starts"
        until = time.monotonic() + _FIRST_SECONDS
        while not begun() and time.monotonic() < until:
            await asyncio.sleep(_FIRST_LOOK_SECONDS)
            try:
                await self._coordinator_pool.run(rows.refresh)
            except JournalError as error:
                LINES.write(_log, "warning", "the coordinator's rows cannot be read",
                            kind_of(error), error=str(error))  # fmt: skip
        self.waiting = ""

    async def _owns(
        self, alone: Callable[[], Coroutine[Any, Any, bool]] | None, partition: TopicPartition
    ) -> bool:
        """Return whether this server owns a partition.

        Parameters:
            alone: returns whether it serves the whole cluster; None: several servers are active.

        Raises:
            LogError: this is unknown now.
        """
        if alone is not None:
            return await alone()
        moves = None if self._engine is None else self._engine.moves
        return moves is not None and await moves.owns(partition)

    async def _read_fences(self) -> None:
        if self._engine is not None and self._engine.fences is not None:
            await self._engine.fences.read()

    @override
    async def join(self, engine: Engine) -> None:
        if self.shared is None or engine.moves is None:
            return
        engine.moves.start()
        self.shared.pings.on_topics = self._upstream.stale
        self.shared.on_suspended.append(self._upstream.channels.drop)
        self._upstream.channels.was_suspended = self.shared.was_suspended
        while True:
            try:
                await self.shared.join()
            except MembershipLostError as error:
                raise DataFolderError(str(error)) from error
            except MembersError as error:
                LINES.write(_log, "warning", "this server cannot join the others yet",
                            kind_of(error), error=str(error))  # fmt: skip
                await asyncio.sleep(_STAND_BY_SECONDS)
            else:
                break
        if engine.follower is not None:
            engine.follower.start()
        _log.info("joined the active servers", node_id=self.shared.node_id,
                  servers=len(self.shared.view.members))  # fmt: skip
        self._tasks.append(asyncio.create_task(self._pass_on_loss(self.shared)))

    async def _pass_on_loss(self, shared: SharedCluster) -> None:
        await shared.lost.wait()
        self.loss = shared.loss
        self.lost.set()

    @override
    async def drain(self) -> None:
        if self.shared is not None:
            await self.shared.leave_slots(_DRAIN_SECONDS)

    # ------------------------------------------------------------------ one active server

    async def _wait_until_owned(self, ownership: Ownership) -> None:
        """Wait until no other server serves this cluster, or no other one alone."""
        logged = ""
        while True:
            try:
                # Not in the log's threads: a replay needs all of them for long.
                owner = await self._coordinator_pool.run(ownership.claim)
                self.waiting = f"standing by: {owner} serves this cluster" if owner else ""
            except OwnershipError as error:
                if self._journal is not None and self._journal.ended:
                    raise DataFolderError(self._journal.ended) from error
                self.waiting = f"standing by: the owner of this cluster is unknown: {error}"
                LINES.write(_log, "warning", "standing by: the owner of this cluster is unknown",
                            kind_of(error), error=str(error))  # fmt: skip
                owner = ""
            self.standing_by = bool(self.waiting)
            if not self.waiting:
                return
            if owner and owner != logged:
                _log.info("standing by: another server serves this cluster", owner=owner)
                logged = owner
            await asyncio.sleep(_STAND_BY_SECONDS)

    async def _is_owner(self, ownership: Ownership) -> bool:
        """Whether this server is still the owner.

        Raises:
            LogError: ZooKeeper does not answer, so the owner is unknown.
        """
        try:
            owned = await self._coordinator_pool.run(ownership.still)
        except OwnershipError as error:
            raise LogError(f"the owner of this cluster is not known now: {error}") from error
        if not owned:
            self.loss = "" if self._journal is None else self._journal.ended
            self.lost.set()
        return owned

    async def _watch(self, ownership: Ownership) -> None:
        """Detect that another server is the owner, and show the others that this one is alive."""
        while not self.lost.is_set():
            await asyncio.sleep(_STAND_BY_SECONDS)
            try:
                await self._is_owner(ownership)
            except LogError as error:
                LINES.write(_log, "warning", "the owner of this cluster is unknown",
                            kind_of(error), error=str(error))  # fmt: skip
            except Exception as error:  # noqa: BLE001 - the next look is needed all the same
                LINES.write(_log, "error", "the owner of this cluster is unknown", kind_of(error),
                            error, error=repr(error))  # fmt: skip

    async def _leave(self) -> None:
        """Let another server take over: the last snapshot is done."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        if self._journal is not None:
            await self._journal.release()
        if self._requests is not None:
            await self._requests.close()
        if self.shared is not None:
            self.shared.close()

    async def _reach(self) -> None:
        """Read the cluster's metadata; wait for a cluster that is unavailable.

        Raises:
            DataFolderError: the cluster refuses the connection.
        """
        failures = 0
        since = datetime.now(UTC).isoformat(timespec="seconds")
        while True:
            try:
                await self._upstream.start()
                if self.acls is not None:
                    await self.acls.start(self._upstream.cluster)
            except UpstreamAwayError as error:
                lost = isinstance(error, UpstreamLostError) and not self._settings.upstream_username
                hint = "; does it want SASL?" if lost else ""
                LINES.write(_log, "warning", "Kafka does not answer; waiting for it",
                            (kind_of(error), hint), error=f"{error}{hint}")  # fmt: skip
                failures += 1
                self.waiting = f"Kafka unreachable since {since}: {error}{hint}"
                await asyncio.sleep(_REACH_BACKOFF.seconds(failures))
            except UpstreamError as error:
                raise DataFolderError(f"--upstream {self._settings.upstream}: {error}") from error
            else:
                self.waiting = ""
                return

    def _check_mark(self) -> None:
        """Refuse the data directory of another cluster, or of an embedded log.

        Raises:
            DataFolderError: the directory belongs to another cluster or log.
        """
        path = Path(self._settings.data_dir)
        mark = path / _MARK
        if self._files.exists(mark):
            known = read_file(self._files, mark).decode()
            if known != self.cluster_id:
                raise DataFolderError(
                    f"{path} belongs to cluster {known}, and --upstream"
                    f" {self._settings.upstream} is {self.cluster_id}; name another directory"
                )
            return
        if self._files.exists(path / "logs"):
            raise DataFolderError(
                f"{path} holds a log of its own; name another directory for --log kafka"
            )
        write_aside(self._files, mark, [self.cluster_id.encode()])

    # ------------------------------------------------------------------ serving

    @override
    async def follow(self, engine: Engine) -> None:

        def noted(before: View, now: View) -> None:
            if before.topics != now.topics:
                engine.expect(self._topics())  # before the sync, which may take long
                self._changed.set()

        self._engine = engine
        engine.ask_log = self._upstream.cluster.missing
        self._upstream.cluster.on_change.append(noted)
        self._upstream.on_read_again = self._changed.set
        engine.expect(self._topics())
        self._changed.set()  # sync topics that could not be read at the start
        self._tasks.append(asyncio.create_task(self._follow(engine)))

    def _topics(self) -> dict[str, Topic]:
        topics = served(self._upstream.cluster.view)
        return {each.name: self._kafka.topic_of(each) for each in topics}

    async def _follow(self, engine: Engine) -> None:
        failures = 0
        while True:
            wait = _FOLLOW_BACKOFF.seconds(failures) if failures else _LOOK_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            stopped = any(partition.stopped for partition in engine.partitions())
            if not (self._changed.is_set() or failures or stopped or engine.waits_for_topics):
                continue
            self._changed.clear()
            try:
                await engine.follow(self._topics())
                failures = 0
            except OSError as error:
                LINES.write(_log, "info", "a topic of Kafka is not ready yet", reason=str(error))
                failures += 1
            except Exception as error:  # noqa: BLE001 - other topics are served meanwhile
                LINES.write(_log, "error", "topics of Kafka could not be followed; trying again",
                            kind_of(error), error, error=repr(error))  # fmt: skip
                self._changed.set()
                await asyncio.sleep(_FOLLOW_BACKOFF.max_seconds)

    @override
    def apis(
        self,
        engine: Engine,
        config: KafkaListenerConfig,
        budget: MemoryBudget,
    ) -> Apis:
        return ForwardedApis(engine, config, self._upstream, self._writers)

    @override
    def brokers(self) -> Sequence[Broker]:
        cluster = self._upstream.cluster
        return [
            Broker(number, f"{host}:{port}", cluster.connected(number))
            for number, (host, port) in sorted(cluster.view.brokers.items())
        ]

    @override
    async def close(self) -> None:
        if self.shared is not None:
            await self.shared.leave()
        if self._engine is not None and self._engine.follower is not None:
            await self._engine.follower.stop()
        if self.states is not None:
            await self.states.close()
        if self.acls is not None:
            await self.acls.close()
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def _kafka_appender(log: PartitionLog, partition: AppendTarget) -> Appender:
    return KafkaAppender(log, partition, wall_clock_ms)
