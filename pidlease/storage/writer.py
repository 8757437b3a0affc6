"""Batches under a partition's writer: what Kafka's header cannot say stands in the first record.

On the embedded log, which one process writes, the writer is one PID of policy 5 that needs no
fence, and its numbers never move: so a batch that is sent again has the CRC that it had before,
and a repeat with other content can be told from a repeat.
"""

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from pidlease.core.pid import Policy, make_pid
from pidlease.storage.errors import UnidentifiedBatchError
from pidlease.storage.first_record import find_identity
from pidlease.storage.identity import Identity, IdentityError
from pidlease.storage.record_batch import CRC_AT, CRC_FROM, PRODUCER_AT, BatchHeader

#: The writer of all partitions of the embedded log.
WRITER_PID: Final = make_pid(Policy.WRITER, 1)
_WRITER_EPOCH: Final = 0
_WRITER_SEQUENCE: Final = 0

#: Producer id, epoch and base sequence, and where they stand in a batch.
_PRODUCER: Final = struct.Struct(">qhi")
_CRC: Final = struct.Struct(">I")


class LoggedBatch(NamedTuple):
    """A batch that stands in a log: its header, and who sent it where the header does not say."""

    header: BatchHeader
    identity: Identity | None = None


def under_writer(header: BatchHeader, data: bytearray | memoryview) -> BatchHeader:
    """Put a batch under the writer: its numbers, and a new CRC, in place.

    Parameters:
        header: the batch's header.
        data: the batch.

    Returns:
        The header as it is now.
    """
    _PRODUCER.pack_into(data, PRODUCER_AT, WRITER_PID, _WRITER_EPOCH, _WRITER_SEQUENCE)
    crc = crc32c(memoryview(data)[CRC_FROM:])
    _CRC.pack_into(data, CRC_AT, crc)
    return header._replace(
        producer_id=WRITER_PID,
        producer_epoch=_WRITER_EPOCH,
        base_sequence=_WRITER_SEQUENCE,
        crc=crc,
    )


def logged(header: BatchHeader, data: memoryview) -> LoggedBatch:
    """A batch of the log, with who sent it. The record header is believed under the writer only.

    Raises:
        UnidentifiedBatchError: the writer's batch does not say who sent it.
    """
    if header.producer_id != WRITER_PID:
        return LoggedBatch(header)
    try:
        identity = find_identity(header, data)
    except IdentityError as error:
        raise UnidentifiedBatchError(f"offset {header.base_offset}: {error}") from error
    if identity is None:
        raise UnidentifiedBatchError(f"offset {header.base_offset}: it has no header pidlease")
    return LoggedBatch(header, identity)
