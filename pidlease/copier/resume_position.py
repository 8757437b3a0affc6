"""Where a copy resumes: after its checkpoint, or after the end of its PID's lease.

A checkpoint is compared with the offsets that both clusters have. After the lease of a PID has
ended, the server accepts no batch under that PID, so the destination's log says for good which
records it has, and the next PID continues after them.
"""

import logging
from typing import Final, NamedTuple

from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.structs import TopicPartition

from pidlease.copier.cluster_reader import EARLIEST, LATEST, READ_COMMITTED, Asked
from pidlease.copier.copy_checkpoint import Checkpoint, read_checkpoint
from pidlease.copier.errors import CheckpointError, CopyError
from pidlease.copier.group_membership import Saved
from pidlease.copier.settings import CopySettings
from pidlease.core.lease import Lease
from pidlease.kafka.records.identity_header import (
    HEADER_NAME,
    Identity,
    IdentityError,
    decode_identity,
)
from pidlease.kafka.records.record_batch import BatchHeader, CorruptBatchError, check_intact

_log = logging.getLogger(__name__)


class ResumeCheck:
    """One partition's.

    Parameters:
        settings: the copy's.
        source: the source,
        place: and its topic and partition.
        target: the destination,
        there: and its topic and partition,
        cluster: and the id of its cluster.
    """

    def __init__(
        self,
        settings: CopySettings,
        source: Asked,
        place: TopicPartition,
        target: Asked,
        there: TopicPartition,
        cluster: str,
    ) -> None:
        self._settings: Final = settings
        self._source: Final = source
        self._place: Final = place
        self._target: Final = target
        self._there: Final = there
        self._cluster: Final = cluster

    async def beginning(self) -> tuple[int, int]:
        """Where a copy begins of which nothing is saved: at the source, and at the destination.

        Raises:
            CopyError: there are records already. Either they are somebody else's; or they are this
                copy's, whose offsets were deleted, or kept for no longer (Kafka's
                offsets.retention.minutes): it would begin a second time.
        """
        at = await self._target.offset(self._there, LATEST)
        if at > 0 and not self._settings.append:
            topic, partition = self._there
            raise CopyError(
                f"group {self._settings.group} has saved nothing for {_named(self._place)}, and"
                f" {topic}-{partition} of the destination has records already: they are another"
                " copy's, or this one's, whose offsets have expired or were deleted. Copy to"
                " another topic (--rename), or say --append to copy everything behind them"
            )
        return await self._source.offset(self._place, self._settings.start, READ_COMMITTED), at

    def fitting(self, saved: Saved) -> Checkpoint:
        """What was saved.

        Raises:
            CheckpointError: it is no copier's, or of another copy.
        """
        where = f"group {self._settings.group}, {_named(self._place)}"
        try:
            checkpoint = read_checkpoint(*saved)
        except CheckpointError as error:
            raise CheckpointError(f"{where}: {error}; choose another group, and another topic"
                                  " (--rename)") from None  # fmt: skip
        if (checkpoint.cluster, checkpoint.topic) != (self._cluster, self._there.topic):
            raise CheckpointError(
                f"{where}: it copies to {checkpoint.topic} of cluster {checkpoint.cluster}, and not"
                f" to {self._there.topic} of {self._cluster}; choose another group"
            )
        return checkpoint

    async def within_source(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint, if the source goes on there.

        Raises:
            CopyError: it does not.
        """
        offset, source = checkpoint.offset, self._source
        where = f"{_named(self._place)} of the source"
        end = await source.offset(self._place, LATEST)
        if offset > end:
            raise CopyError(
                f"{where} ends at {end}, and was copied up to {offset}: it was cut, or made anew;"
                " copy it to a new topic, with another group"
            )
        start = await source.offset(self._place, EARLIEST)
        if offset >= start:
            return checkpoint
        if not self._settings.skip_lost:
            raise CopyError(
                f"{where} begins at {start}, and was copied up to {offset}: what came between is"
                " deleted and was never copied; say --skip-lost to go on without"
            )
        _log.warning("%s: offsets %s to %s are deleted and were never copied",
                     where, offset, start)  # fmt: skip
        return checkpoint._replace(offset=start)

    async def within_destination(self, checkpoint: Checkpoint, lease: Lease) -> Checkpoint:
        """The checkpoint, if the destination has all that it speaks of.

        Raises:
            CopyError: it has lost some.
        """
        if lease.sequence_number > checkpoint.sequence:
            return checkpoint
        offset = max(lease.sequence_number, checkpoint.first)
        where = f"{_named(self._there)} of the destination"
        if not self._settings.rewind:
            raise CopyError(
                f"{where} had what the source has up to offset {checkpoint.sequence}, and has lost"
                f" it from {offset} on; say --rewind to copy that again"
            )
        _log.warning("%s has lost what the source has from %s on: copied again", where, offset)
        end = await self._target.offset(self._there, LATEST)
        return checkpoint._replace(
            offset=offset, sequence=lease.sequence_number - 1, at=min(checkpoint.at, end)
        )


def generation_of(checkpoint: Checkpoint, lease: Lease) -> int:
    """Under which generation to go on, so that whoever wrote before is fenced.

    The log's and one more; that is the lease's, but where nothing stands in the log yet: then each
    lease has a generation of its own, and what was sent under the one before may still arrive.
    """
    return lease.generation if lease.sequence_number else checkpoint.generation + 1


def _named(place: TopicPartition) -> str:
    return f"{place.topic}-{place.partition}"


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
