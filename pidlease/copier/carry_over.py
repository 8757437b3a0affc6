"""How far a copy is when its PID's lease is over: by the destination's own log.

Nothing is written under a PID of which the server knows no more, so what the log says then is so
for good, and the next PID may go on behind it.
"""

from typing import NamedTuple

from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.structs import TopicPartition

from pidlease.copier.cluster_reader import EARLIEST, LATEST, Asked
from pidlease.copier.copy_checkpoint import Checkpoint
from pidlease.copier.errors import CopyError
from pidlease.kafka.records.identity_header import (
    HEADER_NAME,
    Identity,
    IdentityError,
    decode_identity,
)
from pidlease.kafka.records.record_batch import (
    BatchHeader,
    CorruptBatchError,
    check_intact,
)


class Carried(NamedTuple):
    """Where a copy goes on.

    Attributes:
        offset: of the source's next record.
        end: of the destination, when it was looked at.
    """

    offset: int
    end: int


async def carry_over(
    asked: Asked, place: TopicPartition, checkpoint: Checkpoint, *, trusted: bool
) -> Carried:
    """Find out how far a copy is whose PID is not known any more.

    Parameters:
        asked: the destination.
        place: its topic and partition.
        checkpoint: the last that is known.
        trusted: go by the checkpoint where the log does not tell.

    Raises:
        CopyError: nothing tells.
    """
    end = await asked.offset(place, LATEST)
    start = await asked.offset(place, EARLIEST)
    where = f"{place.topic}-{place.partition} of the destination"
    problem = ""
    if end < checkpoint.at:
        problem = f"ends at {end}, and went up to {checkpoint.at}: it was cut, or made anew"
    elif start > checkpoint.at:
        problem = f"begins at {start}, behind {checkpoint.at}: what came between has been deleted"
    if problem and not trusted:
        raise CopyError(
            f"the lease of PID {checkpoint.pid} has ended, and {where} {problem}; so nothing tells"
            f" whether records from offset {checkpoint.offset} on are there. Compare both sides"
            " (pidlease copy --verify), and say --trust-checkpoint to go on from that offset"
        )
    highest = checkpoint.sequence
    if not problem:
        found = await last_in_log(asked, place, (checkpoint.at, end))
        highest = max(highest, found.get(checkpoint.pid, -1))
    return Carried(max(checkpoint.offset, highest + 1), end)


async def last_in_log(asked: Asked, place: TopicPartition, span: tuple[int, int]) -> dict[int, int]:
    """The highest sequence of each PID that has a send in a part of the log.

    Parameters:
        span: the first offset, and the first behind it.

    Raises:
        CopyError: it cannot be read.
    """
    highest: dict[int, int] = {}
    async for chunk in asked.chunks(place, *span):
        for header, batch in chunk.batches():
            if header.is_control or header.last_offset < span[0]:
                continue
            for identity in _identities(place, header, batch):
                highest[identity.pid] = max(highest.get(identity.pid, -1), identity.last)
    return highest


def _identities(place: TopicPartition, header: BatchHeader, batch: memoryview) -> list[Identity]:
    """Who sent what of a batch; several sends may stand in one.

    Raises:
        CopyError: it cannot be read.
    """
    try:
        check_intact(header, batch)
        return [
            decode_identity(value or b"")
            for record in DefaultRecordBatch(bytes(batch))
            for key, value in record.headers
            if key == HEADER_NAME
        ]
    except (CorruptBatchError, CorruptRecordException, IdentityError, RuntimeError) as error:
        raise CopyError(
            f"{place.topic}-{place.partition} of the destination cannot be read at"
            f" {header.base_offset}: {error!r}"
        ) from None
