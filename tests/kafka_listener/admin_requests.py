"""Admin requests, by their plainest values, and what any version must answer."""

import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from tests.servers.waiting import WAIT_S

CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
DELETE_RECORDS: Final = 21
DESCRIBE_CONFIGS: Final = 32
ALTER_CONFIGS: Final = 33
CREATE_PARTITIONS: Final = 37
INCREMENTAL_ALTER_CONFIGS: Final = 44
DESCRIBE_CLUSTER: Final = 60
DESCRIBE_PRODUCERS: Final = 61
ADMIN_KEYS: Final = (
    DELETE_TOPICS, DELETE_RECORDS, DESCRIBE_CONFIGS, ALTER_CONFIGS, CREATE_PARTITIONS,
    INCREMENTAL_ALTER_CONFIGS, DESCRIBE_CLUSTER, DESCRIBE_PRODUCERS,
)  # fmt: skip
#: The types of resources, and the operations on a setting.
TOPIC, BROKER, BROKER_LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
_TIMEOUT: Final = timedelta(seconds=WAIT_S)


def deletion(*names: str, ids: Sequence[uuid.UUID] = ()) -> dict[str, object]:
    """A DeleteTopics request."""
    by_id = [{"topic_id": each, "name": None} for each in ids]
    topics = [*({"name": name, "topic_id": None} for name in names), *by_id]
    return {"topics": topics, "topic_names": names, "timeout": _TIMEOUT}


def record_deletion(topics: Mapping[str, Mapping[int, int]]) -> dict[str, object]:
    """A DeleteRecords request: topic, partition, and the first offset to keep."""
    named = [
        {
            "name": name,
            "partitions": [{"partition_index": n, "offset": at} for n, at in offsets.items()],
        }
        for name, offsets in topics.items()
    ]
    return {"topics": named, "timeout": _TIMEOUT}


def more_partitions(*topics: tuple[str, int], validate_only: bool = False) -> dict[str, object]:
    """A CreatePartitions request."""
    named = [{"name": name, "count": count, "assignments": None} for name, count in topics]
    return {"topics": named, "timeout": _TIMEOUT, "validate_only": validate_only}


def config_question(
    *resources: tuple[int, str], keys: Sequence[str] | None = None, **more: bool
) -> dict[str, object]:
    """A DescribeConfigs request."""
    named = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        for kind, name in resources
    ]
    return {"resources": named, **more}


def alteration(
    topic: str, *operations: tuple[str, int, str | None], kind: int = TOPIC, **more: bool
) -> dict[str, object]:
    """An IncrementalAlterConfigs request, or an AlterConfigs one, for one resource."""
    configs = [
        {"name": name, "config_operation": operation, "value": value}
        for name, operation, value in operations
    ]
    resource = {"resource_type": kind, "resource_name": topic, "configs": configs}
    return {"resources": [resource], **more}


def producer_question(topics: Mapping[str, Sequence[int]]) -> dict[str, object]:
    """A DescribeProducers request."""
    named = [{"name": name, "partition_indexes": numbers} for name, numbers in topics.items()]
    return {"topics": named}


def admin_request(key: int, topic: str) -> dict[str, object]:
    """A plain request about a topic that there is, with one record."""
    requests: dict[int, dict[str, object]] = {
        DELETE_TOPICS: deletion(topic, "absent"),
        DELETE_RECORDS: record_deletion({topic: {0: -1, 7: 0}}),
        DESCRIBE_CONFIGS: config_question(
            (TOPIC, topic), (TOPIC, "absent"), include_synonyms=True, include_documentation=True
        ),
        ALTER_CONFIGS: alteration(topic, ("retention.ms", SET, "5")),
        CREATE_PARTITIONS: more_partitions((topic, 2), ("absent", 2)),
        INCREMENTAL_ALTER_CONFIGS: alteration(topic, ("retention.ms", SET, "5")),
        DESCRIBE_CLUSTER: {"endpoint_type": 1},
        DESCRIBE_PRODUCERS: producer_question({topic: [0, 7]}),
    }
    return requests[key]


def look_at_admin_answer(key: int, version: int, body: Any, topic: str) -> None:
    """The least that any version must have told."""
    if key == DELETE_TOPICS:
        assert [(each.name, each.error_code) for each in body.responses] == [
            (topic, 0),
            ("absent", 3),
        ]
        if version >= 5:
            assert body.responses[1].error_message
    elif key == DELETE_RECORDS:
        parts = body.topics[0].partitions
        assert [(each.low_watermark, each.error_code) for each in parts] == [(1, 0), (-1, 3)]
    elif key == DESCRIBE_CONFIGS:
        known, absent = body.results
        assert (known.error_code, absent.error_code) == (0, 3)
        described = {each.name: each for each in known.configs}
        assert described["retention.ms"].value == str(7 * 24 * 3600 * 1000)
        assert described["retention.ms"].synonyms[0].name == "log.retention.ms"
        if version >= 3:
            assert described["retention.ms"].config_type == 5
            assert "-1" in described["retention.ms"].documentation
    elif key in (ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS):
        assert [(each.resource_name, each.error_code) for each in body.responses] == [(topic, 0)]
    elif key == CREATE_PARTITIONS:
        assert [(each.name, each.error_code) for each in body.results] == [
            (topic, 0),
            ("absent", 3),
        ]
    elif key == DESCRIBE_CLUSTER:
        assert (body.error_code, body.controller_id) == (0, 1)
        assert [each.broker_id for each in body.brokers] == [1]
    else:
        parts = body.topics[0].partitions
        assert [(each.partition_index, each.error_code) for each in parts] == [(0, 0), (7, 3)]
