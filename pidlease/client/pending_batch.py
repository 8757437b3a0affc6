"""A pending batch: gathers records for a partition, then is sealed with its sequence numbers.

aiokafka's builder (in C) encodes each record at once. PID and sequence numbers are known only when
the batch is sealed. They are in the first record's header `pidlease`. Its value has a fixed
length: sealing overwrites it, before compression and the checksum.
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

#: By codec: Kafka's number of it, and its compressor.
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
#: The size limit of a batch that was cut: none.
_ANY_SIZE: Final = 2**31 - 1


class Sent(NamedTuple):
    """A record that is in the log.

    ```python
    from pidlease.client import BlockingProducer

    with BlockingProducer(
        bootstrap_servers="127.0.0.1:9092", leases="http://127.0.0.1:8080"
    ) as producer:
        sent = producer.send_and_wait("orders", b"tea")
        print(f"{sent.topic}/{sent.partition} at {sent.offset}, duplicate: {sent.duplicate}")
    ```

    Attributes:
        offset: its offset; -1: a duplicate, and the server has forgotten its offset.
        pid: the PID it was sent under.
        generation: the PID's generation.
        sequence: the record's sequence number.
        duplicate: whether an earlier request stored it.
    """

    topic: str
    partition: int
    offset: int
    pid: int
    generation: int
    sequence: int
    duplicate: bool


Futures = list[Future[Sent]]


class SequenceRange(NamedTuple):
    """The PID and the sequence numbers of a batch.

    Attributes:
        first: first_sequence on the wire.
        last: last_sequence on the wire.
        number: the sequence number of the first record, if the records have none of their own.
    """

    pid: int
    generation: int
    first: int
    last: int
    number: int


class DuplicateRecord(NamedTuple):
    """A record that repeats a sequence_id; it completes after the preceding records."""

    number: int
    future: Future[Sent]


class PendingBatch:
    """Records for one partition.

    Parameters:
        size_max: bytes before compression; one record may be larger.
        made_at: seconds of the monotonic clock.

    Attributes:
        futures: one for each record.
        ids: the records' own sequence_ids; empty if they have none.
        cost: its buffer memory in bytes.
        data: the encoded batch; empty until it is sealed.
        repeats: the duplicates that follow its records; not sent.
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
        self.repeats: list[DuplicateRecord] = []
        self.cost: int = 0
        self.made_at: float = made_at
        self.data: bytearray = bytearray()
        self.span: SequenceRange | None = None
        self.sends: int = 0

    def append(
        self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int | None
    ) -> int:
        """Encode a record; the caller adds its future (and sequence_id).

        Returns:
            Its size in bytes; 0: the batch is full.

        Raises:
            TypeError: key, value or a header has the wrong type. The batch is unchanged.
        """
        place = len(self.futures)
        if place:
            record = self._append(place, timestamp_ms, key, value, headers)
            return record.size if record is not None else 0
        record = self._append(0, timestamp_ms, key, value, [_IDENTITY, *headers])
        self._identity_at = HEADER_BYTES + record.size - _IDENTITY_SIZE - _size_of(headers)
        return int(record.size)

    def seal(self, span: SequenceRange, codec: str | None) -> None:
        """Close it with its sequence numbers: its bytes do not change from now on.

        Parameters:
            codec: one of CODECS; None: no compression.
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
        """Remove the records with sequence_ids below `number`, before it is sealed.

        Returns:
            Their futures and their sequence_ids.
        """
        gone = sum(each < number for each in self.ids)
        dropped = self.futures[:gone], self.ids[:gone]
        rest = self._without(gone, self._builder.build())
        self._builder, self._append = rest._builder, rest._append
        self._identity_at = rest._identity_at
        self.futures, self.ids = rest.futures, self.ids[gone:]
        return dropped

    def _without(self, gone: int, data: bytes | bytearray) -> "PendingBatch":
        """Return an unsealed batch without the first `gone` records."""
        rest = PendingBatch(_ANY_SIZE, self.made_at)
        for place, record in enumerate(DefaultRecordBatch(bytes(data))):
            if place >= gone:
                headers = record.headers if place else record.headers[1:]
                rest.append(record.key, record.value, headers, record.timestamp)
                rest.futures.append(self.futures[place])
        return rest

    @property
    def numbers(self) -> Sequence[int]:
        """The sequence number of each record of a sealed batch."""
        if self.ids:
            return self.ids
        number = self.sealed.number
        return range(number, number + len(self.futures))

    @property
    def sealed(self) -> SequenceRange:
        """The sequence numbers of a sealed batch."""
        if self.span is None:
            raise ValueError("the batch is not sealed")
        return self.span

    def cut(self, expected: int, codec: str | None, *, gaps: bool) -> Futures:
        """Remove the records that are in the log already, and seal the rest.

        Parameters:
            expected: the first sequence number that is not in the log.
            gaps: whether sequence gaps are allowed (policy monotonic): the range then begins with
                its first record, otherwise with `expected`.

        Returns:
            The futures of the removed records.
        """
        span = self.sealed
        numbers = self.numbers
        gone = sum(number < expected for number in numbers)
        cut = self.futures[:gone]
        rest = self._without(gone, self.data)
        number = numbers[gone]
        rest.seal(span._replace(first=number if gaps else expected, number=number), codec)
        self.futures, self.ids = rest.futures, self.ids[gone:]
        self.span, self.data = rest.span, rest.data
        return cut


def complete_futures(futures: Futures, numbers: Iterable[int], first: Sent) -> None:
    """Complete the futures of records that are in the log.

    Parameters:
        numbers: the records' sequence numbers; there may be more of them.
        first: the result of the first record, but for its sequence number; offsets count up.
    """
    topic, partition, offset, pid, generation, _, duplicate = first
    new = tuple.__new__  # a third faster than Sent(...)
    offsets = range(offset, offset + len(futures)) if offset >= 0 else repeat(-1)
    for future, offset, number in zip(futures, offsets, numbers, strict=False):
        if not future.done():
            result = (topic, partition, offset, pid, generation, number, duplicate)
            future.set_result(new(Sent, result))


def _size_of(headers: Headers) -> int:
    """Return the encoded size of a record's headers, without their count."""
    if not headers:
        return 0
    count = len(headers)
    count_size = ((count << 1).bit_length() + 6) // 7  # a varint, zigzag
    return int(DefaultRecordBatchBuilder.size_of(None, None, headers)) - _EMPTY_SIZE - count_size
