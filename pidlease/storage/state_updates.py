"""Updates of producers' states, as one server sends them to another.

Without pyarrow: a server imports it with its first snapshot, or when it follows another server.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from pidlease.core.topic_partition import TopicPartition
from pidlease.storage.snapshot_rows import PartitionRows

#: Partitions that a request names at most: to add, to drop, or to say how far they are known.
NAMES_MAX: Final = 2_000


class FeedRequest(NamedTuple):
    """A follower's request for what has changed.

    Attributes:
        feed: its name, made by the follower.
        number: of the request. Each attempt has a new one, higher than all before.
        noted: the number of the last request with an answer that was noted; -1: none was.
        add: partitions to follow from now on.
        drop: partitions not to follow any more; this comes first.
        ends: whether the feed ends; the answer is empty.
    """

    feed: str
    number: int
    noted: int = -1
    add: Sequence[TopicPartition] = ()
    drop: Sequence[TopicPartition] = ()
    ends: bool = False


class StateUpdate(NamedTuple):
    """A part of the changes of a partition's producers.

    Attributes:
        rows: the changed producers; the offset vector's entry holds after the last part.
        begins: whether this is the first part of all producers: earlier parts do not count.
        ends: whether this is the last part for now.
        owned: whether the partition's owner sends it, verified by the map. Servers of earlier
            versions do not say so.
    """

    rows: PartitionRows
    begins: bool
    ends: bool
    owned: bool = False


class StateUpdates(NamedTuple):
    """The answer to a follower.

    Attributes:
        updates: of the partitions that have changed.
        more: whether there are more changes already.
    """

    updates: Sequence[StateUpdate]
    more: bool
