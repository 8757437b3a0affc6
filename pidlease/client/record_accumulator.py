"""A batch: records gathered for a partition, then sealed under their numbers.

The records are written by aiokafka's builder (in C) as they come; what is known only at the end
stands in their first record's header `pidlease`, whose value has a fixed length: it is put in when
the batch is sealed, before compression and the checksum.
"""

import struct
from asyncio import Future
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Final, NamedTuple

from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c

from pidlease.kafka.records.identity_header import HEADER_NAME, Identity, encode_identity
from pidlease.kafka.records.record_batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    CRC_FROM,
    HEADER_BYTES,
    LENGTH_AT,
    LENGTH_PREFIX_BYTES,
    MAGIC,
)

Headers = list[tuple[str, bytes | None]]

#: What is compressed how: Kafka's number of the codec, and what does it.
CODECS: Final[dict[str, tuple[int, Callable[[bytes], bytes]]]] = {
    "gzip": (1, gzip_encode),
    "snappy": (2, snappy_encode),
    "lz4": (3, lz4_encode),
    "zstd": (4, zstd_encode),
}

_INT32: Final = struct.Struct(">i")
_UINT32: Final = struct.Struct(">I")
_INT16: Final = struct.Struct(">h")
_NO_IDENTITY: Final = encode_identity(Identity(1, "", 0, 0, 0))
_IDENTITY_SIZE: Final = len(_NO_IDENTITY)
_IDENTITY: Final = (HEADER_NAME, _NO_IDENTITY)
_EMPTY_SIZE: Final = 2  # of no key and no value
#: Beyond any batch: how many bytes a batch that was cut may have.
_ANY_SIZE: Final = 2**31 - 1


class Sent(NamedTuple):
    """A record that stands in the log.

    Attributes:
        offset: where; -1: it is a duplicate whose offset the server does not know any more.
        pid: the PID it was sent under,
        generation: its generation,
        sequence: and the record's number in the producer's numbering.
        duplicate: it had been there before this send.
    """

    topic: str
    partition: int
    offset: int
    pid: int
    generation: int
    sequence: int
    duplicate: bool


Futures = list[Future[Sent]]


class Span(NamedTuple):
    """Whose batch it is, and under which numbers it goes.

    Attributes:
        first: where its range begins on the wire,
        last: and where it ends.
        number: the number of its first record, where the records bring none of their own.
    """

    pid: int
    generation: int
    first: int
    last: int
    number: int


class Repeat(NamedTuple):
    """A record that is a duplicate by its id, once the outcome of those before it is known."""

    number: int
    future: Future[Sent]


class Batch:
    """Records for one partition.

    Parameters:
        size_max: bytes before compression; one record may be larger.
        made_at: when, by the monotonic clock.

    Attributes:
        futures: one for each record.
        ids: the records' own numbers; empty where they bring none.
        cost: what it takes of the buffer, in bytes.
        data: as it goes over the wire; empty until it is sealed.
        repeats: records given after these whose id is not above theirs; not sent.
        sends: how often it was sent.
    """

    __slots__ = ("_append", "_builder", "_identity_at", "cost", "data", "futures", "ids",
                 "made_at", "repeats", "sends", "span")  # fmt: skip

    def __init__(self, size_max: int, made_at: float) -> None:
        self._builder = DefaultRecordBatchBuilder(MAGIC, 0, 0, -1, -1, -1, size_max)
        self._append = self._builder.append
        self._identity_at = 0
        self.futures: Futures = []
        self.ids: list[int] = []
        self.repeats: list[Repeat] = []
        self.cost = 0
        self.made_at = made_at
        self.data = bytearray()
        self.span: Span | None = None
        self.sends = 0

    def append(
        self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int | None
    ) -> int:
        """Write a record; the caller adds its future (and id).

        Returns:
            Its size in bytes; 0: the batch is full.

        Raises:
            TypeError: key, value or a header is of another type. Nothing was written.
        """
        place = len(self.futures)
        if place:
            record = self._append(place, timestamp_ms, key, value, headers)
            return record.size if record is not None else 0
        record = self._append(0, timestamp_ms, key, value, [_IDENTITY, *headers])
        self._identity_at = HEADER_BYTES + record.size - _IDENTITY_SIZE - _size_of(headers)
        return int(record.size)

    def seal(self, span: Span, codec: str | None) -> None:
        """Close it under its numbers: its bytes are the same from now on.

        Parameters:
            codec: one of CODECS; None: not compressed.
        """
        pid, generation, first, last, _ = span
        self._builder.set_producer_state(pid, generation & 0x7FFF, first & 0x7FFFFFFF)
        data: bytearray = self._builder.build()
        del self._builder, self._append
        at = self._identity_at
        identity = encode_identity(Identity(pid, "", generation, first, last))
        data[at : at + _IDENTITY_SIZE] = identity
        if codec is not None:
            number, compress = CODECS[codec]
            data[HEADER_BYTES:] = compress(bytes(memoryview(data)[HEADER_BYTES:]))
            _INT16.pack_into(data, ATTRIBUTES_AT, number)
            _INT32.pack_into(data, LENGTH_AT, len(data) - LENGTH_PREFIX_BYTES)
        _UINT32.pack_into(data, CRC_AT, crc32c(memoryview(data)[CRC_FROM:]))
        self.span = span
        self.data = data

    def drop_below(self, number: int) -> tuple[Futures, list[int]]:
        """Leave out the records whose own numbers are below one; it is not sealed yet.

        Returns:
            Their futures, and their numbers.
        """
        gone = sum(each < number for each in self.ids)
        dropped = self.futures[:gone], self.ids[:gone]
        rest = self._without(gone, self._builder.build())
        self._builder, self._append = rest._builder, rest._append
        self._identity_at = rest._identity_at
        self.futures, self.ids = rest.futures, self.ids[gone:]
        return dropped

    def _without(self, gone: int, data: bytes | bytearray) -> "Batch":
        """A batch of the records behind the first so many, not sealed."""
        rest = Batch(_ANY_SIZE, self.made_at)
        for place, record in enumerate(DefaultRecordBatch(bytes(data))):
            if place >= gone:
                headers = record.headers if place else record.headers[1:]
                rest.append(record.key, record.value, headers, record.timestamp)
                rest.futures.append(self.futures[place])
        return rest

    @property
    def numbers(self) -> Sequence[int]:
        """The number of each record of a sealed batch."""
        if self.ids:
            return self.ids
        number = self.sealed.number
        return range(number, number + len(self.futures))

    @property
    def sealed(self) -> Span:
        """The numbers of a batch that has some."""
        if self.span is None:
            raise ValueError("the batch is not sealed")
        return self.span

    def cut(self, expected: int, codec: str | None, *, holes: bool) -> Futures:
        """Leave out the records that are in the log already, and seal the rest.

        Parameters:
            expected: the first number that is not in the log.
            holes: numbers may be left out between batches (policy monotonic), so the range begins
                with its first record; otherwise with `expected`.

        Returns:
            The futures of the records that were cut off.
        """
        span = self.sealed
        numbers = self.numbers
        gone = sum(number < expected for number in numbers)
        cut = self.futures[:gone]
        rest = self._without(gone, self.data)
        number = numbers[gone]
        rest.seal(span._replace(first=number if holes else expected, number=number), codec)
        self.futures, self.ids = rest.futures, self.ids[gone:]
        self.span, self.data = rest.span, rest.data
        return cut


def tell(futures: Futures, numbers: Iterable[int], first: Sent) -> None:
    """Resolve the futures of records that stand in the log.

    Parameters:
        futures: of the records,
        numbers: and their numbers; there may be more of them.
        first: the answer to the first one, but for its number; the others stand behind it.
    """
    topic, partition, offset, pid, generation, _, duplicate = first
    new = tuple.__new__  # a third faster than Sent(...)
    offsets = range(offset, offset + len(futures)) if offset >= 0 else repeat(-1)
    for future, offset, number in zip(futures, offsets, numbers, strict=False):
        if not future.done():
            answer = (topic, partition, offset, pid, generation, number, duplicate)
            future.set_result(new(Sent, answer))


def _size_of(headers: Headers) -> int:
    """How many bytes headers take in a record, without their count."""
    if not headers:
        return 0
    count = len(headers)
    count_size = ((count << 1).bit_length() + 6) // 7  # a varint, zigzag
    return int(DefaultRecordBatchBuilder.size_of(None, None, headers)) - _EMPTY_SIZE - count_size
