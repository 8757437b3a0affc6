"""A request of each Kafka API that names the topic t, the group g and the transactional id x."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from pidlease.kafka import api
from tests.kafka_listener.batches import batch

TOPIC: Final = "t"
GROUP: Final = "g"
ID: Final = "x"
_PARTITIONS: Final = [{"name": TOPIC, "partitions": [{"partition_index": 0}]}]
_INDEXES: Final = [{"name": TOPIC, "partition_indexes": [0]}]
_TXN: Final = {"transactional_id": ID, "producer_id": 1, "producer_epoch": 0}
_CONFIGS: Final = [{"resource_type": 2, "resource_name": TOPIC, "configs": []}]
_FILTER: Final = {
    "resource_type_filter": 2, "resource_name_filter": TOPIC, "pattern_type_filter": 3,
    "operation": 1, "permission_type": 1,
}  # fmt: skip


#: Values by API key; each version takes those that it has.
REQUESTS: Final[Mapping[int, dict[str, Any]]] = {
    api.API_PRODUCE: {
        "acks": -1,
        "topic_data": [{"name": TOPIC, "partition_data": [
            {"index": 0, "records": batch([b"a"])}]}],
    },
    api.API_FETCH: {
        "topics": [{"topic": TOPIC, "partitions": [{"partition": 0, "fetch_offset": 0,
                                                    "partition_max_bytes": 100}]}],
        "min_bytes": 0, "replica_id": -1,
    },
    api.API_LIST_OFFSETS: {
        "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    },
    api.API_METADATA: {"topics": [{"name": TOPIC}]},
    api.API_OFFSET_COMMIT: {"group_id": GROUP, "topics": _PARTITIONS,
                            "generation_id_or_member_epoch": -1},
    api.API_OFFSET_FETCH: {"group_id": GROUP, "topics": _INDEXES,
                           "groups": [{"group_id": GROUP, "topics": _INDEXES}]},
    api.API_FIND_COORDINATOR: {"key": GROUP, "coordinator_keys": [GROUP]},
    api.API_JOIN_GROUP: {
        "group_id": GROUP, "session_timeout": timedelta(seconds=6), "protocol_type": "consumer",
        "rebalance_timeout": timedelta(seconds=1),
        "protocols": [{"name": "range", "metadata": b""}],
    },
    api.API_HEARTBEAT: {"group_id": GROUP},
    api.API_LEAVE_GROUP: {"group_id": GROUP, "members": [{"member_id": "m"}]},
    api.API_SYNC_GROUP: {"group_id": GROUP},
    api.API_DESCRIBE_GROUPS: {"groups": [GROUP]},
    api.API_LIST_GROUPS: {},
    api.API_CREATE_TOPICS: {"topics": [{"name": TOPIC, "num_partitions": 1,
                                        "replication_factor": 1}], "validate_only": True},
    api.API_DELETE_TOPICS: {"topics": [{"name": TOPIC}], "topic_names": [TOPIC]},
    api.API_DELETE_RECORDS: {
        "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 0}]}]
    },
    api.API_INIT_PRODUCER_ID: {"transactional_id": None, "producer_id": -1, "producer_epoch": -1},
    api.API_ADD_PARTITIONS_TO_TXN: {
        "v3_and_below_transactional_id": ID, "v3_and_below_producer_id": 1,
        "v3_and_below_topics": [{"name": TOPIC, "partitions": [0]}],
    },
    api.API_ADD_OFFSETS_TO_TXN: {**_TXN, "group_id": GROUP},
    api.API_END_TXN: {**_TXN, "committed": True},
    api.API_TXN_OFFSET_COMMIT: {**_TXN, "group_id": GROUP, "topics": _PARTITIONS},
    api.API_DESCRIBE_CONFIGS: {"resources": _CONFIGS},
    api.API_ALTER_CONFIGS: {"resources": _CONFIGS, "validate_only": True},
    api.API_INCREMENTAL_ALTER_CONFIGS: {"resources": _CONFIGS, "validate_only": True},
    api.API_CREATE_PARTITIONS: {"topics": [{"name": TOPIC, "count": 2}], "validate_only": True},
    api.API_DELETE_GROUPS: {"groups_names": [GROUP]},
    api.API_OFFSET_DELETE: {"group_id": GROUP, "topics": _PARTITIONS},
    api.API_DESCRIBE_CLUSTER: {},
    api.API_DESCRIBE_PRODUCERS: {"topics": _INDEXES},
    api.API_DESCRIBE_TRANSACTIONS: {"transactional_ids": [ID]},
    api.API_LIST_TRANSACTIONS: {},
    api.API_CONSUMER_GROUP_HEARTBEAT: {"group_id": GROUP, "member_id": "m",
                                       "subscribed_topic_names": [TOPIC]},
    api.API_CONSUMER_GROUP_DESCRIBE: {"group_ids": [GROUP]},
    api.API_DESCRIBE_ACLS: _FILTER,
    api.API_CREATE_ACLS: {"creations": [{
        "resource_type": 2, "resource_name": TOPIC, "resource_pattern_type": 3,
        "principal": "User:mallory", "host": "*", "operation": 3, "permission_type": 3}]},
    api.API_DELETE_ACLS: {"filters": [_FILTER]},
    api.API_DESCRIBE_CLIENT_QUOTAS: {},
    api.API_ALTER_CLIENT_QUOTAS: {"entries": [
        {"entity": [{"entity_type": "user", "entity_name": "bob"}],
         "ops": [{"key": "request_rate", "value": 5.0}]}]},
    api.API_DESCRIBE_USER_SCRAM_CREDENTIALS: {"users": None},
    api.API_ALTER_USER_SCRAM_CREDENTIALS: {
        "deletions": [{"name": "bob", "mechanism": 1}], "upsertions": []},
}  # fmt: skip
