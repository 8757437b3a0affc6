"""Rows of records: the columns of Spark's Kafka source, and the identity of each record."""

import logging
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from pidlease.copier.copied_batch import unpacked
from pidlease.core.pid import Policy, policy_of
from pidlease.engine.batch_identity import batch_of
from pidlease.kafka.records.record_batch import CODEC_BITS, CODECS, BatchHeader
from pidlease.kafka.records.writer_batch import LoggedBatch
from pidlease.spark.errors import ReadError
from pidlease.spark.reader.batch_columns import (
    DecodedBatches,
    SendIdentity,
    UnpackedBatch,
    unpacked_batch,
)
from pidlease.spark.reader.log_directory import folder_of
from pidlease.spark.reader.log_parts import (
    KafkaPart,
    LogDamage,
    Part,
    SegmentPart,
    StoredBatch,
    name_of,
)
from pidlease.spark.reader.record_decoder import DecodingError
from pidlease.spark.reader.send_rows import sends_of
from pidlease.storage.errors import UnidentifiedBatchError

_log = logging.getLogger(__name__)

#: Batches are decoded together until they reach one of these; a batch is never split.
_TOGETHER_BYTES: Final = 4 << 20
_TOGETHER_RECORDS: Final = 1 << 15


def records(
    part: Part,
    batches: Iterable[StoredBatch | LogDamage],
    *,
    headers: bool,
    fail_on_data_loss: bool,
) -> Iterator[pa.RecordBatch]:
    """Decode a part's records, in order, as columns (`batch_columns.schema`).

    Parameters:
        batches: the part's batches and damage.
        headers: whether to return the headers, without the header `pidlease`.
        fail_on_data_loss: whether damage is an error; otherwise it is logged and left out.

    Raises:
        ReadError: there is damage, or a batch cannot be decoded.
    """
    group = _BatchGroup(part, headers=headers, fail=fail_on_data_loss)
    for each in batches:
        group.add(each)
        if group.full:
            yield from group.take()
    yield from group.take()


class _BatchGroup:
    """Collects batches to decode them together."""

    def __init__(self, part: Part, *, headers: bool, fail: bool) -> None:
        self._part: Final = part
        self._headers: Final = headers
        self._fail: Final = fail
        self._batches: list[tuple[StoredBatch, UnpackedBatch]] = []
        self._bytes = 0
        self._records = 0

    @property
    def full(self) -> bool:
        """Whether to decode what was collected."""
        return self._bytes >= _TOGETHER_BYTES or self._records >= _TOGETHER_RECORDS

    def add(self, new: StoredBatch | LogDamage) -> None:
        """Add a batch.

        Raises:
            ReadError: it is damaged.
        """
        if isinstance(new, LogDamage):
            _damaged(self._part, new, new.text, fail=self._fail)
            return
        try:
            batch = _unpacked(new, over_kafka=isinstance(self._part, KafkaPart))
        except (DecodingError, UnidentifiedBatchError) as error:
            _damaged(self._part, new, str(error), fail=self._fail)
            return
        self._batches.append((new, batch))
        self._bytes += len(batch.content)
        self._records += len(batch.begins)

    def take(self) -> Iterator[pa.RecordBatch]:
        """Decode and remove all batches.

        Raises:
            ReadError: one is damaged.
        """
        batches, self._batches = self._batches, []
        self._bytes = self._records = 0
        if not batches:
            return
        try:
            decoded = DecodedBatches(
                self._part, [each for _, each in batches], headers=self._headers
            )
        except DecodingError:
            pass  # decode one by one, to find the damaged batch
        else:
            yield from decoded.rows()
            return
        for stored, each in batches:
            try:
                alone = DecodedBatches(self._part, [each], headers=self._headers)
            except DecodingError as error:
                _damaged(self._part, stored, str(error), fail=self._fail)
            else:
                yield from alone.rows()


def _unpacked(stored: StoredBatch, *, over_kafka: bool) -> UnpackedBatch:
    """Decompress a batch, and find its identities.

    Raises:
        DecodingError, UnidentifiedBatchError: the batch cannot be read.
    """
    header = stored.header
    identities, identified = _identities(header, stored.data, over_kafka=over_kafka)
    if header.attributes & CODEC_BITS >= len(CODECS):
        raise DecodingError("its compression is unknown")
    try:
        content = bytes(unpacked(header, stored.data))
    except Exception as error:  # noqa: BLE001 - converted
        # Each codec has errors of its own, some of them bare.
        raise DecodingError(f"its records are no {header.codec}: {error!r}") from None
    return unpacked_batch(header, content, identities, identified=identified)


def _identities(
    header: BatchHeader, data: memoryview, *, over_kafka: bool
) -> tuple[list[SendIdentity], bool]:
    """Return the identities of a batch's sends, and whether its records' headers carry them.

    Raises:
        UnidentifiedBatchError: the header is required, and missing.
    """
    try:
        sends = sends_of(header, data, over_kafka=over_kafka)
    except UnidentifiedBatchError:
        if not over_kafka or policy_of(header.producer_id) is not None:
            raise
        sends = [LoggedBatch(header)]  # a PID of Kafka's, with a header of the same name
    identified = any(each.identity is not None for each in sends)
    return [_identity_of(each) for each in sends], identified


def _identity_of(send: LoggedBatch) -> SendIdentity:
    header, identity = send
    offset, count = header.base_offset, header.last_offset_delta + 1
    if identity is None:
        if policy_of(header.producer_id) is not Policy.KAFKA:
            return SendIdentity(offset, None, None, None)
        batch = batch_of(header)
        return SendIdentity(offset, header.producer_id, batch.generation, batch.first, wraps=True)
    if identity.name:
        return SendIdentity(offset, None, None, None)
    dense = identity.last - identity.first + 1 == count
    first = identity.first if dense else None
    return SendIdentity(offset, identity.pid, identity.generation, first)


def _damaged(part: Part, broken: StoredBatch | LogDamage, problem: str, *, fail: bool) -> None:
    """Report damage.

    Raises:
        ReadError: damage ends the job.
    """
    offset = broken.offset if isinstance(broken, LogDamage) else broken.header.base_offset
    where = f"{name_of(part)}, offset {offset}"
    if isinstance(part, SegmentPart):
        folder = folder_of(part.data_dir, part.topic, part.partition)
        where += f", byte {broken.position} of {folder / broken.segment}"
    if fail:
        raise ReadError(
            f"{where} cannot be read: {problem}; check the log with `pidlease verify`, or set"
            " failOnDataLoss to false to leave it out"
        )
    _log.error("%s is left out: %s", where, problem)
