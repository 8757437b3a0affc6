"""The versions of Kafka's APIs that the listener serves: key -> (lowest, highest version)."""

from collections.abc import Mapping
from typing import Final

from pidlease.kafka.api import (
    API_ADD_OFFSETS_TO_TXN,
    API_ADD_PARTITIONS_TO_TXN,
    API_ALTER_CONFIGS,
    API_API_VERSIONS,
    API_CONSUMER_GROUP_DESCRIBE,
    API_CONSUMER_GROUP_HEARTBEAT,
    API_CREATE_PARTITIONS,
    API_CREATE_TOPICS,
    API_DELETE_GROUPS,
    API_DELETE_RECORDS,
    API_DELETE_TOPICS,
    API_DESCRIBE_CLUSTER,
    API_DESCRIBE_CONFIGS,
    API_DESCRIBE_GROUPS,
    API_DESCRIBE_PRODUCERS,
    API_DESCRIBE_TRANSACTIONS,
    API_END_TXN,
    API_FETCH,
    API_FIND_COORDINATOR,
    API_HEARTBEAT,
    API_INCREMENTAL_ALTER_CONFIGS,
    API_INIT_PRODUCER_ID,
    API_JOIN_GROUP,
    API_LEAVE_GROUP,
    API_LIST_GROUPS,
    API_LIST_OFFSETS,
    API_LIST_TRANSACTIONS,
    API_METADATA,
    API_OFFSET_COMMIT,
    API_OFFSET_DELETE,
    API_OFFSET_FETCH,
    API_PRODUCE,
    API_SYNC_GROUP,
    API_TXN_OFFSET_COMMIT,
)

Versions = Mapping[int, tuple[int, int]]

#: Served on the embedded log. Low versions stay, since some clients ignore the advertised lowest.
SERVED_VERSIONS: Final[Versions] = {
    API_PRODUCE: (3, 12),
    API_FETCH: (4, 11),
    API_LIST_OFFSETS: (1, 6),
    API_METADATA: (0, 13),
    API_OFFSET_COMMIT: (2, 9),
    API_OFFSET_FETCH: (1, 9),
    API_FIND_COORDINATOR: (0, 6),
    API_JOIN_GROUP: (0, 9),
    API_HEARTBEAT: (0, 4),
    API_LEAVE_GROUP: (0, 5),
    API_SYNC_GROUP: (0, 5),
    API_DESCRIBE_GROUPS: (0, 6),
    API_LIST_GROUPS: (0, 5),
    API_API_VERSIONS: (0, 4),
    API_CREATE_TOPICS: (2, 7),
    API_DELETE_TOPICS: (1, 6),
    API_DELETE_RECORDS: (0, 2),
    API_INIT_PRODUCER_ID: (0, 5),
    API_DESCRIBE_CONFIGS: (1, 4),
    API_ALTER_CONFIGS: (0, 2),
    API_CREATE_PARTITIONS: (0, 3),
    API_DELETE_GROUPS: (0, 2),
    API_INCREMENTAL_ALTER_CONFIGS: (0, 1),
    API_OFFSET_DELETE: (0, 0),
    API_DESCRIBE_CLUSTER: (0, 2),
    API_DESCRIBE_PRODUCERS: (0, 0),
}

#: With Kafka as the log: served by the proxy itself, whatever versions Kafka serves.
_OWN: Final = (API_METADATA, API_FIND_COORDINATOR, API_API_VERSIONS, API_DESCRIBE_CLUSTER)

#: With Kafka as the log: forwarded, as far as Kafka serves them. No response of these versions has
#: a broker's address, as Produce from version 10 and Fetch from version 16 on do.
_FORWARDED: Final[Versions] = {
    **{key: versions for key, versions in SERVED_VERSIONS.items() if key not in _OWN},
    API_PRODUCE: (3, 9),
    API_OFFSET_FETCH: (1, 7),
    API_ADD_PARTITIONS_TO_TXN: (0, 3),
    API_ADD_OFFSETS_TO_TXN: (0, 4),
    API_END_TXN: (0, 4),
    API_TXN_OFFSET_COMMIT: (0, 4),
    API_DESCRIBE_TRANSACTIONS: (0, 0),
    API_LIST_TRANSACTIONS: (0, 2),
    API_CONSUMER_GROUP_HEARTBEAT: (0, 1),
    API_CONSUMER_GROUP_DESCRIBE: (0, 1),
}


def forwarded_versions(of_kafka: Versions) -> dict[int, tuple[int, int]]:
    """Return the versions served when Kafka, which serves `of_kafka`, is the log."""
    found = {key: SERVED_VERSIONS[key] for key in _OWN}
    for key, (lowest, highest) in _FORWARDED.items():
        if key not in of_kafka:
            continue
        own = key == API_PRODUCE  # the proxy encodes its own requests to Kafka
        low = lowest if own else max(lowest, of_kafka[key][0])
        high = highest if own else min(highest, of_kafka[key][1])
        if low <= high:
            found[key] = (low, high)
    return found


def advertised(versions: Versions) -> dict[int, tuple[int, int]]:
    """Return the versions that ApiVersions lists for the served ones.

    librdkafka compresses only for brokers that list Produce from version 0 on (KAFKA-18659), so
    pidlease, like Kafka 4, lists version 0 without serving it.
    """
    return {**versions, API_PRODUCE: (0, versions[API_PRODUCE][1])}


ADVERTISED: Final = advertised(SERVED_VERSIONS)
