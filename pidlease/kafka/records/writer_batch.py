"""Batches of a partition's writer: their producer is named in the first record's header.

In the embedded log, with its single process, the writer is one PID of policy 5, which needs no
fencing and always has the same sequence numbers. So a batch that is sent again has the same CRC,
and a duplicate can be distinguished from other content under the same sequence numbers. With Kafka
as the log, the batch gets the numbers of a fenced Kafka producer, and validation uses that CRC all
the same.
"""

import struct
from collections.abc import Container
from typing import Final, NamedTuple

from crc32c import crc32c

from pidlease.core.buffer import Buffer
from pidlease.core.pid import Policy, make_pid
from pidlease.kafka.records.first_record import find_identity
from pidlease.kafka.records.identity_header import Identity, IdentityError
from pidlease.kafka.records.record_batch import (
    CRC_AT,
    CRC_FROM,
    PRODUCER_AT,
    BatchHeader,
    comparable_crc,
)
from pidlease.storage.errors import UnidentifiedBatchError

#: The writer's PID in all partitions of the embedded log.
WRITER_PID: Final = make_pid(Policy.WRITER, 1)

#: Producer id, epoch and base sequence, and the end of these fields in a batch.
_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_END: Final = PRODUCER_AT + _PRODUCER.size
_CRC: Final = struct.Struct(">I")
#: The base and the maximum timestamp are between this position and the producer id.
_TIMES_AT: Final = PRODUCER_AT - 16


class Writer(NamedTuple):
    """A producer that sends for other producers.

    Attributes:
        pid: its producer id.
        epoch: its epoch; lower ones are fenced.
    """

    pid: int
    epoch: int


_EMBEDDED: Final = Writer(WRITER_PID, 0)
_EMBEDDED_HEADER: Final = (*_EMBEDDED, 0)
_EMBEDDED_NUMBERS: Final = _PRODUCER.pack(*_EMBEDDED_HEADER)


class LoggedBatch(NamedTuple):
    """A batch in a log: its header, and the identity if the first record has one.

    With an identity, the header's CRC is the result of `crc_of_send`.
    """

    header: BatchHeader
    identity: Identity | None = None


def under_writer(header: BatchHeader, data: bytearray | memoryview) -> BatchHeader:
    """Set the embedded log's writer in a batch's header, with a new CRC, in place.

    Returns:
        The new header.
    """
    return stamp(header, data, _EMBEDDED, 0)


def stamp(
    header: BatchHeader, data: bytearray | memoryview, writer: Writer, sequence: int
) -> BatchHeader:
    """Set a writer in a batch's header, with a new CRC, in place.

    Parameters:
        sequence: the first record's sequence number in the writer's numbering.

    Returns:
        The new header.
    """
    pid, epoch = writer
    _PRODUCER.pack_into(data, PRODUCER_AT, pid, epoch, sequence)
    crc = crc32c(memoryview(data)[CRC_FROM:])
    _CRC.pack_into(data, CRC_AT, crc)
    return BatchHeader(*header[:4], crc, *header[5:9], pid, epoch, sequence, header[12])


def crc_of_send(header: BatchHeader, data: Buffer) -> int:
    """Compute the checksum that distinguishes a duplicate from other content under its numbers.

    It depends on the batch alone, so it is the same at the append and in a replay. It does not
    cover the writer's numbers, nor the batch's two timestamps if they are equal: then all records
    have one timestamp, which a server may have set (ADR 21). Its form is that of `comparable_crc`.

    Parameters:
        header: the batch's header, as it is in `data`.
        data: the batch, intact.
    """
    view = memoryview(data)
    if header.base_timestamp == header.max_timestamp:
        crc = crc32c(view[_PRODUCER_END:], crc32c(view[CRC_FROM:_TIMES_AT]))
    elif header[9:12] == _EMBEDDED_HEADER:
        crc = header.crc
    else:
        crc = crc32c(_EMBEDDED_NUMBERS, crc32c(view[CRC_FROM:PRODUCER_AT]))
        crc = crc32c(view[_PRODUCER_END:], crc)
    return comparable_crc(header, crc)


def is_marker_of(header: BatchHeader, writer: Writer | None) -> bool:
    """Return whether a batch of the log is a writer's marker."""
    return header.is_control and (header.producer_id, header.producer_epoch) == writer


def may_be_a_writers(header: BatchHeader) -> bool:
    """Return whether a writer may have sent a batch: it sends none in a transaction."""
    return not header.is_control and not header.is_transactional


def logged(
    header: BatchHeader, data: memoryview, writers: Container[int] = (WRITER_PID,)
) -> LoggedBatch:
    """Return a batch of the log with its producer's identity.

    The record header is trusted only in batches of the given writers.

    Raises:
        UnidentifiedBatchError: a writer's batch does not name its producer.
    """
    if header.producer_id not in writers or not may_be_a_writers(header):
        return LoggedBatch(header)
    try:
        identity = find_identity(header, data)
    except IdentityError as error:
        raise UnidentifiedBatchError(f"offset {header.base_offset}: {error}") from error
    if identity is None:
        raise UnidentifiedBatchError(f"offset {header.base_offset}: it has no header pidlease")
    crc = crc_of_send(header, data)
    return LoggedBatch(header if crc == header.crc else header._replace(crc=crc), identity)
