"""Batches without a PID that wait for Kafka when their partition loses its leader."""

import asyncio
from types import SimpleNamespace
from typing import Any

from pidlease.core.topic_partition import TopicPartition
from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.appenders.kafka_appender import KafkaAppender
from pidlease.engine.batch_identity import batch_of
from pidlease.engine.partition import Partition
from pidlease.engine.partition_context import PartitionContext
from pidlease.engine.pending_batches import Submitted
from pidlease.engine.topic_counts import Counts
from pidlease.kafka.client.cluster import NO_LEADER, UpstreamTopic, View
from pidlease.kafka.client.offset_requests import LeaderLog
from pidlease.kafka.client.produce_channels import ProduceChannels
from pidlease.kafka.errors import UpstreamAwayError
from pidlease.kafka.records.record_batch import read_header
from pidlease.log.kafka.kafka_partition_log import KafkaPartitionLog
from pidlease.storage.topics.topic_store import Topic
from tests.servers.waiting import WAIT_S
from tests.sim.batches import make_batch
from tests.unit.engine.fakes import FakeLeases

_PLACE = TopicPartition("t", 0)


class _Cluster:
    """Brokers that cannot be reached."""

    config = SimpleNamespace(request_seconds=30)

    def __init__(self) -> None:
        self.lead(1)

    def lead(self, broker: int) -> None:
        self.view = View(topics={"t": UpstreamTopic("t", "id", internal=False, leaders=(broker,))})

    def stale(self) -> None:
        """The view is as it is."""

    def address(self, broker: int) -> tuple[str, int]:
        raise UpstreamAwayError(f"no address of broker {broker}")


async def test_all_of_many_waiting_batches_get_their_outcome() -> None:
    cluster: Any = _Cluster()
    upstream: Any = SimpleNamespace(send=ProduceChannels(cluster).send, stale=cluster.stale)
    writers: Any = SimpleNamespace(kept_ms=1000, ids=(), learns=False)
    pool: Any = None
    opened, loop = LeaderLog("id", 1, 0, 0, 0), asyncio.get_running_loop()
    log = KafkaPartitionLog(upstream, _PLACE, opened, writers, pool, loop)
    context = PartitionContext(
        FakeLeases(), Counts(), lambda: 1000,
        appends=lambda log, partition: KafkaAppender(log, partition, lambda: 1000),
    )  # fmt: skip
    partition = Partition(_PLACE, Topic("t", "id", 1, {}), log, context)
    outcomes: list[Outcome] = []
    for _ in range(2000):
        data = make_batch([b"x"], pid=-1, epoch=-1, first=-1)
        header = read_header(data)
        partition.produce(Submitted(-1, header, data, batch_of(header), outcomes.append))
    cluster.lead(NO_LEADER)
    async with asyncio.timeout(WAIT_S):
        while partition.in_flight:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)
    assert [each.status for each in outcomes] == [Status.FAILED] * 2000
