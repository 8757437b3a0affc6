"""A real Apache Kafka, fetched by its Maven coordinates, and its own segment reader."""

from tests.servers.kafka.cluster import KafkaCluster
from tests.servers.kafka.install import kafka_version, unavailable_reason
from tests.servers.kafka.segments import (
    DumpedBatch,
    DumpedFile,
    DumpedRecord,
    SegmentDump,
    dump_log_segments,
)
from tests.servers.kafka.server import KafkaServer, short_lived

__all__ = [
    "DumpedBatch",
    "DumpedFile",
    "DumpedRecord",
    "KafkaCluster",
    "KafkaServer",
    "SegmentDump",
    "dump_log_segments",
    "kafka_version",
    "short_lived",
    "unavailable_reason",
]
