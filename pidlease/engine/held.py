"""What is known of partitions that cannot be read now, until they can."""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from pidlease.engine.partition import Partition
from pidlease.storage.snapshots import PartitionRows, TopicPartition
from pidlease.storage.topics import Topic

#: A topic that was not seen for so long will not come again.
_UNSEEN_MS_MAX: Final = 3_600_000


class HeldRows:
    """See the module's text.

    Of two kinds: topics that are there, and have no leader yet; and topics that are not seen. A
    cluster that does not show a topic may have deleted it. It may as well not let us see it any
    more, or not know of it yet itself, as a broker that has just started. So its producers are
    forgotten only when another topic has the name, or after an hour.

    Parameters:
        clock_ms: the time, in ms since 1970.
    """

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms: Final = clock_ms
        self._rows: dict[TopicPartition, PartitionRows] = {}
        #: Topics that are not seen, and since when.
        self._unseen_ms: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def begin_with(self, rows: Mapping[TopicPartition, PartitionRows]) -> None:
        """Take what the snapshot of the start has of partitions that were not read."""
        self._rows = dict(rows)

    def hold(self, partition: Partition) -> None:
        """Keep what is known of a partition whose topic is not seen any more.

        Where a partition has stopped its state is not of use, and what was held of it stays.
        """
        if not partition.log.stopped:
            self._rows[partition.name] = partition.rows()

    def let_go(self, place: TopicPartition) -> None:
        """It has been read."""
        self._rows.pop(place, None)

    def of(self, partition: Partition) -> PartitionRows | None:
        """What a partition begins with, by the rules of a start; None: the log's beginning."""
        rows = self._rows.get(partition.name)
        if rows is None or partition.log.end_offset < rows.next_offset:
            return None
        return rows

    def expect(self, topics: Mapping[str, Topic]) -> None:
        """Forget topics in whose place there is another, and note which are not seen.

        Parameters:
            topics: all there are, by name.
        """
        now_ms = self._clock_ms()
        for name in {place.topic for place in self._rows}:
            if name in topics:
                self._unseen_ms.pop(name, None)
            else:
                self._unseen_ms.setdefault(name, now_ms)
        self._rows = {
            place: rows for place, rows in self._rows.items()
            if place.topic not in topics or topics[place.topic].topic_id == rows.topic_id
        }  # fmt: skip

    def for_snapshot(self, read: Collection[str]) -> list[PartitionRows]:
        """What a snapshot is to have besides.

        Parameters:
            read: the topics that can be read: what of them is held is not newer.
        """
        self._forget()
        return [rows for place, rows in self._rows.items() if place.topic not in read]

    def _forget(self) -> None:
        oldest = self._clock_ms() - _UNSEEN_MS_MAX
        late = {name for name, since_ms in self._unseen_ms.items() if since_ms < oldest}
        if late:
            self._rows = {at: rows for at, rows in self._rows.items() if at.topic not in late}
            self._unseen_ms = {
                name: since for name, since in self._unseen_ms.items() if name not in late
            }
