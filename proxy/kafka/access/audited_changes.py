"""The changes that clients make by Kafka's requests, for the audit log.

Users, ACLs and quotas are not among them: their handlers write them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from pidlease.kafka.api import (
    API_ALTER_CONFIGS,
    API_CREATE_PARTITIONS,
    API_CREATE_TOPICS,
    API_DELETE_GROUPS,
    API_DELETE_RECORDS,
    API_DELETE_TOPICS,
    API_INCREMENTAL_ALTER_CONFIGS,
    API_OFFSET_DELETE,
)
from proxy.security.acls import CLUSTER_NAME, ResourceKind

_TOPIC_RESOURCE: Final = 2
#: Returns the resource of each item of a response that was changed.
_Changed = Callable[[Any], Iterable[str]]


def _items(array: str, kind: ResourceKind, name: str) -> _Changed:
    def changed(response: Any) -> Iterator[str]:
        for each in getattr(response, array):
            if each.error_code is ErrorCode.none:
                yield f"{kind.name}:{getattr(each, name)}"

    return changed


def _configs(response: Any) -> Iterator[str]:
    for each in response.responses:
        if each.error_code is ErrorCode.none:
            is_topic = each.resource_type == _TOPIC_RESOURCE
            yield f"TOPIC:{each.resource_name}" if is_topic else f"CLUSTER:{CLUSTER_NAME}"


def _partitions(response: Any) -> Iterator[str]:
    for topic in response.topics:
        if any(each.error_code is ErrorCode.none for each in topic.partitions):
            yield f"TOPIC:{topic.name}"


#: Operation, and what was changed, by the key of the API.
_CHANGES: Final[Mapping[int, tuple[str, _Changed]]] = {
    API_CREATE_TOPICS: ("CREATE_TOPIC", _items("topics", ResourceKind.TOPIC, "name")),
    API_DELETE_TOPICS: ("DELETE_TOPIC", _items("responses", ResourceKind.TOPIC, "name")),
    API_CREATE_PARTITIONS: ("CREATE_PARTITIONS", _items("results", ResourceKind.TOPIC, "name")),
    API_DELETE_RECORDS: ("DELETE_RECORDS", _partitions),
    API_ALTER_CONFIGS: ("ALTER_CONFIGS", _configs),
    API_INCREMENTAL_ALTER_CONFIGS: ("ALTER_CONFIGS", _configs),
    API_DELETE_GROUPS: ("DELETE_GROUP", _items("results", ResourceKind.GROUP, "group_id")),
    API_OFFSET_DELETE: ("DELETE_OFFSETS", _partitions),
}
AUDITED: Final = frozenset(_CHANGES)


def changes(key: int, request: Any, response: Any) -> Iterator[tuple[str, str]]:
    """Return operation and resource of each change that a request has made.

    Parameters:
        key: of an API in `AUDITED`.
        request: decoded; one that only validates has changed nothing.
        response: decoded.
    """
    if getattr(request, "validate_only", False):
        return
    operation, changed = _CHANGES[key]
    for resource in changed(response):
        yield operation, resource
