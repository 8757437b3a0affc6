"""A Kafka cluster of three brokers, each a controller as well, with small heaps."""

from pathlib import Path
from typing import Final, Self

from tests.servers.kafka.server import KafkaServer
from tests.servers.kafka.template import new_id

_HEAP: Final = "256m"
#: The usual settings of a cluster in production.
_SAFE: Final = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    # Short, so that a dead broker is noticed soon, and leaders move back soon.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "leader.imbalance.check.interval.seconds": "5",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1500",
}


class KafkaCluster:
    """Runs the brokers during a block.

    Parameters:
        overrides: further settings of all brokers.
        version: of Kafka; empty: the version in pom.xml.
    """

    def __init__(
        self, directory: Path, *, overrides: dict[str, str] | None = None, version: str = ""
    ) -> None:
        settings = {**_SAFE, **(overrides or {})}
        self.nodes: Final = [
            KafkaServer(
                directory / f"node{number}",
                heap=_HEAP,
                overrides=settings,
                node_id=number,
                version=version,
            )
            for number in (1, 2, 3)
        ]
        cluster_id = new_id()
        for node in self.nodes:
            node.voters = ",".join(each.voter for each in self.nodes)
            node.cluster_id = cluster_id
        self.bootstrap: Final = ",".join(node.bootstrap for node in self.nodes)

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                node.launch()
            for node in self.nodes:
                node.wait()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def _kill(self) -> None:
        for node in self.nodes:
            node.process.kill9()
