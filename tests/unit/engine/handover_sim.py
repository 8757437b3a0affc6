"""Two active servers in front of one partition of a Kafka, whose slot changes hands.

Both are the engine itself; Kafka, the coordinator and the threads are simulated. Every step is one
thing that happens somewhere, and a seed draws which one: a server's thread reads the map or the
fences, Kafka answers a question or stores a batch, a client sends, the slot moves, a server is
suspended, goes on, or is killed. The clock stands still, so nothing hangs on a time.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextvars import Context, ContextVar, copy_context
from functools import partial
from random import Random
from typing import Any, Final

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from typing_extensions import override

from pidlease.coordination.fence_log import Fence
from pidlease.coordination.file.file_names import FileNames
from pidlease.coordination.members import Member
from pidlease.coordination.name_bindings import Binding
from pidlease.coordination.pid_sequence import Coordination, PidSequence
from pidlease.coordination.writer_ids import WriterOf
from pidlease.core.blocks import PidBlock
from pidlease.core.log_config import LogConfig
from pidlease.core.pid import Policy, make_pid
from pidlease.core.slots import SlotMap, slot_of
from pidlease.engine import state_follower
from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.appenders.group_appender import Appender, AppendTarget
from pidlease.engine.appenders.kafka_appender import KafkaAppender
from pidlease.engine.batch_identity import batch_of, identified
from pidlease.engine.engine import Engine, EngineConfig
from pidlease.engine.named_leases import NameBusyError
from pidlease.engine.pending_batches import Submitted
from pidlease.engine.shared_cluster import SharedCluster
from pidlease.engine.state_feeds import StateFeeds, UnknownFeedError
from pidlease.engine.state_follower import FeedGoneError, FollowError, StateRequests
from pidlease.kafka.client.transactions import Fencing
from pidlease.kafka.errors import UpstreamAwayError
from pidlease.kafka.records.identity_header import Identity, encode_identity
from pidlease.kafka.records.record_batch import read_header
from pidlease.kafka.records.writer_batch import Writer, crc_of_send, under_writer
from pidlease.log.kafka.kafka_writers import KafkaWriters
from pidlease.log.ports import LATE_MS, AppendReceiver, Forwarded, NewBatch, PartitionLog
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.storage.errors import LogError
from pidlease.storage.snapshots import SnapshotStore, TopicPartition
from pidlease.storage.state_updates import FeedRequest, StateUpdates
from pidlease.storage.topics.topic_store import Topic
from tests.sim.batches import TIME_MS, make_batch
from tests.sim.files import SimFiles
from tests.sim.pool import SeededPool
from tests.unit.engine.fakes import settle
from tests.unit.engine.kafka_sim import OLD_EPOCH, WRITER_ID, SimKafka, SimLog, outcome_of
from tests.unit.engine.server import DATA, NEVER
from tests.unit.engine.shared_memory import Coordinator, Link, MemoryFences

PLACE: Final = TopicPartition("t", 0)
NODES: Final = (1, 2)
_LEASE_MS: Final = 10**9
#: Batches of a producer in flight.
_DEPTH: Final = 3
_RETRIABLE: Final = (Status.FAILED, Status.STOPPED, Status.NOT_OWNER, Status.SESSION_ENDED)
#: This Kafka loses nothing.
_NEVER_CUT: Final = 2**62

#: The server on whose behalf code runs.
_SERVER: ContextVar["SimServer"] = ContextVar("server")


class HeldPool(SeededPool):
    """Does its jobs when the world says so."""

    @override
    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._waiting.append((work, done))

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def do_one(self) -> None:
        self._do_one()


class SharedDirectory(DataDirectory):
    """A data directory whose only partition is Kafka's."""

    made_by_others = True
    open_log: Callable[[], PartitionLog]

    @override
    def open_partition(self, topic: Topic, partition: int, recovery_offset: int) -> Any:
        return self.open_log()

    @override
    def ends_of_epochs(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return dict.fromkeys(epochs, _NEVER_CUT)


class MemorySequence(PidSequence):
    """The one sequence of PIDs."""

    shared = True

    def __init__(self) -> None:
        self._blocks: list[PidBlock] = []

    def blocks(self, beyond: int = 0) -> list[PidBlock]:
        return list(self._blocks)

    def take(self, at_least: int = 1) -> PidBlock:
        block = PidBlock(100 * len(self._blocks) + 1, 100, TIME_MS)
        self._blocks.append(block)
        return block


class MemoryIds:
    """The recorded ids of writers."""

    def __init__(self) -> None:
        self.recorded: dict[int, WriterOf] = {}

    def all(self) -> dict[int, WriterOf]:
        return dict(self.recorded)

    def add(self, pid: int, writer_of: WriterOf) -> None:
        self.recorded[pid] = writer_of


class SimFencing(Fencing):
    """The coordinator of transactions; each answer comes when the world says so."""

    def __init__(self, server: "SimServer") -> None:
        self._server = server

    async def raise_epoch(self, place: TopicPartition) -> Writer:
        await self._server.ask()
        kafka = self._server.world.kafka
        kafka.epoch += 1
        writer = Writer(WRITER_ID, kafka.epoch)
        await self._server.ask()
        return writer

    async def mark(self, place: TopicPartition, writer: Writer) -> None:
        await self._server.ask()
        if self._server.world.kafka.epoch != writer.epoch:
            raise UpstreamAwayError("fenced meanwhile")
        self._server.world.markers.append(writer.epoch)

    async def current(self, place: TopicPartition) -> Writer | None:
        await self._server.ask()
        return Writer(WRITER_ID, self._server.world.kafka.epoch)


class HandoverLog(SimLog):
    """The partition's log at one server, opened anew for each takeover."""

    def __init__(self, server: "SimServer") -> None:
        super().__init__(server)  # type: ignore[arg-type] # it has what the log needs of a world
        self._server = server
        self.writer_ms = 10**9

    @override
    def send(self, producer: int, new: NewBatch, receiver: AppendReceiver) -> None:
        # As the channels to Kafka do, below the engine.
        suspended = "this server was suspended" if self._server.cluster.was_suspended() else ""
        if reason := self.stopped or suspended:
            answer = Forwarded(0, -1, definite=True, reason=reason)
            asyncio.get_running_loop().call_soon(receiver.answered, new, answer)
            return
        super().send(producer, new, receiver)

    @override
    async def take(self, doubt_ms: int) -> Writer:
        return await self._server.writers.take(PLACE, doubt_ms)

    @override
    async def owned(self) -> bool:
        return bool(await self._server.writers.owned(PLACE))

    @override
    async def current_writer(self) -> Writer | None:
        return await self._server.writers.current(PLACE)


class SimStates(StateRequests):
    """Asks the other server for the states of its producers; each message takes steps."""

    def __init__(self, server: "SimServer") -> None:
        self._server = server
        #: The answers that have not come.
        self.waiting: list[asyncio.Future[Any]] = []

    async def pull(self, member: Member, request: FeedRequest) -> StateUpdates:
        found = await self._answer(member, lambda feeds: feeds.pull(request))
        assert isinstance(found, StateUpdates)
        return found

    async def offsets(self, member: Member, names: Sequence[TopicPartition]) -> list[int]:
        async def offsets(feeds: StateFeeds) -> list[int]:
            return feeds.offsets(names)

        return list(await self._answer(member, offsets))

    async def _answer(
        self, member: Member, ask: Callable[[StateFeeds], Coroutine[Any, Any, Any]]
    ) -> Any:
        other = self._server.world.servers[member.node_id]
        answer = asyncio.get_running_loop().create_future()

        async def serve() -> None:
            feeds = other.engine.feeds
            assert feeds is not None
            try:
                found = await ask(feeds)
            except (UnknownFeedError, LogError) as error:
                gone = isinstance(error, UnknownFeedError)
                failure = FeedGoneError(str(error)) if gone else FollowError(str(error))
                _fail(answer, failure)
            else:
                if not answer.done():
                    answer.set_result(found)

        def begin() -> None:
            other.task(serve())

        other.inbox.append(begin)
        self.waiting.append(answer)
        try:
            found = await answer
        finally:
            self.waiting.remove(answer)
        try:
            await self._server.ask()
        except LogError as error:
            self._server.world.note("lost answer")
            raise FollowError("the answer is lost") from error
        return found

    def give_up(self) -> None:
        _fail(self._server.random.choice(self.waiting), FollowError("no answer"))


class SimServer:
    """One of the two servers, in one of its lives."""

    def __init__(self, world: "HandoverWorld", node: int, files: SimFiles) -> None:
        self.world, self.node, self.files = world, node, files
        self.random, self.kafka = world.random, world.kafka
        self.gates: deque[asyncio.Event] = deque()
        self.logs: list[HandoverLog] = []
        #: Requests of clients that it has not read.
        self.inbox: deque[Callable[[], None]] = deque()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.suspended = False
        self.pool = HeldPool(asyncio.get_running_loop(), self.random)
        self.context: Context = copy_context()
        self.context.run(_SERVER.set, self)
        self.refreshing: asyncio.Task[Any] | None = None
        self.states = SimStates(self)
        self.following: Any = None
        self.pulling: asyncio.Task[Any] | None = None

    @property
    def faults(self) -> bool:
        return self.world.faults

    async def ask(self) -> None:
        """Wait until Kafka answers a question."""
        gate = asyncio.Event()
        self.gates.append(gate)
        await gate.wait()
        if self.faults and self.random.random() < 0.05:
            raise LogError("no answer")

    def task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(work, context=self.context)

    async def start(self) -> None:
        world = self.world
        folder = SharedDirectory(self.files, DATA, LogConfig(1200, retention_ms=-1), self.pool)
        folder.open_log = self._open
        self.snapshots = SnapshotStore(self.files, folder.snapshots)
        coordination = Coordination(world.sequence, world.names, fences=world.fence_log)
        own = Member(self.node, f"host:{self.node}", "127.0.0.1", 9000 + self.node, "http://x")
        self.cluster = SharedCluster(
            Link(world.shared), own, self.pool, 10.0, lambda: world.shared.now
        )
        self.writers = KafkaWriters(
            SimFencing(self), world.ids, self.pool, lambda: world.now_ms, self._owns
        )
        self.writers.after_take = self._read_fences
        self.engine = Engine(
            folder, self.snapshots, coordination, self.pool,
            EngineConfig(lease_ms=_LEASE_MS, maintenance=NEVER), lambda: world.now_ms,
            appends=self._appender, shared=self.cluster, states=self.states,
        )  # fmt: skip
        await self.engine.start()
        assert self.engine.moves is not None
        self.engine.moves.start()
        await self.cluster.join()
        await self.engine.follow({"t": Topic("t", "1" * 32, 1, {})})
        other = world.shared.members[next(node for node in NODES if node != self.node)]
        held = state_follower._Held(self.engine._table)
        self.following = state_follower._OwnerFeed(self.states, other, held)
        self.following.wanted = [PLACE]

    async def _pull(self) -> None:
        assert self.engine.follower is not None
        self.engine.follower._by_owner[0] = self.following
        try:
            await self.following.pull()
        except FollowError:
            return
        if self.following.followed:
            self.world.note("followed")

    def _open(self) -> HandoverLog:
        log = HandoverLog(self)
        self.logs.append(log)
        self.writers.open_anew(PLACE)
        return log

    def _appender(self, log: PartitionLog, partition: AppendTarget) -> Appender:
        return KafkaAppender(log, partition, lambda: self.world.now_ms, self._rest)

    async def _rest(self, _: float) -> None:
        gate = asyncio.Event()
        self.gates.append(gate)
        await gate.wait()

    async def _owns(self, place: TopicPartition) -> bool:
        assert self.engine.moves is not None
        return await self.engine.moves.owns(place)

    async def _read_fences(self) -> None:
        assert self.engine.fences is not None
        await self.engine.fences.read()

    async def where(self, pid: int) -> int:
        """Answer where a PID continues, as a lease is answered."""
        await self._read_fences()
        await self.engine.naming.landed(pid)
        partition = self.engine.partition("t", 0)
        if partition is None or not await partition.sure_of(pid):
            raise LogError("it is not known")
        state = partition.producer(pid)
        return 0 if state is None else state.high + 1

    def events(self) -> Iterator[Callable[[], None]]:
        """What may happen at it now."""
        if self.cluster.was_suspended():
            yield self._step_down
        if self.pool.waits:
            yield self.pool.do_one
        if self.gates:
            yield self._answer_question
        if self.inbox:
            yield self._read_request
        if any(log.back for log in self.logs):
            yield self._answer
        if self.refreshing is None or self.refreshing.done():
            yield self._refresh
        if self.states.waiting and self.random.random() < 0.05:
            yield self.states.give_up
        idle = self.pulling is None or self.pulling.done()
        if idle and self.following is not None and self.random.random() < 0.3:
            yield self._begin_pull

    def run(self, event: Callable[[], None]) -> None:
        self.context.run(event)

    def _step_down(self) -> None:
        """The loop's timer comes: so much time has passed since the last one."""
        self.cluster._drift("this server was suspended")
        self.note_alive()

    def note_alive(self) -> None:
        now = self.world.shared.now
        self.cluster._alive_at = self.cluster._read_at = self.cluster._refreshed_at = now

    def _answer_question(self) -> None:
        self.gates.popleft().set()

    def _read_request(self) -> None:
        self.inbox.popleft()()

    def _refresh(self) -> None:
        self.refreshing = self.task(self.cluster.refresh())

    def _begin_pull(self) -> None:
        self.pulling = self.task(self._pull())

    def _answer(self) -> None:
        log = self.random.choice([each for each in self.logs if each.back])
        pid = self.random.choice(sorted(log.back))
        told, answer = log.back[pid].popleft()
        if not log.back[pid]:
            del log.back[pid]
        told(answer)

    def arrivals(self) -> list[tuple[HandoverLog, int]]:
        return [(log, pid) for log in self.logs for pid, queue in sorted(log.out.items()) if queue]

    def cut(self, log: HandoverLog, pid: int) -> None:
        """A connection ends: what was on it may still be stored, a front part of it and late."""
        reached = self.random.randrange(4)
        for number, (new, told) in enumerate(log.out.pop(pid, ())):
            if number < reached:
                self.world.late.append(bytes(new.data))
            log.back.setdefault(pid, deque()).append((told, Forwarded(0, -1, reason="cut")))

    def kill(self) -> None:
        for log, pid in self.arrivals():
            self.cut(log, pid)
        for each in self.tasks:
            each.cancel()


class Producer:
    """A client in one of its lives: batches of one record, some in flight, retries in order.

    Parameters:
        generation: rises with each grant of its name.
        first: the number with which it begins.
    """

    def __init__(self, world: "HandoverWorld", pid: int, generation: int, first: int) -> None:
        self.world, self.pid, self.generation = world, pid, generation
        self.first = self._next = first
        self.acked: dict[int, int] = {}
        self.fenced = False
        self._server: SimServer | None = None
        self._in_flight: dict[int, object] = {}
        self._held = False

    @property
    def done(self) -> bool:
        return self.first + len(self.acked) >= self.world.batches

    @property
    def can_send(self) -> bool:
        if self.fenced or self.done:
            return False
        if self._held:
            return not self._in_flight
        return self._next < self.world.batches and len(self._in_flight) < _DEPTH

    def begin_at(self, first: int) -> None:
        """Continue there; nothing was sent before."""
        self.first = self._next = first

    def send(self) -> None:
        if self._held:
            self._held = False
            self._next = min(set(range(self.first, self.world.batches)) - self.acked.keys())
        number, token = self._next, object()
        self._next += 1
        if number in self.acked:
            return
        self._in_flight[number] = token
        server = self._server
        if server is None or len(self._in_flight) == 1 or self.world.random.random() < 0.1:
            # Another connection, perhaps with batches in flight on the one before.
            server = self._server = self.world.server_for_client()
        server.inbox.append(partial(self._produce, server, number, partial(self._told, token)))

    def _produce(
        self, server: SimServer, number: int, told: Callable[[int, Outcome], None]
    ) -> None:
        done = partial(told, number)
        partition = server.engine.partition("t", 0)
        if partition is None:
            done(Outcome(Status.NOT_OWNER))
            return
        value = b"%d/%d/%d" % (self.pid, self.generation, number)
        if self.world.is_kafka_client(self.pid):
            data = make_batch([value], pid=self.pid, epoch=0, first=number)
            header = read_header(data)
            partition.produce(Submitted(self.pid, header, data, batch_of(header), done))
            return
        identity = Identity(self.pid, "", self.generation, number, number)
        builder: Any = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
        builder.append(0, TIME_MS, None, value, [("pidlease", encode_identity(identity))])
        data = bytearray(builder.build())
        header = under_writer(read_header(data), data)
        batch = identified(identity, header, crc_of_send(header, data))
        partition.produce(Submitted(self.pid, header, data, batch, done))

    def _told(self, token: object, number: int, outcome: Outcome) -> None:
        if self._in_flight.get(number) is not token:
            return  # the response is to a connection that it has given up
        del self._in_flight[number]
        if outcome.status in (Status.APPENDED, Status.DUPLICATE):
            self.acked[number] = outcome.offset
        elif outcome.status is Status.FENCED and self.world.newest(self.pid) is not self:
            self.fenced = True
            self.world.note("fenced producer")
        else:
            ahead = outcome.status is Status.GAP and not self._has_before(number)
            if outcome.status not in _RETRIABLE and not ahead:
                self.world.wrong.append(f"{number} of {self.pid}: {outcome}")
            self._held = True

    def _has_before(self, number: int) -> bool:
        """Whether all before a batch are acknowledged; if not, it went by another server."""
        return all(each in self.acked for each in range(self.first, number))

    def connect_again(self) -> None:
        """Its requests stay where they are; their responses are ignored."""
        if self._in_flight:
            self._in_flight.clear()
            self._held = True


class HandoverWorld:
    """All of it.

    Parameters:
        random: draws what happens next.
        kafkas: how many Kafka clients.
        named: how many producers with names.
        batches: of each.
        calm: how many times more rarely something goes wrong.
    """

    def __init__(
        self, random: Random, kafkas: int, named: int, batches: int, calm: int = 1
    ) -> None:
        self.random, self.batches = random, batches
        self.calm = calm
        self.faults = True
        self.now_ms = TIME_MS
        self.kafka = SimKafka()
        self.markers: deque[int] = deque()
        self.late: deque[bytes] = deque()
        self.shared, self.fence_log = Coordinator(), MemoryFences()
        self.sequence, self.ids = MemorySequence(), MemoryIds()
        self.names = FileNames(SimFiles(1), DATA / "names")
        self.happened: dict[str, int] = {}
        self.wrong: list[str] = []
        self._kafkas, self._named = kafkas, named
        self._granting: set[int] = set()
        #: The producers that know where to continue.
        self.told: set[int] = set()

    def note(self, what: str) -> None:
        self.happened[what] = self.happened.get(what, 0) + 1

    def is_kafka_client(self, pid: int) -> bool:
        return pid < make_pid(Policy.KAFKA, self._kafkas + 1) and pid >= make_pid(Policy.KAFKA, 1)

    async def start(self) -> "HandoverWorld":
        asyncio.get_running_loop().set_task_factory(_task_of_server)  # type: ignore[arg-type]
        self.servers = {node: SimServer(self, node, SimFiles(1)) for node in NODES}
        for each in self.servers.values():
            own = Member(each.node, f"host:{each.node}", "127.0.0.1", 9000, "http://x")
            self.shared.members[each.node] = own._replace(joined=each.node)
        self.assign(NODES[0])
        for each in self.servers.values():
            await self._start(each)
        pids = [make_pid(Policy.KAFKA, number) for number in range(1, self._kafkas + 1)]
        strict = range(self._kafkas + 1, self._kafkas + self._named + 1)
        pids += [make_pid(Policy.STRICT, number) for number in strict]
        #: By PID, all lives of a producer; the last one is the newest.
        self.producers = {pid: [Producer(self, pid, 0, 0)] for pid in pids}
        for pid in pids[self._kafkas :]:
            self._bind(pid, 0)
        return self

    async def _start(self, server: SimServer) -> None:
        starting = server.task(server.start())
        while not starting.done():
            if server.pool.waits:
                server.run(server.pool.do_one)
            await settle()
        await starting

    def newest(self, pid: int) -> Producer:
        return self.producers[pid][-1]

    def owner(self) -> SimServer:
        return self.servers[self.shared.slots.owner(PLACE)]

    def server_for_client(self) -> SimServer:
        """Mostly the owner by the map; clients learn late, and may reach the other one."""
        if self.faults and self.random.random() < 0.3:
            return self.servers[self.random.choice(NODES)]
        return self.owner()

    # ------------------------------------------------------------------ what may happen

    def assign(self, node: int) -> None:
        slot, before = slot_of(*PLACE), self.shared.slots
        owners, epochs = list(before.owners), list(before.epochs)
        owners[slot] = node
        epochs[slot] += 1
        self.shared.slots = SlotMap(tuple(owners), tuple(epochs), NODES, before.version + 1)

    async def step(self) -> None:
        """One thing happens."""
        if self.faults and self.owner().arrivals() and self.random.random() < 0.01 / self.calm:
            await self._suspend(self.owner())
            return
        if self.faults and self.random.random() < 0.02 / self.calm:
            rare = [self._move, self._suspend, self._grant] * 2
            rare += [self._kill, self._cut, self._connect_again, self._snapshot]
            rare += [self._wait] * self.calm
            await self.random.choice(rare)()
            return
        events: list[Callable[[], None]] = []
        for server in self.servers.values():
            if not server.suspended:
                events += [partial(server.run, each) for each in server.events()]
            if not server.suspended or self.random.random() < 0.1:
                events += [partial(self._arrive, server, *each) for each in server.arrivals()]
            elif self.random.random() < 0.05:
                await self._connect_again()  # whoever waits for a suspended server gives up
        if self.markers and self.random.random() < 0.3:
            events.append(self._mark)
        if self.late and self.random.random() < 0.05:
            events.append(self._late)
        lives = (each for lives in self.producers.values() for each in lives)
        events += [each.send for each in lives if each.can_send]
        if events:
            self.random.choice(events)()
        await settle()

    def _arrive(self, server: SimServer, log: HandoverLog, pid: int) -> None:
        """A batch reaches Kafka; also one that a suspended server has sent."""
        new, told = log.out[pid].popleft()
        code, offset = self.kafka.take(bytes(new.data))
        if code == OLD_EPOCH:
            self.note("fenced writer")
        log.back.setdefault(pid, deque()).append((told, outcome_of(code, offset)))

    def _mark(self) -> None:
        self.kafka.mark(self.markers.popleft())

    async def _move(self) -> None:
        self.note("moved")
        self.assign(next(node for node in NODES if node != self.owner().node))

    async def _suspend(self, server: SimServer | None = None) -> None:
        """SIGSTOP of a server, or SIGCONT: if it owns the partition, that moves meanwhile."""
        server = server or self.servers[self.random.choice(NODES)]
        server.suspended = not server.suspended
        if server.suspended:
            self.note("suspended")
            for each in self.servers.values():  # one of them is there
                each.suspended = each is server
            if server is self.owner():
                await self._move()

    async def _kill(self) -> None:
        """Kill -9 of a server, and its next life."""
        server = self.servers[self.random.choice(NODES)]
        if server.suspended:
            return
        self.note("killed")
        server.kill()
        await settle()
        again = SimServer(self, server.node, server.files.process_death())
        self.servers[server.node] = again
        if self.owner() is again:
            await self._move()
        for lives in self.producers.values():
            for each in lives:
                each.connect_again()
        self._granting.clear()
        await self._start(again)

    async def _wait(self) -> None:
        """So much time passes that batches of former owners have arrived at Kafka."""
        others = (each for each in self.servers.values() if each is not self.owner())
        if not self.late and not any(each.arrivals() for each in others):
            self.note("waited")
            self.now_ms += LATE_MS
            self.shared.now += LATE_MS / 1000
            for server in self.servers.values():
                if not server.suspended:
                    server.note_alive()
                for partition in server.engine.partitions():
                    if not partition.log.stopped:
                        server.context.run(partition.settle)

    async def _cut(self) -> None:
        found = [(server, *each) for server in self.servers.values() for each in server.arrivals()]
        if found:
            server, log, pid = self.random.choice(found)
            self.note("cut")
            server.cut(log, pid)

    def _late(self) -> None:
        """A broker comes to a request whose connection is gone."""
        code, _ = self.kafka.take(self.late.popleft())
        self.note("late, and refused" if code else "late")

    async def _connect_again(self) -> None:
        lives = self.random.choice([*self.producers.values()])
        self.random.choice(lives).connect_again()

    async def _snapshot(self) -> None:
        server = self.servers[self.random.choice(NODES)]
        if not server.suspended:
            server.task(_quietly(server.engine.maintenance.snapshot()))

    # ------------------------------------------------------------------ names

    def _bind(self, pid: int, generation: int) -> None:
        """A grant at whichever server: the binding, and an entry of the fence log."""
        name, binding = f"name {pid}", Binding(pid, generation, -1, TIME_MS)
        before = self.names.all().get(name)
        self.names.change(name, before, binding)
        self.fence_log.entries.append(Fence(name, binding))

    async def _grant(self) -> None:
        """A name is granted again, while its producer goes on; the owner is asked where."""
        pid = self.random.choice(list(self.producers)[self._kafkas :])
        newest = self.newest(pid)
        if newest.done or pid in self._granting:
            return
        generation = newest.generation + 1
        self._bind(pid, generation)
        self.note("granted")
        # It sends nothing until it knows where to continue.
        self.producers[pid].append(waiting := Producer(self, pid, generation, self.batches))
        self._granting.add(pid)
        self._ask_where(waiting)

    def _ask_where(self, waiting: Producer) -> None:
        server = self.server_for_client()

        async def ask() -> None:
            try:
                first = await server.where(waiting.pid)
            except (LogError, NameBusyError):
                self._granting.discard(waiting.pid)
                return
            self._granting.discard(waiting.pid)
            if waiting.first == self.batches and not waiting.acked:
                waiting.begin_at(first)
                self.told.add(id(waiting))

        def begin() -> None:
            server.task(ask())

        server.inbox.append(begin)

    # ------------------------------------------------------------------ to the end, and looked at

    async def run(self, steps: int) -> None:
        """So many steps with faults, and then without until all have finished."""
        for _ in range(steps):
            await self.step()
            self._ask_again()
        self.faults = False
        for each in self.servers.values():
            each.suspended = False
        for _ in range(60_000):
            if all(self._finished(pid) for pid in self.producers):
                break
            await self.step()
            self._ask_again()
        else:
            raise AssertionError("stuck")
        while self.late:
            self._late()
        for each in self.servers.values():
            each.kill()
        await settle()

    def _finished(self, pid: int) -> bool:
        newest = self.newest(pid)
        return newest.done and (newest.generation == 0 or id(newest) in self.told)

    def _ask_again(self) -> None:
        for pid in list(self.producers)[self._kafkas :]:
            newest = self.newest(pid)
            if newest.generation and id(newest) not in self.told and pid not in self._granting:
                self._granting.add(pid)
                self._ask_where(newest)

    def check(self) -> None:
        """Each number once and in order, with what was acknowledged, and no fenced producer."""
        assert not self.wrong, self.wrong[:3]
        rows: dict[int, list[tuple[int, int, int]]] = {pid: [] for pid in self.producers}
        for header, data in zip(self.kafka.stored, self.kafka.data, strict=True):
            for record in DefaultRecordBatch(data) if data else ():
                pid, generation, number = map(int, record.value.decode().split("/"))
                rows[pid].append((number, generation, header.base_offset + record.offset))
        for pid, found in rows.items():
            assert [number for number, _, _ in found] == list(range(self.batches)), (pid, found)
            generations = [generation for _, generation, _ in found]
            assert generations == sorted(generations), f"a fenced producer of {pid} has written"
            for life in self.producers[pid]:
                for number, offset in life.acked.items():
                    _, generation, at = found[number]
                    lost = f"{number} of {pid}, generation {life.generation}"
                    assert generation == life.generation, f"acknowledged and not there: {lost}"
                    assert offset in (-1, at), f"acknowledged elsewhere: {lost}"


def _task_of_server(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    """Make a task, and note at which server it runs, so that a kill ends it."""
    context: Context | None = options.get("context")
    server = context.get(_SERVER) if context is not None else _SERVER.get(None)
    task = asyncio.Task(work, loop=loop, **options)
    if server is not None:
        server.tasks.add(task)
        task.add_done_callback(server.tasks.discard)
    return task


def _fail(answer: asyncio.Future[Any], failure: Exception) -> None:
    if not answer.done():
        answer.set_exception(failure)


async def _quietly(snapshot: Coroutine[Any, Any, Any]) -> None:
    """A snapshot that the log or the coordinator does not permit now is not written."""
    try:
        await snapshot
    except (LogError, OSError):
        return
