"""Batches under a partition's writer: what Kafka's header cannot say stands in the first record.

On the embedded log, which one process writes, the writer is one PID of policy 5 that needs no
fence, and its numbers never move: so a batch that is sent again has the CRC that it had before,
and a repeat is distinguished from other content under the same numbers. Towards Kafka it gets the
numbers of a producer that Kafka fences, and keeps that CRC where it is validated.
"""

import struct
from collections.abc import Container
from typing import Final, NamedTuple

from crc32c import crc32c

from pidlease.core.buffer import Buffer
from pidlease.core.pid import Policy, make_pid
from pidlease.kafka.records.first_record import find_identity
from pidlease.kafka.records.identity_header import Identity, IdentityError
from pidlease.kafka.records.record_batch import CRC_AT, CRC_FROM, PRODUCER_AT, BatchHeader
from pidlease.storage.errors import UnidentifiedBatchError

#: The writer of all partitions of the embedded log.
WRITER_PID: Final = make_pid(Policy.WRITER, 1)

#: Producer id, epoch and base sequence, and where they stand in a batch.
_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_END: Final = PRODUCER_AT + _PRODUCER.size
_CRC: Final = struct.Struct(">I")
#: The base and the maximum timestamp stand between here and the producer id.
_TIMES_AT: Final = PRODUCER_AT - 16


class Writer(NamedTuple):
    """A producer that sends for many.

    Attributes:
        pid: its producer id.
        epoch: its epoch, which fences lower ones.
    """

    pid: int
    epoch: int


_EMBEDDED: Final = Writer(WRITER_PID, 0)
_EMBEDDED_HEADER: Final = (*_EMBEDDED, 0)
_EMBEDDED_NUMBERS: Final = _PRODUCER.pack(*_EMBEDDED_HEADER)


class LoggedBatch(NamedTuple):
    """A batch that stands in a log: its header, and its identity where that is in a record.

    With an identity, the header's CRC is the one that the send is compared by (`crc_of_send`).
    """

    header: BatchHeader
    identity: Identity | None = None


def under_writer(header: BatchHeader, data: bytearray | memoryview) -> BatchHeader:
    """Put a batch under the embedded log's writer: its numbers, and a new CRC, in place.

    Parameters:
        header: the batch's header.
        data: the batch.

    Returns:
        The header as it is now.
    """
    return stamp(header, data, _EMBEDDED, 0)


def stamp(
    header: BatchHeader, data: bytearray | memoryview, writer: Writer, sequence: int
) -> BatchHeader:
    """Put a batch under a writer: its numbers, and a new CRC, in place.

    Parameters:
        header: the batch's header.
        data: the batch.
        writer: the writer.
        sequence: of the first record, in the writer's numbering.

    Returns:
        The header as it is now.
    """
    pid, epoch = writer
    _PRODUCER.pack_into(data, PRODUCER_AT, pid, epoch, sequence)
    crc = crc32c(memoryview(data)[CRC_FROM:])
    _CRC.pack_into(data, CRC_AT, crc)
    return header._replace(producer_id=pid, producer_epoch=epoch, base_sequence=sequence, crc=crc)


def crc_of_send(header: BatchHeader, data: Buffer) -> int:
    """The checksum that a send is compared by with a later one under the same sequence numbers.

    It is a function of the batch alone, so it is the same at the append and in a replay. The
    writer's numbers are not part of it. Nor are the batch's two timestamps where they are equal:
    all records have one time then, which a server may have stamped (ADR 21).

    Parameters:
        header: the batch's header, as it stands in `data`.
        data: the batch, intact.
    """
    view = memoryview(data)
    if header.base_timestamp == header.max_timestamp:
        return crc32c(view[_PRODUCER_END:], crc32c(view[CRC_FROM:_TIMES_AT]))
    if header[9:12] == _EMBEDDED_HEADER:
        return header.crc
    crc = crc32c(view[CRC_FROM:PRODUCER_AT])
    return crc32c(view[_PRODUCER_END:], crc32c(_EMBEDDED_NUMBERS, crc))


def is_marker_of(header: BatchHeader, writer: Writer | None) -> bool:
    """Whether a batch of the log is the marker that a writer has put there."""
    return header.is_control and (header.producer_id, header.producer_epoch) == writer


def logged(
    header: BatchHeader, data: memoryview, writers: Container[int] = (WRITER_PID,)
) -> LoggedBatch:
    """Read a batch of the log, and its producer.

    The record header is believed under the writers only.

    Raises:
        UnidentifiedBatchError: a writer's batch does not name its producer.
    """
    if header.producer_id not in writers or header.is_control:
        return LoggedBatch(header)
    try:
        identity = find_identity(header, data)
    except IdentityError as error:
        raise UnidentifiedBatchError(f"offset {header.base_offset}: {error}") from error
    if identity is None:
        raise UnidentifiedBatchError(f"offset {header.base_offset}: it has no header pidlease")
    crc = crc_of_send(header, data)
    return LoggedBatch(header if crc == header.crc else header._replace(crc=crc), identity)
