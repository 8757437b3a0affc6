"""Rows of records: the columns of Spark's Kafka source, and who sent each under which number."""

import logging
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from pidlease.copier.copied_batch import unpacked
from pidlease.core.pid import Policy, policy_of
from pidlease.engine.batch_identity import batch_of
from pidlease.kafka.records.record_batch import CODEC_BITS, CODECS, BatchHeader
from pidlease.kafka.records.writer_batch import LoggedBatch
from pidlease.spark.reader.batch_columns import Numbers, Together, Unpacked, unpacked_batch
from pidlease.spark.reader.errors import ReadError
from pidlease.spark.reader.read_parts import KafkaPart, Part, SegmentPart, name_of
from pidlease.spark.reader.record_decoder import DecodingError
from pidlease.spark.reader.segment_batches import folder_of
from pidlease.spark.reader.send_rows import sends_of
from pidlease.spark.reader.stored_batch import Damage, Stored
from pidlease.storage.errors import UnidentifiedBatchError

_log = logging.getLogger(__name__)

#: So many bytes of records are decoded together, at least; a batch is never parted for that.
_TOGETHER_BYTES: Final = 4 << 20
_TOGETHER_RECORDS: Final = 1 << 15


def records(
    part: Part, found: Iterable[Stored | Damage], *, headers: bool, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """A part's records, in their order, as columns (`columns.schema`).

    Parameters:
        part: the part.
        found: its batches.
        headers: whether to give the headers, without the `pidlease` of who sent a record.
        fail_on_data_loss: whether damage is an error; otherwise it is left out, and logged.

    Raises:
        ReadError: there is damage, or a batch cannot be decoded.
    """
    group = _Group(part, headers=headers, fail=fail_on_data_loss)
    for each in found:
        group.add(each)
        if group.full:
            yield from group.take()
    yield from group.take()


class _Group:
    """Batches that are decoded together, when there are enough of them."""

    def __init__(self, part: Part, *, headers: bool, fail: bool) -> None:
        self._part: Final = part
        self._headers: Final = headers
        self._fail: Final = fail
        self._batches: list[tuple[Stored, Unpacked]] = []
        self._bytes = 0
        self._records = 0

    @property
    def full(self) -> bool:
        """Whether there are enough."""
        return self._bytes >= _TOGETHER_BYTES or self._records >= _TOGETHER_RECORDS

    def add(self, found: Stored | Damage) -> None:
        """Take a batch.

        Raises:
            ReadError: it is damaged.
        """
        if isinstance(found, Damage):
            _damaged(self._part, found, found.text, fail=self._fail)
            return
        try:
            batch = _unpacked(found, over_kafka=isinstance(self._part, KafkaPart))
        except (DecodingError, UnidentifiedBatchError) as error:
            _damaged(self._part, found, str(error), fail=self._fail)
            return
        self._batches.append((found, batch))
        self._bytes += len(batch.content)
        self._records += len(batch.begins)

    def take(self) -> Iterator[pa.RecordBatch]:
        """The records of all of them.

        Raises:
            ReadError: one of them is damaged.
        """
        batches, self._batches = self._batches, []
        self._bytes = self._records = 0
        if not batches:
            return
        try:
            together = Together(self._part, [each for _, each in batches], headers=self._headers)
        except DecodingError:
            pass  # which one it is, the next lines tell
        else:
            yield from together.rows()
            return
        for stored, each in batches:
            try:
                alone = Together(self._part, [each], headers=self._headers)
            except DecodingError as error:
                _damaged(self._part, stored, str(error), fail=self._fail)
            else:
                yield from alone.rows()


def _unpacked(stored: Stored, *, over_kafka: bool) -> Unpacked:
    """A batch, not compressed.

    Raises:
        DecodingError, UnidentifiedBatchError: it cannot be read.
    """
    header = stored.header
    numbers, identified = _numbers(header, stored.data, over_kafka=over_kafka)
    if header.attributes & CODEC_BITS >= len(CODECS):
        raise DecodingError("it is compressed by nothing that is known")
    try:
        content = bytes(unpacked(header, stored.data))
    except Exception as error:  # noqa: BLE001 - told on, and what it is about
        # Each codec has errors of its own, some of them bare.
        raise DecodingError(f"its records are no {header.codec}: {error!r}") from None
    return unpacked_batch(header, content, numbers, identified=identified)


def _numbers(
    header: BatchHeader, data: memoryview, *, over_kafka: bool
) -> tuple[list[Numbers], bool]:
    """The numbers that a batch's records were sent under, and whether their headers say so.

    Raises:
        UnidentifiedBatchError: it has to say them, and does not.
    """
    try:
        found = sends_of(header, data, over_kafka=over_kafka)
    except UnidentifiedBatchError:
        if not over_kafka or policy_of(header.producer_id) is not None:
            raise
        found = [LoggedBatch(header)]  # a producer of Kafka's own, with a header of that name
    identified = any(each.identity is not None for each in found)
    return [_numbers_of(each) for each in found], identified


def _numbers_of(send: LoggedBatch) -> Numbers:
    header, identity = send
    offset, count = header.base_offset, header.last_offset_delta + 1
    if identity is None:
        if policy_of(header.producer_id) is not Policy.KAFKA:
            return Numbers(offset, None, None, None)
        batch = batch_of(header)
        return Numbers(offset, header.producer_id, batch.generation, batch.first, wraps=True)
    if identity.name:
        return Numbers(offset, None, None, None)
    dense = identity.last - identity.first + 1 == count
    first = identity.first if dense else None
    return Numbers(offset, identity.pid, identity.generation, first)


def _damaged(part: Part, found: Stored | Damage, problem: str, *, fail: bool) -> None:
    """Say what cannot be read, and where.

    Raises:
        ReadError: that ends the job.
    """
    offset = found.offset if isinstance(found, Damage) else found.header.base_offset
    where = f"{name_of(part)}, offset {offset}"
    if isinstance(part, SegmentPart):
        folder = folder_of(part.data_dir, part.topic, part.partition)
        where += f", byte {found.position} of {folder / found.segment}"
    if fail:
        raise ReadError(
            f"{where} cannot be read: {problem}; look at it with `pidlease verify`, or set"
            " failOnDataLoss to false to leave it out"
        )
    _log.error("%s is left out: %s", where, problem)
