"""A relay between the server and a Kafka that spoils answers: some make no sense, some never come.

It follows the frames in both directions, and knows by the correlation id which request an answer
belongs to. What is spoilt is given to it as faults, which strike one behind the other.
"""

import asyncio
import io
import struct
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, NamedTuple

from kio.index import load_request_schema
from kio.serial import entity_reader, entity_writer

from tests.crash.relay import Middle, Side, read_frame, until_one_ends
from tests.kafka_listener.messages import (
    FETCH,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    decode_response,
)

_LENGTH: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">hhi")
#: A partition's row of an answer to Produce up to version 7, and what version 8 says behind it.
_ROW: Final = struct.Struct(">ihqqq")
_NO_WORDS: Final = struct.pack(">ih", 0, -1)
#: Where the first partition's row stands in an answer to Fetch, but for the topic's name.
_ROWS_AT: Final = 24
_PREFIX: Final = 12
#: Where a batch says whose it is; of the server's own producers only writers have ids of Kafka's.
_PID_AT: Final = 43
_PIDS_OF_KAFKA: Final = 1 << 48
#: The first version of answers to Metadata whose headers have tags (an empty list is one byte).
_FLEXIBLE_METADATA: Final = 9
_HUGE: Final = 2**31 - 1


class Answer(NamedTuple):
    """An answer of Kafka: to which request, and what it says from the correlation id on."""

    key: int
    version: int
    request: bytes
    frame: bytes


class Wire(NamedTuple):
    """What goes out instead of an answer, lengths and all; and what comes behind it.

    Attributes:
        data: the bytes.
        ends: the connection ends behind them.
        stalls: nothing ever comes behind them.
    """

    data: bytes
    ends: bool = False
    stalls: bool = False


class Withheld(NamedTuple):
    """A request that does not reach Kafka, and the answer that its sender gets instead."""

    frame: bytes


#: Makes an answer to a request that is withheld.
Withhold = Callable[[bytes], bytes]
#: Spoils an answer; None: this one is not fit for it, the next may be.
Spoil = Callable[[Answer, Random], Wire | None]


@dataclass(frozen=True)
class Fault:
    """An answer to be spoilt.

    Attributes:
        name: says how.
        key: the API.
        spoil: does it.
        after: so many fitting answers go by first.
    """

    name: str
    key: int
    spoil: Spoil
    after: int = 0


class Spoiler(Middle):
    """See the module's text.

    Parameters:
        target_port: Kafka's.
        random: decides what is open.

    Attributes:
        struck: the faults that have struck.
        always: how all answers of an API are changed.
    """

    def __init__(self, target_port: int, random: Random) -> None:
        super().__init__(target_port)
        self.random = random
        self.struck: list[Fault] = []
        self.always: dict[int, Spoil] = {}
        #: How often a request was withheld.
        self.withheld = 0
        self._withhold: deque[tuple[int, Withhold]] = deque()
        self._lock = threading.Lock()
        self._due: deque[Fault] = deque()
        self._passed = 0

    @property
    def pending(self) -> int:
        """Faults that have not struck yet."""
        return len(self._due)

    def arm(self, *faults: Fault) -> None:
        """Have faults strike, one behind the other."""
        with self._lock:
            self._due.extend(faults)

    def withhold(self, key: int, answer: Withhold) -> None:
        """Keep the next request of an API from Kafka."""
        with self._lock:
            self._withhold.append((key, answer))

    def _instead(self, request: bytes) -> Withheld | None:
        """What is answered to a request that is withheld; None: it goes on."""
        with self._lock:
            if not self._withhold or self._withhold[0][0] != _HEAD.unpack_from(request)[0]:
                return None
            self.withheld += 1
            return Withheld(framed(self._withhold.popleft()[1](request)))

    def disarm(self) -> None:
        """Have none strike any more."""
        with self._lock:
            self._due.clear()
            self._withhold.clear()
            self._passed = 0

    def spoilt(self, answer: Answer) -> Wire:
        """What goes out for an answer."""
        whole = Wire(framed(answer.frame))
        if answer.key in self.always:
            whole = self.always[answer.key](answer, self.random) or whole
        with self._lock:
            if not self._due or self._due[0].key != answer.key:
                return whole
            fault = self._due[0]
            wire = fault.spoil(answer, self.random)
            if wire is None:
                return whole
            if self._passed < fault.after:
                self._passed += 1
                return whole
            self._passed = 0
            self.struck.append(self._due.popleft())
            return wire

    async def serve(self, client: Side, server: Side) -> None:
        """See `Middle`."""
        asked: deque[bytes | Withheld] = deque()
        await until_one_ends(
            self._up(client, server[1], asked), self._down(server[0], client[1], asked)
        )

    async def _up(
        self,
        client: Side,
        writer: asyncio.StreamWriter,
        asked: deque[bytes | Withheld],
    ) -> None:
        while True:
            frame = await read_frame(client[0])
            request = frame[_LENGTH.size :]
            instead = self._instead(request)
            asked.append(instead or request)
            if instead is not None:
                _answer_withheld(client[1], asked)
                continue
            writer.write(frame)
            await writer.drain()

    async def _down(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asked: deque[bytes | Withheld],
    ) -> None:
        while True:
            frame = (await read_frame(reader))[_LENGTH.size :]
            request = asked.popleft()
            assert isinstance(request, bytes)
            key, version, correlation_id = _HEAD.unpack_from(request)
            assert _LENGTH.unpack_from(frame)[0] == correlation_id
            wire = self.spoilt(Answer(key, version, request, frame))
            writer.write(wire.data)
            _answer_withheld(writer, asked)
            await writer.drain()
            if wire.ends:
                await asyncio.sleep(0.002)
                return
            if wire.stalls:
                while await reader.read(1 << 16):
                    pass


def _answer_withheld(writer: asyncio.StreamWriter, asked: deque[bytes | Withheld]) -> None:
    """Answer requests that Kafka does not have, when their turn has come."""
    while asked and isinstance(asked[0], Withheld):
        writer.write(asked[0].frame)
        asked.popleft()


def framed(frame: bytes) -> bytes:
    """With its length in front."""
    return _LENGTH.pack(len(frame)) + frame


# ---------------------------------------------------------------------- of any API


def wrong_id(answer: Answer, _: Random) -> Wire:
    """Another correlation id."""
    head = bytes([answer.frame[0], answer.frame[1] ^ 0x55])
    return Wire(framed(head + answer.frame[2:]))


def truncated(answer: Answer, random: Random) -> Wire:
    """An end that is missing, and a length that does not tell of it."""
    return Wire(framed(answer.frame[: -random.randint(1, len(answer.frame) - 4)]))


def longer(answer: Answer, random: Random) -> Wire:
    """Some bytes more than there should be."""
    return Wire(framed(answer.frame + random.randbytes(random.randint(1, 50))))


def huge(answer: Answer, _: Random) -> Wire:
    """A length of 2 GB, and never so much behind it."""
    return Wire(_LENGTH.pack(_HUGE) + answer.frame, stalls=True)


def negative(answer: Answer, random: Random) -> Wire:
    """A length below 0."""
    return Wire(_LENGTH.pack(-random.randint(1, 2**31)) + answer.frame)


def noise(_: Answer, random: Random) -> Wire:
    """Random bytes; what looks like a length is below 0, or some MB, of which few come."""
    first = random.choice([b"\0", b"\x9c"])
    return Wire(first + random.randbytes(random.randint(8, 3000)), stalls=True)


def noise_behind_the_id(answer: Answer, random: Random) -> Wire:
    """Random bytes, but for length and correlation id."""
    return Wire(framed(answer.frame[:4] + random.randbytes(len(answer.frame) - 4)))


def twice(answer: Answer, _: Random) -> Wire:
    """It comes, and comes again."""
    return Wire(framed(answer.frame) * 2)


def never(_: Answer, __: Random) -> Wire:
    """Nothing, and nothing behind it."""
    return Wire(b"", stalls=True)


def lost(_: Answer, __: Random) -> Wire:
    """The connection ends instead."""
    return Wire(b"", ends=True)


# ---------------------------------------------------------------------- of Produce


def lost_of_a_writer(answer: Answer, _: Random) -> Wire | None:
    """The connection ends instead; what was sent is not known, and the writer taken again."""
    kind: Any = load_request_schema(PRODUCE, answer.version)
    size = entity_reader(kind.__header_schema__)(answer.request, 0)[1]
    body = entity_reader(kind)(answer.request, size)[0]
    pids = [
        struct.unpack_from(">q", part.records, _PID_AT)[0]
        for topic in body.topic_data
        for part in topic.partition_data
    ]
    return Wire(b"", ends=True) if any(0 <= pid < _PIDS_OF_KAFKA for pid in pids) else None


Rows = list[tuple[str, int, int, int]]


def produced(change: Callable[[Rows, Random], Rows]) -> Spoil:
    """Spoils what an answer to Produce says: topic, partition, error code and offset of each."""

    def spoil(answer: Answer, random: Random) -> Wire | None:
        assert (answer.key, answer.version) == (PRODUCE, 8)
        correlation_id, body = decode_response(answer.key, answer.version, answer.frame)
        rows = [
            (str(topic.name), int(part.index), int(part.error_code), int(part.base_offset))
            for topic in body.responses
            for part in topic.partition_responses
        ]
        if any(code for _, _, code, _ in rows):
            return None
        return Wire(framed(_produce_answer(correlation_id, change(rows, random))))

    return spoil


def _produce_answer(correlation_id: int, rows: Rows) -> bytes:
    """Version 8; each partition under a topic of its own, which is as good."""
    parts = [_LENGTH.pack(correlation_id), _LENGTH.pack(len(rows))]
    for topic, number, code, offset in rows:
        name = topic.encode()
        parts += (struct.pack(">h", len(name)), name, _LENGTH.pack(1))
        parts += (_ROW.pack(number, code, offset, -1, 0), _NO_WORDS)
    return b"".join([*parts, _LENGTH.pack(0)])


def with_code(code: int) -> Spoil:
    """An error code, though all of it is stored."""
    return produced(lambda rows, _: [(name, part, code, -1) for name, part, _, _ in rows])


def not_stored(code: int) -> Withhold:
    """An error code, for batches that Kafka does not get."""

    def answer(request: bytes) -> bytes:
        _, version, correlation_id = _HEAD.unpack_from(request)
        kind: Any = load_request_schema(PRODUCE, version)
        body = entity_reader(kind)(request, entity_reader(kind.__header_schema__)(request, 0)[1])[0]
        rows = [
            (str(topic.name), int(part.index), code, -1)
            for topic in body.topic_data
            for part in topic.partition_data
        ]
        return _produce_answer(correlation_id, rows)

    return answer


def with_offset(offset: Callable[[int], int]) -> Spoil:
    """Another offset."""
    return produced(lambda rows, _: [(name, part, 0, offset(told)) for name, part, _, told in rows])


def _other_place(rows: Rows, random: Random) -> Rows:
    name, part, code, offset = rows[0]
    other = (name, part + 1000) if random.random() < 0.5 else (name + "-other", part)
    return [(*other, code, offset), *rows[1:]]


other_place: Final = produced(_other_place)
more_places: Final = produced(lambda rows, _: [*rows, (rows[0][0], rows[0][1] + 1000, 0, 7)])
same_place_twice: Final = produced(lambda rows, _: [*rows, (*rows[0][:3], rows[0][3] + 5)])
fewer_places: Final = produced(lambda rows, _: rows[:-1])


# ---------------------------------------------------------------------- of Fetch


def fetched(change: Callable[[bytes, Random], bytes]) -> Spoil:
    """Spoils the records of an answer to Fetch for one partition."""

    def spoil(answer: Answer, random: Random) -> Wire | None:
        data = records_of(answer)
        if not data:
            return None
        head = answer.frame[: -len(data) - _LENGTH.size]
        changed = change(data, random)
        return Wire(framed(head + _LENGTH.pack(len(changed)) + changed))

    return spoil


def records_of(answer: Answer) -> bytes:
    """The records of the one partition of an answer to Fetch."""
    assert (answer.key, answer.version) == (FETCH, 11)
    body = decode_response(answer.key, answer.version, answer.frame)[1]
    parts = [part for topic in body.responses for part in topic.partitions]
    assert len(parts) == 1
    data = bytes(parts[0].records or b"")
    assert answer.frame.endswith(data)
    return data


def batches_of(data: bytes) -> list[bytes]:
    """Whole batches, one by one."""
    found = []
    while len(data) >= _PREFIX:
        size = _PREFIX + _LENGTH.unpack_from(data, 8)[0]
        if size > len(data):
            break
        found.append(data[:size])
        data = data[size:]
    return found


def _moved(batch: bytes, by: int) -> bytes:
    (offset,) = struct.unpack_from(">q", batch)
    return struct.pack(">q", offset + by) + batch[8:]


def _damaged(data: bytes, random: Random) -> bytes:
    at = random.randrange(61, len(batches_of(data)[0]))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]


def _overlapping(data: bytes, _: Random) -> bytes:
    batches = batches_of(data)
    return b"".join([*batches, _moved(batches[0], 0)])


def _beyond(data: bytes, _: Random) -> bytes:
    return b"".join(_moved(each, 1000) for each in batches_of(data))


def _half(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(12, len(batches_of(data)[0]))]


def other_partition(answer: Answer, _: Random) -> Wire | None:
    """Records of a partition that was not asked for: its number stands in front of its row."""
    if not records_of(answer):
        return None
    body = decode_response(answer.key, answer.version, answer.frame)[1]
    (topic,) = body.responses
    (part,) = topic.partitions
    at = _ROWS_AT + len(topic.topic.encode())
    number = struct.pack(">i", int(part.partition_index) + 1000)
    return Wire(framed(answer.frame[:at] + number + answer.frame[at + 4 :]))


damaged: Final = fetched(_damaged)
overlapping: Final = fetched(_overlapping)
beyond: Final = fetched(_beyond)
half_a_batch: Final = fetched(_half)
nothing: Final = fetched(lambda _, __: b"")


# ---------------------------------------------------------------------- of others


def metadata(change: Callable[[Any, bytearray], None]) -> Spoil:
    """Spoils an answer to Metadata, where its bytes stand: the entity says what to look for."""

    def spoil(answer: Answer, _: Random) -> Wire | None:
        body = decode_response(METADATA, answer.version, answer.frame)[1]
        frame = bytearray(answer.frame)
        if not any(topic.partitions for topic in body.topics):
            return None
        change(body, frame)
        return Wire(framed(bytes(frame)))

    return spoil


def _number_partition(body: Any, frame: bytearray, number: int) -> None:
    """Give the last partition of the last topic with any another number."""
    topic = next(each for each in reversed(body.topics) if each.partitions)
    part = topic.partitions[-1]
    row = struct.pack(
        ">hiii", 0, int(part.partition_index), int(part.leader_id), int(part.leader_epoch)
    )
    at = frame.rindex(row) + 2
    frame[at : at + 4] = struct.pack(">i", number)


def _other_port(body: Any, frame: bytearray) -> None:
    (broker,) = body.brokers
    at = frame.index(struct.pack(">i", int(broker.port)))
    frame[at : at + 4] = struct.pack(">i", 70_000)


def without_topics(*names: str) -> Spoil:
    """Topics that the answer does not have, as of a broker that has just started."""

    def spoil(answer: Answer, _: Random) -> Wire:
        body = decode_response(METADATA, answer.version, answer.frame)[1]
        shown = tuple(topic for topic in body.topics if topic.name not in names)
        return _metadata(answer, replace(body, topics=shown))

    return spoil


def _metadata(answer: Answer, body: Any) -> Wire:
    head = _LENGTH.size + (answer.version >= _FLEXIBLE_METADATA)
    stream = io.BytesIO()
    entity_writer(type(body))(stream, body)
    return Wire(framed(answer.frame[:head] + stream.getvalue()))


def without_anything(answer: Answer, _: Random) -> Wire:
    """Neither topics nor brokers: of a broker that was just started, under ZooKeeper."""
    body = decode_response(METADATA, answer.version, answer.frame)[1]
    return _metadata(answer, replace(body, topics=(), brokers=()))


partition_minus_five: Final = metadata(lambda body, frame: _number_partition(body, frame, -5))
partition_two_billion: Final = metadata(lambda body, frame: _number_partition(body, frame, _HUGE))
port_70000: Final = metadata(_other_port)


def other_cluster(answer: Answer, _: Random) -> Wire:
    """The id of a cluster that this is not."""
    body = decode_response(METADATA, answer.version, answer.frame)[1]
    known = body.cluster_id.encode()
    return Wire(framed(answer.frame.replace(known, known[::-1])))


def with_pid(pid: int, epoch: int) -> Spoil:
    """A producer id that there cannot be."""

    def spoil(answer: Answer, _: Random) -> Wire | None:
        body = decode_response(INIT_PRODUCER_ID, answer.version, answer.frame)[1]
        if body.error_code:
            return None
        known = struct.pack(">qh", body.producer_id, body.producer_epoch)
        return Wire(framed(answer.frame.replace(known, struct.pack(">qh", pid, epoch))))

    return spoil


# ---------------------------------------------------------------------- of ApiVersions


def without_api(key: int) -> Spoil:
    """Leave out an API, as a Kafka that is older than it."""

    def spoil(answer: Answer, _: Random) -> Wire | None:
        assert answer.version == 0
        head, count = answer.frame[:6], _LENGTH.unpack_from(answer.frame, 6)[0]
        rows = [answer.frame[at : at + 6] for at in range(10, 10 + 6 * count, 6)]
        kept = [row for row in rows if struct.unpack_from(">h", row)[0] != key]
        assert len(kept) == count - 1
        return Wire(framed(head + _LENGTH.pack(len(kept)) + b"".join(kept)))

    return spoil
