"""A small Kafka broker with the real judge, and faults on order."""

import asyncio
import struct
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from random import Random
from typing import Any, NamedTuple, Self

from aiokafka.protocol.admin import ApiVersionResponse_v0
from aiokafka.protocol.metadata import MetadataRequest_v5, MetadataResponse_v5
from aiokafka.protocol.produce import ProduceRequest_v8, ProduceResponse_v8
from aiokafka.record.default_records import DefaultRecordBatch
from kio.schema.errors import ErrorCode

from pidlease.core.judge import Age, Kind, judge
from pidlease.core.pid import number_of, policy_of
from pidlease.core.rules import Rules, rules_of
from pidlease.core.state import Batch, ProducerState, fold
from pidlease.kafka.api import API_API_VERSIONS, FEATURE
from pidlease.kafka.codec.messages import Response
from pidlease.kafka.records.identity_header import Identity, decode_identity
from pidlease.testing.loopback_ports import LOOPBACK
from tests.client.fake_leases import FakeLeases, Place

_NOT_LEADER = 6
_PRODUCE, _METADATA, _VERSIONS = 0, 3, 18
_CODES = {Kind.GAP: 45, Kind.OVERLAP: 45, Kind.FENCED: 47, Kind.MALFORMED: 87, Kind.UNKNOWN: 59}


class Fault(NamedTuple):
    """What happens to a Produce request.

    Attributes:
        kind: "cut before", "cut after", "refuse" (with a code, not stored), "stored but" (with a
            code, stored all the same), "late" (by so many seconds; -1: until `release` is set).
    """

    kind: str
    code: int = 0
    seconds: float = 0.0


class RandomFaults:
    """Faults of some requests, at random, until there were enough of them."""

    def __init__(self, random: Random, kinds: Sequence[Fault], rate: float, most: int) -> None:
        self._random = random
        self._kinds = kinds
        self._rate = rate
        self.left = most

    def __call__(self, _: int) -> Fault | None:
        if not self.left or self._random.random() >= self._rate:
            return None
        self.left -= 1
        seconds = self._random.choice((0, 0, 0.002))
        return self._random.choice(self._kinds)._replace(seconds=seconds)


class Came(NamedTuple):
    """A batch as it came, and what was answered."""

    place: Place
    identity: Identity
    data: bytes
    code: int
    connection: int


@dataclass
class Log:
    """One partition."""

    values: list[bytes | None] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)
    states: dict[int, ProducerState] = field(default_factory=dict)
    #: For a PID that failed: until this first sequence comes again, nothing behind it goes in.
    held: dict[int, int] = field(default_factory=dict)


class FakeBroker:
    """Listens on a port of its own while it is entered.

    Attributes:
        fault: asked for each Produce request: what is to happen to it; None: nothing.
        slow: how many seconds it takes before it looks at the next Produce of a connection.
        look: by node: it looks at none before this is set.
        came: every batch.
        logs: what is stored.
        versions: what it says it takes.
        leader: the node, from 1, that has all partitions.
        client_ids: that requests came with.
        described: topics that metadata was requested of; None stands for all.
        is_pidlease: whether it says that it is pidlease; None: it is a Kafka before 2.4.
        auto_create: whether a request for metadata creates topics, if it allows that.
    """

    def __init__(self, leases: FakeLeases, topics: dict[str, int], nodes: int = 1) -> None:
        self.leases = leases
        self.topics = topics
        self.logs: dict[Place, Log] = {}
        self.came: list[Came] = []
        self.done: Counter[str] = Counter()
        self.fault: Callable[[int], Fault | None] = lambda _: None
        self.slow: Callable[[], float] = lambda: 0
        self.forgets_offsets = False
        self.versions = [(0, 3, 8), (3, 0, 5), (18, 0, 0)]
        self.requests = 0
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self.leader = 1
        self.client_ids: set[str] = set()
        self.described: set[str | None] = set()
        self.auto_create = False
        self.is_pidlease: bool | None = True
        self.release = asyncio.Event()
        self.look: dict[int, asyncio.Event] = {}
        self.open = asyncio.Event()
        self.open.set()
        self._servers: list[asyncio.Server] = []
        self._ports = [0] * nodes

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.go_away()

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self._ports[0]}"

    async def listen(self) -> None:
        for node, port in enumerate(self._ports, 1):
            server = await asyncio.start_server(partial(self._serve, node), LOOPBACK, port)
            self._servers.append(server)
            self._ports[node - 1] = server.sockets[0].getsockname()[1]

    async def go_away(self) -> None:
        """Close the port and all connections; `listen` comes back."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    def values(self, topic: str = "t", partition: int = 0) -> list[bytes | None]:
        return self.log((topic, partition)).values

    def log(self, place: Place) -> Log:
        return self.logs.setdefault(place, Log())

    # ------------------------------------------------------------------ the wire

    async def _serve(
        self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.connections += 1
        connection = _Connection(self, writer, self.connections, node)
        self._writers.add(writer)
        sender = asyncio.create_task(connection.send_all())
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                if frame[:2] == b"\0\0":
                    await self.look.get(node, self.open).wait()
                    await asyncio.sleep(self.slow())
                if not connection.take(frame):
                    break
        except (EOFError, OSError):
            pass
        finally:
            sender.cancel()
            self._writers.discard(writer)
            writer.transport.abort()

    def api_versions(self, version: int) -> bytes:
        assert version == 3
        if self.is_pidlease is None:
            old: bytes = ApiVersionResponse_v0(35, [(18, 0, 2)]).encode()
            return old
        response = Response(API_API_VERSIONS, 3)
        feature = response.part("SupportedFeatureKey", name=FEATURE, min_version=1, max_version=1)
        encoded = response.encode(
            0,
            error_code=ErrorCode.none,
            api_keys=tuple(
                response.part("ApiVersion", api_key=key, min_version=low, max_version=high)
                for key, low, high in self.versions
            ),
            **({"supported_features": (feature,)} if self.is_pidlease else {}),
        )
        return encoded[4:]  # the correlation id

    def metadata(self, body: BytesIO) -> bytes:
        request = MetadataRequest_v5.decode(body)
        named = request.topics
        self.described.update([None] if named is None else named)
        if self.auto_create and request.allow_auto_topic_creation:
            for each in named:
                self.topics.setdefault(each, 1)
        wanted = list(self.topics) if named is None else named
        topics: list[Any] = [
            (0 if each in self.topics else 3, each, False,
             [(0, number, self.leader, [1], [1], []) for number in range(self.topics.get(each, 0))])
            for each in wanted
        ]  # fmt: skip
        brokers = [(node, LOOPBACK, port, None) for node, port in enumerate(self._ports, 1)]
        answer: bytes = MetadataResponse_v5(0, brokers, "fake", 1, topics).encode()
        return answer

    # ------------------------------------------------------------------ judging

    def judged(self, place: Place, data: bytes, failed: set[Any], connection: int) -> list[Any]:
        """Judge a batch, and store it."""
        identity, count, header = _identity(data)
        code, offset, message = self._judge(place, identity, count, header, failed)
        self.came.append(Came(place, identity, data, code, connection))
        return [place[1], code, offset, -1, 0, [], message]

    def refused(
        self, place: Place, data: bytes, code: int, failed: set[Any], connection: int
    ) -> list[Any]:
        """Store nothing, nor anything behind it."""
        identity, _, _ = _identity(data)
        self.log(place).held.setdefault(identity.pid, identity.first)
        failed.add((identity.pid, place))
        self.came.append(Came(place, identity, data, code, connection))
        return [place[1], code, -1, -1, 0, [], "not now"]

    def _judge(
        self, place: Place, identity: Identity, count: int, records: list[Any], failed: set[Any]
    ) -> tuple[int, int, str | None]:
        pid, log = identity.pid, self.log(place)
        rules = rules_of(pid)
        assert rules is not None
        if rules.holes and (pid, place) in failed:
            return 13, -1, "an earlier one failed"
        batch = Batch(identity.generation, identity.first, identity.last, count)
        if not rules.holes and (held := log.held.get(pid)) is not None:
            if identity.first > held:
                return 19, -1, "one before it failed"
            del log.held[pid]
        code, offset, message = self._verdict(place, pid, batch, rules)
        if code == 0 and message is None:
            offset = len(log.values)
            log.values += [each.value for each in records]
            log.records += records
            log.states[pid] = fold(rules, log.states.get(pid), batch, offset, 0)
            self.leases.stored(pid, place, identity.last, identity.generation)
        elif code not in (0, 46):
            failed.add((pid, place))
        return code, offset, message

    def _verdict(
        self, place: Place, pid: int, batch: Batch, rules: Rules
    ) -> tuple[int, int, str | None]:
        leases = self.leases
        if leases.is_old(pid):
            self.done["ended"] += 1
            return 59, -1, "the lease has ended"
        granted = leases.granted(pid)
        state = self.log(place).states.get(pid)
        verdict = judge(rules, state, batch, Age.YOUNG, granted)
        self.done[verdict.kind.value] += 1
        if verdict.kind is Kind.ADMIT:
            return 0, -1, None
        if verdict.kind is Kind.DUPLICATE:
            if verdict.offset < 0 or self.forgets_offsets:
                return 46, -1, "duplicate"
            return 0, verdict.offset, "duplicate"
        expected = f"; expected sequence {verdict.expected}" if verdict.expected >= 0 else ""
        text = f"PID {pid} ({number_of(pid)}): {verdict.kind.value} {verdict.reason}{expected}"
        return _CODES[verdict.kind], -1, text


class _Connection:
    """Answers in the order of requests."""

    def __init__(
        self, broker: FakeBroker, writer: asyncio.StreamWriter, number: int, node: int
    ) -> None:
        self._broker = broker
        self._writer = writer
        self._number = number
        self._node = node
        self._failed: set[Any] = set()
        self._answers: deque[tuple[bytes | None, float]] = deque()
        self._more = asyncio.Event()

    def take(self, frame: bytes) -> bool:
        """Handle a request; False: the connection is cut."""
        key, version, correlation, client = struct.unpack_from(">hhih", frame)
        body = BytesIO(frame[10 + max(client, 0) :])
        self._broker.client_ids.add(frame[10 : 10 + client].decode())
        if key == _VERSIONS:
            answer = self._broker.api_versions(version)
        elif key == _METADATA:
            assert version == 5
            answer = self._broker.metadata(body)
        else:
            assert (key, version) == (_PRODUCE, 8)
            return self._produce(correlation, body)
        self._put(correlation, answer)
        return True

    def _produce(self, correlation: int, body: BytesIO) -> bool:
        broker = self._broker
        broker.requests += 1
        fault = broker.fault(broker.requests) or Fault("")
        if fault.kind:
            broker.done[fault.kind] += 1
        if fault.kind == "cut before":
            return False
        request = ProduceRequest_v8.decode(body)
        assert not body.read()
        for topic, parts in request.topics:
            assert len({number for number, _ in parts}) == len(parts), f"twice: {topic}"
        answers: list[Any] = [
            (topic, [self._part((topic, number), bytes(data), fault) for number, data in parts])
            for topic, parts in request.topics
        ]
        if fault.kind == "cut after":
            return False
        answer = ProduceResponse_v8(answers, 0).encode()
        self._put(correlation, answer, fault.seconds)
        return True

    def _part(self, place: Place, data: bytes, fault: Fault) -> list[Any]:
        broker = self._broker
        if self._node != broker.leader:
            broker.done["not leader"] += 1
            self._failed.add((_identity(data)[0].pid, place))
            return [place[1], _NOT_LEADER, -1, -1, 0, [], "not the leader"]
        if fault.kind == "refuse":
            return broker.refused(place, data, fault.code, self._failed, self._number)
        answer = broker.judged(place, data, self._failed, self._number)
        if fault.kind == "stored but":
            answer[1:3] = fault.code, -1
        return answer

    def _put(self, correlation: int, body: bytes, seconds: float = 0.0) -> None:
        frame = struct.pack(">ii", len(body) + 4, correlation) + body
        self._answers.append((frame, seconds))
        self._more.set()

    async def send_all(self) -> None:
        """Write answers, some of them late."""
        while True:
            await self._more.wait()
            self._more.clear()
            while self._answers:
                frame, seconds = self._answers.popleft()
                if seconds < 0:
                    await self._broker.release.wait()
                elif seconds:
                    await asyncio.sleep(seconds)
                assert frame is not None
                self._writer.write(frame)


def _identity(data: bytes) -> tuple[Identity, int, list[Any]]:
    """Whose batch it is, and what is in it; all that a door looks at is asserted."""
    reader: Any = DefaultRecordBatch(data)
    assert reader.validate_crc()
    pid, epoch, sequence = reader.producer_id, reader.producer_epoch, reader.base_sequence
    records = list(reader)
    assert len(records) == reader.last_offset_delta + 1
    assert [each.offset for each in records] == list(range(len(records)))
    name, value = records[0].headers[0]
    assert name == "pidlease"
    identity = decode_identity(value)
    for each in records:
        assert "pidlease" not in dict(each.headers[each.offset == 0 :])
    assert policy_of(identity.pid) is not None
    assert (pid, epoch) == (identity.pid, identity.generation & 0x7FFF)
    assert sequence == identity.first & 0x7FFFFFFF
    return identity, len(records), records
