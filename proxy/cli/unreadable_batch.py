"""Finds the batch that a consumer could not read: its client does not say which one it was."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from pidlease.copier.cluster_reader import ClusterReader
from pidlease.copier.errors import CopyError
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.cluster import Cluster
from pidlease.kafka.records.batch_records import UndecodableError, decoded
from pidlease.kafka.records.record_batch import CorruptBatchError, check_intact

#: How long requests to a partition's leader are sent again.
_SECONDS: Final = 10.0


class UnreadableBatch(NamedTuple):
    """A batch that cannot be read.

    Attributes:
        place: its topic and partition.
        first_offset: of its records.
        next_offset: the offset after it.
        reason: why it cannot be read.
    """

    place: TopicPartition
    first_offset: int
    next_offset: int
    reason: str


async def find_unreadable(
    cluster: Cluster, positions: Mapping[TopicPartition, int]
) -> UnreadableBatch | None:
    """Find a batch that cannot be read in the next fetch of some partitions; None: there is none.

    Parameters:
        cluster: started.
        positions: the offset to fetch from; the partition has a record there, or after it.
    """
    reader = ClusterReader(cluster, "the server", _SECONDS)
    for place, position in positions.items():
        try:
            async for chunk in reader.chunks(place, position, position + 1):
                for header, batch in chunk.batches():
                    try:
                        check_intact(header, batch)
                        if not header.is_control:
                            for _ in decoded(header, batch):
                                pass
                    except (CorruptBatchError, UndecodableError) as error:
                        first, after = header.base_offset, header.last_offset + 1
                        return UnreadableBatch(place, first, after, str(error))
        except CopyError:
            continue  # it can be another partition
    return None
