"""Compares a copy with its source, record by record.

The header of each send at the destination has the last offset of its records at the source. The
send must be equal to the source's records between that of the preceding send and this offset.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pidlease.copier.batch_translator import BatchTranslator
from pidlease.copier.cluster_pair import ClusterConnection, both_sides, connect
from pidlease.copier.cluster_reader import ClusterReader, FetchedChunk
from pidlease.copier.errors import CopyError
from pidlease.copier.settings import CopySettings
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

#: The most findings of a partition that are described.
_FINDINGS_MAX: Final = 5


class RecordContent(NamedTuple):
    """The parts of a record that a copy keeps."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class PlacedRecord(NamedTuple):
    """A record and its place in the log.

    Attributes:
        sent: the identity of the send that begins with this record; else None.
        begins: whether it is a batch's first record; a send is in one batch.
    """

    offset: int
    row: RecordContent
    sent: Identity | None
    begins: bool


@dataclass(slots=True)
class Comparison:
    """The result of comparing a partition.

    Attributes:
        records: records of the source.
        equal: of these, those that are at the destination once, and equal.
        lost: of these, those missing at the destination before its last copied one.
        behind: of these, those after the last copied one: not copied yet.
        doubled: records at the destination that were copied before.
        different: records at the destination that differ from the source's.
        foreign: records at the destination that no copier wrote.
        deleted: records at the destination that are deleted at the source.
        findings: texts about the first errors.
    """

    topic: str
    partition: int
    records: int = 0
    equal: int = 0
    lost: int = 0
    behind: int = 0
    doubled: int = 0
    different: int = 0
    foreign: int = 0
    deleted: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether the copy is complete, and has no other records."""
        wrong = self.lost, self.behind, self.doubled, self.different, self.foreign
        return not any(wrong)

    def find(self, text: str) -> None:
        """Add a text about an error."""
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(text)


async def compare_all(settings: CopySettings) -> list[Comparison]:
    """Compare every partition with its copy, as both are now.

    Raises:
        CopyError: one side cannot be read, a topic is missing, or it is unknown where the copy
            began.
    """
    if settings.start == LATEST:
        raise CopyError(
            "it is unknown where a copy with --start latest began; to compare, say --start with a"
            " time after that: what was copied before counts as deleted"
        )
    source, target = both_sides(settings)
    try:
        topics = await connect(settings, source, target)
        chosen = sorted(filter(settings.selects, topics))
        if not chosen:
            raise CopyError("no topic of the source is chosen by --topics-regex")
        return [
            found
            for topic in chosen
            for found in await _compare_topic(settings, source, target, topic)
        ]
    finally:
        await source.close()
        await target.close()


async def _compare_topic(
    settings: CopySettings, source: ClusterConnection, target: ClusterConnection, topic: str
) -> list[Comparison]:
    renamed = settings.renamed(topic)
    partitions = await source.partitions(topic)
    there = await target.partitions(renamed)
    if there < partitions:
        raise CopyError(
            f"{topic} has {partitions} partitions, {renamed} of the destination {there}"
        )
    return [
        await compare(
            source.reader, TopicPartition(topic, number),
            target.reader, TopicPartition(renamed, number), settings.start,
        )
        for number in range(partitions)
    ]  # fmt: skip


async def compare(
    source: ClusterReader,
    place: TopicPartition,
    target: ClusterReader,
    there: TopicPartition,
    start: int,
) -> Comparison:
    """Compare a partition with its copy, as both are now.

    Parameters:
        start: where the copy began: EARLIEST, or ms since 1970.

    Raises:
        CopyError: one of them cannot be read.
    """
    result = Comparison(place.topic, place.partition)
    begin = await target.offset(there, EARLIEST)
    target_end = await target.offset(there, LATEST, READ_COMMITTED)
    # In this order: the source has all that is copied up to there.
    first = await source.offset(place, start, READ_COMMITTED)
    end = await source.offset(place, LATEST, READ_COMMITTED)
    rows = _SourceRecords(placed(source, place, first, end), result)
    send: list[PlacedRecord] = []
    async for record in placed(target, there, begin, target_end):
        if record.begins or record.sent is not None:
            await _compare_send(rows, send, first, result)
            send = []
        send.append(record)
    await _compare_send(rows, send, first, result)
    left = await rows.skip_to(end)
    result.behind = left
    if left:
        result.find(f"the last {left} records of the source are not copied")
    return result


async def _compare_send(
    rows: "_SourceRecords", send: Sequence[PlacedRecord], first: int, result: Comparison
) -> None:
    """Compare one send with the source's records."""
    if not send:
        return
    where, sent = send[0].offset, send[0].sent
    if sent is None:
        result.foreign += len(send)
        result.find(f"offset {where} of the copy: no copier wrote that")
        return
    begun, done = rows.begun, max(first, rows.done)
    if missing := await rows.skip_to(sent.first):
        result.lost += missing
        result.find(f"offset {where} of the copy: {missing} records of the source before"
                    f" {sent.first} are not copied")  # fmt: skip
    expected = await rows.up_to(sent.last + 1)
    found = [each.row for each in send]
    if sent.last < first:
        result.deleted += len(found)
        return
    if sent.last < done:
        result.doubled += len(found)
        result.find(f"offset {where} of the copy: offsets up to {sent.last} had been copied before")
        return
    if sent.first < first and not begun:
        result.deleted += max(len(found) - len(expected), 0)
        found = found[len(found) - len(expected) :]
    removed = sent.last + 1 - max(sent.first, done) - len(expected)
    found = _without_removed(expected, found, removed, result)
    _compare_rows(expected, found, where, result)


def _without_removed(
    expected: Sequence[PlacedRecord],
    found: Sequence[RecordContent],
    removed: int,
    result: Comparison,
) -> list[RecordContent]:
    """Leave out the records of a send that the source has lost since, by compaction.

    Parameters:
        removed: how many offsets of the send the source does not have; so many records at most.
    """
    left = min(removed, len(found) - len(expected))
    contents = {each.row for each in expected}
    kept: list[RecordContent] = []
    for row in found:
        if left > 0 and row not in contents:
            left -= 1
            result.deleted += 1
        else:
            kept.append(row)
    return kept


def _compare_rows(
    expected: Sequence[PlacedRecord], found: Sequence[RecordContent], where: int, result: Comparison
) -> None:
    result.lost += max(len(expected) - len(found), 0)
    result.doubled += max(len(found) - len(expected), 0)
    if len(expected) != len(found):
        span = f"{expected[0].offset} to {expected[-1].offset}"
        result.find(f"offset {where} of the copy: {len(found)} records, where the source has"
                    f" {len(expected)}, at {span}")  # fmt: skip
    for one, other in zip(expected, found, strict=False):
        if one.row == other:
            result.equal += 1
        else:
            result.different += 1
            result.find(f"offset {where} of the copy: not what the source has at {one.offset}")


class _SourceRecords:
    """The source's records, read one after the other."""

    def __init__(self, rows: AsyncIterator[PlacedRecord], result: Comparison) -> None:
        self._rows: Final = rows
        self._result: Final = result
        self._next: PlacedRecord | None = None
        #: Whether any record was read.
        self.begun = False
        #: The first offset that was not asked for.
        self.done = 0

    async def up_to(self, offset: int) -> list[PlacedRecord]:
        """Return the records below an offset that were not read yet."""
        return [each async for each in self._below(offset)]

    async def skip_to(self, offset: int) -> int:
        """Read the records below an offset, and keep none; return how many."""
        count = 0
        async for _ in self._below(offset):
            count += 1
        return count

    async def _below(self, offset: int) -> AsyncIterator[PlacedRecord]:
        self.done = max(self.done, offset)
        while True:
            if self._next is None:
                self._next = await anext(self._rows, None)
                self._result.records += self._next is not None
            if self._next is None or self._next.offset >= offset:
                return
            record, self._next = self._next, None
            self.begun = True
            yield record


async def placed(
    reader: ClusterReader, place: TopicPartition, start: int, end: int
) -> AsyncIterator[PlacedRecord]:
    """Yield the committed records of a part of a partition.

    Raises:
        CopyError: it cannot be read.
    """
    name = f"{place.topic}-{place.partition} of {reader.name}"
    async for chunk in reader.chunks(place, start, end, READ_COMMITTED):
        for record in _records(name, chunk):
            if start <= record.offset < end:
                yield record


def _records(name: str, chunk: FetchedChunk) -> Iterator[PlacedRecord]:
    for header, batch in BatchTranslator(name, 0).committed(chunk):
        try:
            for place, record in enumerate(decoded(header, batch)):
                kept, sent = [], None
                for key, value in record.headers:
                    if key == HEADER_NAME:
                        sent = decode_identity(value or b"")
                    else:
                        kept.append((key, value))
                row = RecordContent(record.timestamp, record.key, record.value, tuple(kept))
                yield PlacedRecord(record.offset, row, sent, not place)
        except (UndecodableError, IdentityError) as error:
            raise CopyError(f"{name}: offset {header.base_offset}: {error!r}") from None
