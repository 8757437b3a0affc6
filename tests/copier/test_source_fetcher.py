"""How a fetch is divided: partitions of one leader take turns."""

from typing import cast

from pidlease.copier.cluster_reader import FetchedChunk, FetchedPartition
from pidlease.copier.errors import CopyError
from pidlease.copier.source_fetcher import SourceFetcher
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.cluster import Cluster
from pidlease.kafka.client.settings import UpstreamConfig, addresses_of


class Reader:
    """Takes what comes."""

    def __init__(self, number: int) -> None:
        self.place = TopicPartition("t", number)
        self.topic_id = ""
        self.wants = 0

    def came(self, offset: int, chunk: FetchedChunk) -> None:
        """Is not looked at."""

    def out_of_range(self) -> None:
        raise AssertionError

    def failed(self, error: CopyError) -> None:
        raise error


def test_partitions_that_got_nothing_are_next() -> None:
    """Once the first eight of a leader's kept their places for as long as they had a backlog."""
    fetcher = SourceFetcher(Cluster(UpstreamConfig(addresses_of("127.0.0.1:1"))), 100, 1.0)
    readers = [Reader(number) for number in range(20)]
    for each in readers:
        fetcher.add(each)
    served: set[int] = set()
    for _ in range(3):
        order = list(fetcher._readers.values())
        found = {
            each.place: FetchedPartition(0, FetchedChunk(b"x" if turn < 8 else b"", [], 9))
            for turn, each in enumerate(order)
        }
        served |= {each.place.partition for each in order[:8]}
        fetcher._take([(cast(Reader, each), 0) for each in order], found)
    assert served == set(range(20))
