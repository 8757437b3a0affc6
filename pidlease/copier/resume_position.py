"""Where a copy resumes: after its checkpoint, or after the end of its PID's lease.

A checkpoint is compared with the offsets that both clusters have. After the lease of a PID has
ended, the server accepts no batch under that PID, so the destination's log says for good which
records it has, and the next PID continues after them.
"""

import logging
from typing import Final, NamedTuple

from pidlease.copier.cluster_reader import MADE_ANEW, ClusterReader, is_other_topic
from pidlease.copier.copy_checkpoint import CopyCheckpoint, read_checkpoint
from pidlease.copier.copy_start import CopyStart
from pidlease.copier.errors import CheckpointError, CopyError
from pidlease.copier.group_membership import Saved
from pidlease.copier.settings import CopySettings
from pidlease.core.lease import Lease
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.offset_requests import EARLIEST, LATEST
from pidlease.kafka.codec.fetch import READ_COMMITTED
from pidlease.kafka.records.batch_records import UndecodableError, decoded
from pidlease.kafka.records.identity_header import (
    HEADER_NAME,
    Identity,
    IdentityError,
    decode_identity,
)
from pidlease.kafka.records.record_batch import BatchHeader, CorruptBatchError, check_intact

_log = logging.getLogger(__name__)


class ResumeCheck:
    """Checks whether the copy of one partition can resume from its checkpoint.

    Parameters:
        place: topic and partition of the source.
        there: topic and partition of the destination.
        cluster: cluster id of the destination.
    """

    def __init__(
        self,
        settings: CopySettings,
        source: ClusterReader,
        place: TopicPartition,
        target: ClusterReader,
        there: TopicPartition,
        cluster: str,
    ) -> None:
        self._settings: Final = settings
        self._source: Final = source
        self._place: Final = place
        self._target: Final = target
        self._there: Final = there
        self._cluster: Final = cluster

    async def beginning(self, start: CopyStart) -> tuple[int, int]:
        """Return the offsets at source and destination where a copy without a checkpoint begins.

        Parameters:
            start: says whether the partition is new.

        Raises:
            CopyError: the destination has records already. Another copy has written them, or this
                one did, and its offsets were deleted or have expired (Kafka's
                offsets.retention.minutes): it would begin a second time.
        """
        has_records, at = await self._target.records_until(self._there)
        if has_records and not self._settings.append:
            topic, partition = self._there
            raise CopyError(
                f"group {self._settings.group} has saved nothing for {_named(self._place)}, and"
                f" {topic}-{partition} of the destination has records already: of another copy, or"
                " of this one, if its offsets have expired or were deleted. Copy to another topic"
                " (--rename), or say --append to copy everything after them"
            )
        offset = await self._source.offset(self._place, self._settings.start, READ_COMMITTED)
        # In this order: an end that counts was read before the copy began.
        if self._settings.start == LATEST and await start.is_new(self._place):
            _log.info("%s of the source came after the copy had begun: it is copied from its first"
                      " record", _named(self._place))  # fmt: skip
            offset = await self._source.offset(self._place, EARLIEST)
        return offset, at

    def fitting(self, saved: Saved) -> CopyCheckpoint:
        """Decode a checkpoint of this copy.

        Raises:
            CheckpointError: no copier wrote it, or it is of another copy.
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
        if is_other_topic(checkpoint.source, self._source.topic_id(self._place.topic)):
            raise CheckpointError(f"{where}: {self._place.topic} of the source {MADE_ANEW}")
        return checkpoint

    async def within_source(self, checkpoint: CopyCheckpoint) -> CopyCheckpoint:
        """Return the checkpoint if the source has its offset, or adjusted by the options.

        Raises:
            CopyError: the source does not have it.
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

    async def within_destination(self, checkpoint: CopyCheckpoint, lease: Lease) -> CopyCheckpoint:
        """Return the checkpoint if the destination has its records, or adjusted by the options.

        Raises:
            CopyError: the destination has lost some.
        """
        end = await self._target.offset(self._there, LATEST)
        where = f"{_named(self._there)} of the destination"
        lost = lease.sequence_number <= checkpoint.sequence
        # Until a batch is acknowledged under a PID, `at` is the end of the log as the PID began.
        cut = checkpoint.sequence < 0 and end < checkpoint.at
        if checkpoint.first and (cut or (lost and not lease.sequence_number)):
            # Records of earlier PIDs may be lost, too, and their numbers are not known any more.
            problem = f"ends at {end}, and went up to {checkpoint.at}"
            if end >= checkpoint.at:
                problem = f"has no record of PID {checkpoint.pid} any more"
            raise CopyError(
                f"{where} {problem}: it may have lost records that the source has below offset"
                f" {checkpoint.first} as well, so it is unknown where to begin again. Compare both"
                " sides (pidlease copy --verify), or copy to a new topic, with another group"
            )
        if not lost:
            return checkpoint._replace(at=end) if cut else checkpoint
        offset = max(lease.sequence_number, checkpoint.first)
        if not self._settings.rewind:
            raise CopyError(
                f"{where} had what the source has up to offset {checkpoint.sequence}, and has lost"
                f" it from {offset} on; say --rewind to copy that again"
            )
        _log.warning("%s has lost what the source has from %s on: copied again", where, offset)
        return checkpoint._replace(
            offset=offset, sequence=lease.sequence_number - 1, at=min(checkpoint.at, end)
        )


def generation_of(checkpoint: CopyCheckpoint, lease: Lease) -> int:
    """Return the generation to resume with, which fences the previous copier.

    It is one above the generation in the log. The lease has that one, unless the log has no record
    of the PID yet: then each lease has its own generation, and batches of the previous one may
    still arrive.
    """
    return lease.generation if lease.sequence_number else checkpoint.generation + 1


def _named(place: TopicPartition) -> str:
    return f"{place.topic}-{place.partition}"


class ResumePosition(NamedTuple):
    """Where a copy resumes.

    Attributes:
        offset: of the source's next record.
        end: the destination's log end offset.
    """

    offset: int
    end: int


async def carry_over(
    reader: ClusterReader, place: TopicPartition, checkpoint: CopyCheckpoint, *, trusted: bool
) -> ResumePosition:
    """Find where a copy resumes after the lease of its PID has ended.

    Parameters:
        reader: of the destination.
        place: topic and partition of the destination.
        checkpoint: the last one.
        trusted: resume from the checkpoint if the log does not reach back far enough.

    Raises:
        CopyError: the log does not reach back far enough.
    """
    end = await reader.offset(place, LATEST)
    start = await reader.offset(place, EARLIEST)
    where = f"{place.topic}-{place.partition} of the destination"
    problem = ""
    if end < checkpoint.at:
        problem = f"ends at {end}, and went up to {checkpoint.at}: it was cut, or made anew"
    elif start > checkpoint.at:
        problem = f"begins at {start}, after {checkpoint.at}: the records between have been deleted"
    if problem and not trusted:
        raise CopyError(
            f"the lease of PID {checkpoint.pid} has ended, and {where} {problem}; so it is"
            f" unknown whether records from offset {checkpoint.offset} on are there. Compare both"
            " sides (pidlease copy --verify), and say --trust-checkpoint to go on from that offset"
        )
    highest = checkpoint.sequence
    if not problem:
        found = await last_in_log(reader, place, (checkpoint.at, end))
        highest = max(highest, found.get(checkpoint.pid, -1))
    return ResumePosition(max(checkpoint.offset, highest + 1), end)


async def last_in_log(
    reader: ClusterReader, place: TopicPartition, span: tuple[int, int]
) -> dict[int, int]:
    """Return the last_sequence of each PID that has a send in a part of the log.

    Parameters:
        span: the first offset, and the offset after the last.

    Raises:
        CopyError: it cannot be read.
    """
    highest: dict[int, int] = {}
    async for chunk in reader.chunks(place, *span):
        for header, batch in chunk.batches():
            if header.is_control or header.last_offset < span[0]:
                continue
            for identity in _identities(place, header, batch):
                highest[identity.pid] = max(highest.get(identity.pid, -1), identity.last)
    return highest


def _identities(place: TopicPartition, header: BatchHeader, batch: memoryview) -> list[Identity]:
    """Return the identities of the sends in a batch; it may have several.

    Raises:
        CopyError: it cannot be read.
    """
    try:
        check_intact(header, batch)
        return [
            decode_identity(value or b"")
            for record in decoded(header, batch)
            for key, value in record.headers
            if key == HEADER_NAME
        ]
    except (CorruptBatchError, UndecodableError, IdentityError) as error:
        raise CopyError(
            f"{place.topic}-{place.partition} of the destination cannot be read at"
            f" {header.base_offset}: {error!r}"
        ) from None
