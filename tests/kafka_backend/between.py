"""A server, with a relay between it and its Kafka that spoils answers."""

from dataclasses import dataclass

from tests.kafka_backend.spoiling import Spoiler
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer


@dataclass(frozen=True)
class Between:
    """A Kafka, the relay in front of it, and the server in front of that."""

    kafka: KafkaServer
    spoiler: Spoiler
    server: PidleaseServer
