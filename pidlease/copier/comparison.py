"""Compares a copy with its source, record by record.

Each send at the destination says in its header up to which offset of the source it goes. So what
belongs to it is what the source has from the send before it up to there: no more, and no less.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.structs import TopicPartition

from pidlease.copier.batch_translator import BatchTranslator
from pidlease.copier.cluster_pair import Cluster, both_sides, connect
from pidlease.copier.cluster_reader import EARLIEST, LATEST, READ_COMMITTED, Asked, Chunk
from pidlease.copier.errors import CopyError
from pidlease.copier.settings import CopySettings
from pidlease.kafka.records.identity_header import (
    HEADER_NAME,
    Identity,
    IdentityError,
    decode_identity,
)

#: So many findings of a partition are told in words.
_FINDINGS_MAX: Final = 5


class Row(NamedTuple):
    """A record, without what a copy does not keep."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Placed(NamedTuple):
    """A record, and where it stands.

    Attributes:
        sent: at the first record of a send: who sent it.
        begins: whether it is a batch's first; no send goes over several.
    """

    offset: int
    row: Row
    sent: Identity | None
    begins: bool


@dataclass(slots=True)
class Comparison:
    """What was found of a partition.

    Attributes:
        records: that the source has.
        equal: of these, those that stand at the destination once, as they should.
        lost: those that do not, although later ones do.
        behind: those behind the last that does: not copied yet.
        doubled: records at the destination that had been there.
        different: records that are not what the source has there.
        foreign: records at the destination that no copier wrote.
        deleted: records at the destination whose source is deleted.
        findings: the first of what is wrong, in words.
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
        """Whether the copy is whole, and nothing but a copy."""
        wrong = self.lost, self.behind, self.doubled, self.different, self.foreign
        return not any(wrong)

    def find(self, text: str) -> None:
        """Tell something that is wrong."""
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(text)


async def compare_all(settings: CopySettings) -> list[Comparison]:
    """Compare every partition with its copy, as both are now.

    Raises:
        CopyError: one side cannot be read, or a topic is missing.
    """
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
    settings: CopySettings, source: Cluster, target: Cluster, topic: str
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
            source.asked, TopicPartition(topic, number),
            target.asked, TopicPartition(renamed, number), settings.start,
        )
        for number in range(partitions)
    ]  # fmt: skip


async def compare(
    source: Asked, place: TopicPartition, target: Asked, there: TopicPartition, start: int
) -> Comparison:
    """Compare a partition with its copy, as both are now.

    Parameters:
        start: where the copy began: EARLIEST, LATEST, or ms since 1970.

    Raises:
        CopyError: one of them cannot be read.
    """
    result = Comparison(place.topic, place.partition)
    begin = await target.offset(there, EARLIEST)
    behind = await target.offset(there, LATEST, READ_COMMITTED)
    # In this order: whatever is copied up to there is at the source by then.
    first = await source.offset(place, start, READ_COMMITTED)
    end = await source.offset(place, LATEST, READ_COMMITTED)
    rows = _Source(placed(source, place, first, end), result)
    send: list[Placed] = []
    async for record in placed(target, there, begin, behind):
        if record.begins or record.sent is not None:
            await _compare_send(rows, send, first, result)
            send = []
        send.append(record)
    await _compare_send(rows, send, first, result)
    left = len(await rows.up_to(end))
    result.behind = left
    if left:
        result.find(f"the last {left} records of the source are not copied")
    return result


async def _compare_send(
    rows: "_Source", send: Sequence[Placed], first: int, result: Comparison
) -> None:
    """What was sent at once, with what the source has there."""
    if not send:
        return
    where, sent = send[0].offset, send[0].sent
    if sent is None:
        result.foreign += len(send)
        result.find(f"offset {where} of the copy: no copier wrote that")
        return
    begun = rows.begun
    expected = await rows.up_to(sent.last + 1)
    found = [each.row for each in send]
    if sent.last < first:
        result.deleted += len(found)
        return
    if not expected:
        result.doubled += len(found)
        result.find(f"offset {where} of the copy: offsets up to {sent.last} had been copied before")
        return
    if sent.first < first and not begun:
        result.deleted += max(len(found) - len(expected), 0)
        found = found[-len(expected) :]
    _compare_rows(expected, found, where, result)


def _compare_rows(
    expected: Sequence[Placed], found: Sequence[Row], where: int, result: Comparison
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


class _Source:
    """The source's records, taken one behind the other."""

    def __init__(self, rows: AsyncIterator[Placed], result: Comparison) -> None:
        self._rows: Final = rows
        self._result: Final = result
        self._next: Placed | None = None
        #: Whether any was taken.
        self.begun = False

    async def up_to(self, offset: int) -> list[Placed]:
        """Those before an offset that were not taken yet."""
        found: list[Placed] = []
        while True:
            if self._next is None:
                self._next = await anext(self._rows, None)
                self._result.records += self._next is not None
            if self._next is None or self._next.offset >= offset:
                return found
            found.append(self._next)
            self.begun = True
            self._next = None


async def placed(
    asked: Asked, place: TopicPartition, start: int, end: int
) -> AsyncIterator[Placed]:
    """The committed records of a part of a partition.

    Raises:
        CopyError: it cannot be read.
    """
    name = f"{place.topic}-{place.partition} of {asked.name}"
    async for chunk in asked.chunks(place, start, end, READ_COMMITTED):
        for record in _records(name, chunk):
            if start <= record.offset < end:
                yield record


def _records(name: str, chunk: Chunk) -> Iterator[Placed]:
    for header, batch in BatchTranslator(name, 0).committed(chunk):
        try:
            for place, record in enumerate(DefaultRecordBatch(bytes(batch))):
                kept, sent = [], None
                for key, value in record.headers:
                    if key == HEADER_NAME:
                        sent = decode_identity(value or b"")
                    else:
                        kept.append((key, value))
                row = Row(record.timestamp, record.key, record.value, tuple(kept))
                yield Placed(record.offset, row, sent, not place)
        except (CorruptRecordException, IdentityError, ValueError, RuntimeError) as error:
            raise CopyError(f"{name}: offset {header.base_offset}: {error!r}") from None
