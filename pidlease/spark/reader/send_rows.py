"""Rows of sends: one row for each send, with the identity of its producer and its sequence numbers.

The identity is found as in a server's replay: for policy kafka in the batch's header, otherwise in
the first record, under the partition's writer only. Over the Kafka protocol the producer ids of the
writers are unknown; so the header `pidlease` is trusted in each batch with a producer id that is
not of policy kafka. This misreads a topic that was copied with these headers under a producer id of
Kafka's.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from pidlease.core.pid import Policy, policy_of
from pidlease.engine.batch_identity import batch_of
from pidlease.kafka.records.first_record import find_identity
from pidlease.kafka.records.identity_header import IdentityError
from pidlease.kafka.records.joined_batch import parted
from pidlease.kafka.records.record_batch import BatchHeader
from pidlease.kafka.records.writer_batch import WRITER_PID, LoggedBatch, crc_of_send, logged
from pidlease.spark.reader.log_parts import KafkaPart, LogDamage, Part, StoredBatch
from pidlease.storage.errors import UnidentifiedBatchError

SCHEMA: Final = pa.schema([
    ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
    ("last_offset", pa.int64()), ("records", pa.int32()), ("pid", pa.int64()),
    ("producer_id", pa.string()), ("generation", pa.int64()), ("first", pa.int64()),
    ("last", pa.int64()), ("crc", pa.int64()), ("timestamp", pa.int64()), ("bytes", pa.int32()),
    ("position", pa.int64()), ("segment", pa.string()), ("previous_generation", pa.int64()),
    ("previous_first", pa.int64()), ("previous_last", pa.int64()), ("begins", pa.bool_()),
    ("damage", pa.string()), ("read_from", pa.int64()),
])  # fmt: skip
#: Rows of an Arrow batch.
_ROWS: Final = 8192
#: The columns that name a producer on a partition.
PRODUCER_KEY: Final = ("topic", "partition", "pid", "producer_id")

_Numbers = tuple[int, int, int]


def sends(part: Part, batches: Iterable[StoredBatch | LogDamage]) -> Iterator[pa.RecordBatch]:
    """Return a part's sends, in order, as columns (`SCHEMA`).

    `previous_...` are the numbers of the preceding send of the same producer within the part; if
    there is none, `begins` is true. For sends without a PID they are null, and `begins` is false.
    Of several sends in a batch the first one has all the `bytes`. The part's first row has the
    offset from which the part was read as `read_from`, which is below its own `offset` after
    markers of transactions; in other rows `read_from` is null.

    Parameters:
        batches: the part's batches and damage.
    """
    rows = _Rows(part)
    for each in batches:
        if isinstance(each, LogDamage):
            rows.damage(each)
        else:
            rows.batch(each)
        if len(rows.rows) >= _ROWS:
            yield rows.take()
    if rows.rows:
        yield rows.take()


class _Rows:
    """Collects rows, and remembers each producer's last numbers."""

    def __init__(self, part: Part) -> None:
        self._part: Final = part
        self._over_kafka: Final = isinstance(part, KafkaPart)
        self._last: dict[int | str, _Numbers] = {}
        self._read_from: int | None = part.start
        self.rows: list[tuple[Any, ...]] = []

    def take(self) -> pa.RecordBatch:
        """Return and remove the rows."""
        rows, self.rows = self.rows, []
        columns = zip(*rows, strict=True)
        arrays = [pa.array(one, each.type) for one, each in zip(columns, SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)

    def damage(self, damage: LogDamage) -> None:
        """Add a row for damage."""
        topic, partition = self._part.topic, self._part.partition
        self.rows.append((
            topic, partition, damage.offset, -1, 0, -1, "", -1, -1, -1, 0, -1, 0, damage.position,
            damage.segment, None, None, None, False, damage.text, self._take_read_from(),
        ))  # fmt: skip

    def batch(self, stored: StoredBatch) -> None:
        """Add a row for each send of a batch."""
        header = stored.header
        try:
            batches = sends_of(header, stored.data, over_kafka=self._over_kafka)
        except UnidentifiedBatchError as error:
            where = stored.segment, stored.position, header.base_offset
            self.damage(LogDamage(*where, str(error)))
            return
        size = header.size
        for each in batches:
            if each.header.last_offset >= self._part.start:
                self._send(stored, each, size)
                size = 0

    def _send(self, stored: StoredBatch, send: LoggedBatch, size: int) -> None:
        header, identity = send
        pid, name, numbers, crc = -1, "", (-1, -1, -1), header.crc
        if identity is not None:
            pid, name, *rest = identity[:5]
            numbers = (rest[0], rest[1], rest[2])
        elif policy_of(header.producer_id) is Policy.KAFKA:
            pid = header.producer_id
            batch = batch_of(header)
            numbers, crc = batch[:3], batch.crc
        previous: tuple[Any, ...] = (None, None, None)
        begins = False
        key = name or pid
        if key != -1:
            last = self._last.get(key)
            begins = last is None
            previous = last or previous
            self._last[key] = numbers
        self.rows.append((
            self._part.topic, self._part.partition, header.base_offset, header.last_offset,
            header.records, pid, name, *numbers, crc, header.max_timestamp, size,
            stored.position, stored.segment, *previous, begins, None, self._take_read_from(),
        ))  # fmt: skip

    def _take_read_from(self) -> int | None:
        """Return the offset from which the part was read for the first row, and None after it."""
        read_from, self._read_from = self._read_from, None
        return read_from


def sends_of(header: BatchHeader, data: memoryview, *, over_kafka: bool) -> list[LoggedBatch]:
    """Return the sends of an intact batch, with the CRCs that validation uses.

    Parameters:
        data: the batch with its header.
        over_kafka: whether it was read over the Kafka protocol.

    Raises:
        UnidentifiedBatchError: an identity is required, and missing.
    """
    pid = header.producer_id
    if policy_of(pid) is Policy.KAFKA or pid < 0:
        return [LoggedBatch(header)]
    if over_kafka:
        return _sends_over_kafka(header, data)
    if pid and pid != WRITER_PID:
        raise UnidentifiedBatchError(
            f"offset {header.base_offset}: PID {pid} stands in the header of a batch, where only"
            " those of policy kafka do"
        )
    return list(parted(logged(header, data), data))


def _sends_over_kafka(header: BatchHeader, data: memoryview) -> list[LoggedBatch]:
    try:
        identity = find_identity(header, data)
    except IdentityError as error:
        raise UnidentifiedBatchError(f"offset {header.base_offset}: {error}") from error
    if identity is None:
        if policy_of(header.producer_id) is None:
            return [LoggedBatch(header)]  # an idempotent Kafka producer
        raise UnidentifiedBatchError(f"offset {header.base_offset}: it has no header pidlease")
    # As a server with a Kafka-backed log validates it.
    crc = crc_of_send(header, data)
    return list(parted(LoggedBatch(header._replace(crc=crc), identity), data))
