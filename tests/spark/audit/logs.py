"""Data directories with real segments, written by the log itself from batches as clients send."""

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, cast

from pidlease.client.pending_batch import PendingBatch, SequenceRange
from pidlease.coordination.file.file_sequence import FileSequence
from pidlease.core.log_config import FsyncPolicy, LogConfig
from pidlease.core.pid import Policy, policy_of
from pidlease.kafka.records.identity_header import HEADER_NAME, Identity, encode_identity
from pidlease.kafka.records.record_batch import read_header
from pidlease.kafka.records.writer_batch import under_writer
from pidlease.log.ports import NewBatch
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.log.segments.embedded_log import EmbeddedPartitionLog
from pidlease.storage.files import RealFiles
from pidlease.storage.topics.topic_store import Topic
from tests.sim.batches import TIME_MS, make_batch

#: Kafka's number of a codec.
CODECS = {None: 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class Origin(NamedTuple):
    """A producer: a PID (-1: none), or a producer id."""

    pid: int = -1
    producer_id: str = ""


def encoded(
    producer: Origin,
    generation: int,
    first: int,
    count: int,
    *,
    last: int | None = None,
    codec: str | None = None,
    time_ms: int = TIME_MS,
    value: bytes = b"v" * 20,
) -> NewBatch:
    """Return a send as it is in the log.

    Parameters:
        first: its first sequence number.
        count: the number of records.
        last: its last sequence number; None: one for each record.
    """
    last = first + count - 1 if last is None else last
    if policy_of(producer.pid) is Policy.KAFKA or (producer.pid < 0 and not producer.producer_id):
        data = make_batch([value] * count, pid=producer.pid, epoch=generation, first=first,
                          timestamps=time_ms, compression=CODECS[codec])  # fmt: skip
        return NewBatch(data, read_header(data))
    batch = PendingBatch(1 << 30, 0.0)
    headers: list[tuple[str, bytes | None]] = []
    if producer.producer_id:
        return _named(producer.producer_id, (generation, first, last), count, value, time_ms)
    for _ in range(count):
        batch.append(None, value, headers, time_ms)
        batch.futures.append(cast("Any", None))
    batch.seal(SequenceRange(producer.pid, generation, first, last, first), codec)
    return NewBatch(batch.data, under_writer(read_header(batch.data), batch.data))


def _named(
    name: str, numbers: tuple[int, int, int], count: int, value: bytes, time_ms: int
) -> NewBatch:
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    identity = encode_identity(Identity(-1, name, *numbers))
    for place in range(count):
        headers = [] if place else [(HEADER_NAME, identity)]
        builder.append(place, time_ms, None, value, headers)
    data = bytearray(builder.build())
    return NewBatch(data, under_writer(read_header(data), data))


class Logs:
    """A data directory to fill.

    Parameters:
        segment_bytes: the most bytes of a segment.
    """

    def __init__(self, path: Path, segment_bytes: int = 1 << 20) -> None:
        self.path = path
        config = LogConfig(segment_bytes, retention_ms=-1, fsync=FsyncPolicy.NEVER)
        self.folder = DataDirectory(RealFiles(), path, config, cast("Any", None))
        sequence = FileSequence(RealFiles(), self.folder.sequence, "me", lambda: TIME_MS, 1)
        sequence.take()
        self._logs: dict[tuple[str, int], EmbeddedPartitionLog] = {}

    def topic(self, name: str, partitions: int = 1) -> Topic:
        """Make a topic."""
        topic = Topic.new(name, partitions)
        self.folder.make_topic(topic)
        for number in range(partitions):
            self._logs[name, number] = self.folder.open_partition(topic, number, 0)
        return topic

    def append(self, topic: str, partition: int, batches: Iterable[NewBatch]) -> list[int]:
        """Append batches; return their base offsets."""
        return self._logs[topic, partition].append_blocking(list(batches))

    def flush(self, topic: str, partition: int) -> None:
        """Make all batches of a partition durable."""
        self._logs[topic, partition].flush_blocking()

    def segments(self, topic: str, partition: int = 0) -> list[Path]:
        """The segments of a partition."""
        return sorted((self.path / "logs" / f"{topic}-{partition}").glob("*.log"))

    def close(self) -> None:
        """Stop cleanly."""
        self.folder.close()

    def __enter__(self) -> "Logs":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()
