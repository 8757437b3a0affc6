"""The matrix of rights: what each Kafka API needs, as in Kafka's KafkaApis and KIP-679.

An API without a row here is refused, and a test fails for it.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from pidlease.kafka.api import (
    API_ADD_OFFSETS_TO_TXN,
    API_ADD_PARTITIONS_TO_TXN,
    API_ALTER_CLIENT_QUOTAS,
    API_ALTER_CONFIGS,
    API_ALTER_USER_SCRAM_CREDENTIALS,
    API_API_VERSIONS,
    API_CONSUMER_GROUP_DESCRIBE,
    API_CONSUMER_GROUP_HEARTBEAT,
    API_CREATE_ACLS,
    API_CREATE_PARTITIONS,
    API_CREATE_TOPICS,
    API_DELETE_ACLS,
    API_DELETE_GROUPS,
    API_DELETE_RECORDS,
    API_DELETE_TOPICS,
    API_DESCRIBE_ACLS,
    API_DESCRIBE_CLIENT_QUOTAS,
    API_DESCRIBE_CLUSTER,
    API_DESCRIBE_CONFIGS,
    API_DESCRIBE_GROUPS,
    API_DESCRIBE_PRODUCERS,
    API_DESCRIBE_TRANSACTIONS,
    API_DESCRIBE_USER_SCRAM_CREDENTIALS,
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
    API_SASL_AUTHENTICATE,
    API_SASL_HANDSHAKE,
    API_SYNC_GROUP,
    API_TXN_OFFSET_COMMIT,
)
from proxy.security.acls import ANY_NAME, Operation, ResourceKind
from proxy.security.authorizer import Right

TOPIC_REFUSED: Final = ErrorCode.topic_authorization_failed
GROUP_REFUSED: Final = ErrorCode.group_authorization_failed
CLUSTER_REFUSED: Final = ErrorCode.cluster_authorization_failed
ID_REFUSED: Final = ErrorCode.transactional_id_authorization_failed
_TRANSACTION_KEY: Final = 1
_TOPIC_RESOURCE: Final = 2

#: Whether the client has a right; for lists, a refusal is not audited.
Allowed = Callable[[Right], Awaitable[bool]]


class Need(NamedTuple):
    """What a request, or an item of it, needs.

    Attributes:
        rights: one of them.
        code: the error without.
    """

    rights: tuple[Right, ...]
    code: ErrorCode


class Rule(NamedTuple):
    """What an API needs.

    Attributes:
        whole: what the request needs, by the request.
        items: the array with items that are decided one by one, by its names in all versions.
        item: what an item needs; None: nothing is known about it, so it may pass.
        answers: the response's array.
        hidden: removes from a response what the client may not see.
        together: whether one refused item refuses all others (OPERATION_NOT_ATTEMPTED).
        own: what `SecuredApis` or `ProduceApi` checks itself; for readers of the matrix.
        anyone: whether every client may send it.
    """

    whole: Callable[[Any], Iterable[Need]] | None = None
    items: tuple[str, ...] = ()
    item: Callable[[Any, Any], Need] | None = None
    answers: str = ""
    hidden: Callable[[Any, Allowed], Awaitable[Any]] | None = None
    together: bool = False
    own: str = ""
    anyone: bool = False

    def needs(self, request: Any) -> Iterable[Need]:
        """Return what a request needs as a whole."""
        return self.whole(request) if self.whole is not None else ()

    def array(self, request: Any) -> str:
        """Return the name of the array of items in this version; empty: there is none."""
        return next((each for each in self.items if hasattr(request, each)), "")


# ---------------------------------------------------------------------- needs


def _topic(operation: Operation, name: str) -> Need:
    return Need((Right(operation, ResourceKind.TOPIC, name),), TOPIC_REFUSED)


def _group(operation: Operation, name: str) -> Need:
    return Need((Right(operation, ResourceKind.GROUP, name),), GROUP_REFUSED)


def _transaction(operation: Operation, name: str) -> Need:
    return Need((Right(operation, ResourceKind.TRANSACTIONAL_ID, name),), ID_REFUSED)


def _cluster(operation: Operation) -> Need:
    return Need((Right(operation, ResourceKind.CLUSTER),), CLUSTER_REFUSED)


#: To lease a PID without a name (KIP-679).
IDEMPOTENT: Final = (
    Right(Operation.IDEMPOTENT_WRITE, ResourceKind.CLUSTER),
    Right(Operation.WRITE, ResourceKind.TOPIC, ""),
)
_CREATE_CLUSTER: Final = Right(Operation.CREATE, ResourceKind.CLUSTER)


def create_rights(topic: str) -> tuple[Right, ...]:
    """Return the rights of which one is needed to create a topic."""
    return Right(Operation.CREATE, ResourceKind.TOPIC, topic), _CREATE_CLUSTER


def _of_topics(operation: Operation, answers: str = "topics") -> Rule:
    return Rule(
        items=("topics",), item=lambda _, item: _topic(operation, item.name), answers=answers
    )


def _of_group(operation: Operation) -> Rule:
    return Rule(whole=lambda request: [_group(operation, request.group_id)])


def _of_groups(operation: Operation, items: str, answers: str) -> Rule:
    return Rule(items=(items,), item=lambda _, item: _group(operation, item), answers=answers)


def _of_cluster(operation: Operation) -> Rule:
    return Rule(whole=lambda _: [_cluster(operation)])


def _of_configs(operation: Operation, answers: str) -> Rule:
    def need(_: Any, item: Any) -> Need:
        if item.resource_type == _TOPIC_RESOURCE:
            return _topic(operation, item.resource_name)
        return _cluster(operation)

    return Rule(items=("resources",), item=need, answers=answers)


def _coordinator(kind: int, key: str) -> Need:
    if kind == _TRANSACTION_KEY:
        return _transaction(Operation.DESCRIBE, key)
    return _group(Operation.DESCRIBE, key)


def _coordinators_whole(request: Any) -> Iterable[Need]:
    if hasattr(request, "key"):
        yield _coordinator(getattr(request, "key_type", 0), request.key)


def _init_producer_id(request: Any) -> Iterable[Need]:
    if request.transactional_id is not None:
        yield _transaction(Operation.WRITE, request.transactional_id)
    else:
        yield Need(IDEMPOTENT, CLUSTER_REFUSED)


def _consumer_heartbeat(request: Any) -> Iterable[Need]:
    yield _group(Operation.READ, request.group_id)
    for name in request.subscribed_topic_names or ():
        yield _topic(Operation.DESCRIBE, name)
    if getattr(request, "subscribed_topic_regex", None):
        # Kafka applies the expression to all topics that this server may see.
        yield _topic(Operation.DESCRIBE, ANY_NAME)


# ---------------------------------------------------------------------- lists


def _may(
    operation: Operation, kind: ResourceKind, allowed: Allowed
) -> Callable[[str], Awaitable[bool]]:
    return lambda name: allowed(Right(operation, kind, name))


async def _listed_groups(response: Any, allowed: Allowed) -> Any:
    if await allowed(Right(Operation.DESCRIBE, ResourceKind.CLUSTER)):
        return response
    seen = _may(Operation.DESCRIBE, ResourceKind.GROUP, allowed)
    groups = [each for each in response.groups if await seen(each.group_id)]
    return dataclasses.replace(response, groups=tuple(groups))


async def _listed_transactions(response: Any, allowed: Allowed) -> Any:
    seen = _may(Operation.DESCRIBE, ResourceKind.TRANSACTIONAL_ID, allowed)
    states = [each for each in response.transaction_states if await seen(each.transactional_id)]
    return dataclasses.replace(response, transaction_states=tuple(states))


async def _topics_of_transactions(response: Any, allowed: Allowed) -> Any:
    seen = _may(Operation.DESCRIBE, ResourceKind.TOPIC, allowed)
    states = []
    for each in response.transaction_states:
        topics = [topic for topic in each.topics if await seen(topic.topic)]
        states.append(dataclasses.replace(each, topics=tuple(topics)))
    return dataclasses.replace(response, transaction_states=tuple(states))


async def _topics_of_offsets(response: Any, allowed: Allowed) -> Any:
    seen = _may(Operation.DESCRIBE, ResourceKind.TOPIC, allowed)
    topics = [each for each in response.topics if await seen(each.name)]
    return dataclasses.replace(response, topics=tuple(topics))


async def _topics_of_members(response: Any, allowed: Allowed) -> Any:
    """Remove the members of a group that has a topic which the client may not see, as Kafka."""
    seen = _may(Operation.DESCRIBE, ResourceKind.TOPIC, allowed)

    def topics(member: Any) -> Iterable[str]:
        yield from member.subscribed_topic_names
        for assignment in (member.assignment, member.target_assignment):
            yield from (each.topic_name for each in assignment.topic_partitions)

    async def shown(group: Any) -> Any:
        for member in group.members:
            for topic in topics(member):
                if not await seen(topic):
                    return dataclasses.replace(group, error_code=TOPIC_REFUSED, members=())
        return group

    groups = [await shown(each) for each in response.groups]
    return dataclasses.replace(response, groups=tuple(groups))


# ---------------------------------------------------------------------- the matrix

_ANYONE: Final = Rule(anyone=True)

RULES: Final[Mapping[int, Rule]] = {
    API_PRODUCE: Rule(
        own="Write on each topic, and on the transactional id: checked by `ProduceApi`"
    ),
    API_FETCH: Rule(
        items=("topics",), item=lambda _, item: _topic(Operation.READ, item.topic),
        answers="responses", own="read first by the fast codec",
    ),
    API_LIST_OFFSETS: _of_topics(Operation.DESCRIBE),
    API_METADATA: Rule(
        items=("topics",), item=lambda _, item: _topic(Operation.DESCRIBE, item.name),
        answers="topics", own="lists are filtered; Create for topics that do not exist",
    ),
    API_OFFSET_COMMIT: Rule(
        whole=lambda request: [_group(Operation.READ, request.group_id)],
        items=("topics",), item=lambda _, item: _topic(Operation.READ, item.name),
        answers="topics",
    ),
    API_OFFSET_FETCH: Rule(
        whole=lambda request: [_group(Operation.DESCRIBE, request.group_id)],
        items=("topics",), item=lambda _, item: _topic(Operation.DESCRIBE, item.name),
        answers="topics", hidden=_topics_of_offsets,
    ),
    API_FIND_COORDINATOR: Rule(
        whole=_coordinators_whole, items=("coordinator_keys",),
        item=lambda request, item: _coordinator(request.key_type, item), answers="coordinators",
    ),
    API_JOIN_GROUP: _of_group(Operation.READ),
    API_HEARTBEAT: _of_group(Operation.READ),
    API_LEAVE_GROUP: _of_group(Operation.READ),
    API_SYNC_GROUP: _of_group(Operation.READ),
    API_DESCRIBE_GROUPS: _of_groups(Operation.DESCRIBE, "groups", "groups"),
    API_LIST_GROUPS: Rule(hidden=_listed_groups),
    API_SASL_HANDSHAKE: _ANYONE,
    API_API_VERSIONS: _ANYONE,
    API_SASL_AUTHENTICATE: _ANYONE,
    API_CREATE_TOPICS: Rule(
        items=("topics",), item=lambda _, item: Need(create_rights(item.name), TOPIC_REFUSED),
        answers="topics",
    ),
    API_DELETE_TOPICS: Rule(
        items=("topics", "topic_names"), answers="responses",
        item=lambda _, item: _topic(Operation.DELETE, getattr(item, "name", item)),
    ),
    API_DELETE_RECORDS: _of_topics(Operation.DELETE),
    API_INIT_PRODUCER_ID: Rule(whole=_init_producer_id),
    API_ADD_PARTITIONS_TO_TXN: Rule(
        whole=lambda request: [
            _transaction(Operation.WRITE, request.v3_and_below_transactional_id)
        ],
        items=("v3_and_below_topics",), item=lambda _, item: _topic(Operation.WRITE, item.name),
        answers="results_by_topic_v3_and_below", together=True,
    ),
    API_ADD_OFFSETS_TO_TXN: Rule(
        whole=lambda request: [
            _transaction(Operation.WRITE, request.transactional_id),
            _group(Operation.READ, request.group_id),
        ]
    ),
    API_END_TXN: Rule(
        whole=lambda request: [_transaction(Operation.WRITE, request.transactional_id)]
    ),
    API_TXN_OFFSET_COMMIT: Rule(
        whole=lambda request: [
            _transaction(Operation.WRITE, request.transactional_id),
            _group(Operation.READ, request.group_id),
        ],
        items=("topics",), item=lambda _, item: _topic(Operation.READ, item.name),
        answers="topics",
    ),
    API_DESCRIBE_CONFIGS: _of_configs(Operation.DESCRIBE_CONFIGS, "results"),
    API_ALTER_CONFIGS: _of_configs(Operation.ALTER_CONFIGS, "responses"),
    API_INCREMENTAL_ALTER_CONFIGS: _of_configs(Operation.ALTER_CONFIGS, "responses"),
    API_CREATE_PARTITIONS: _of_topics(Operation.ALTER, "results"),
    API_DELETE_GROUPS: _of_groups(Operation.DELETE, "groups_names", "results"),
    API_OFFSET_DELETE: Rule(
        whole=lambda request: [_group(Operation.DELETE, request.group_id)],
        items=("topics",), item=lambda _, item: _topic(Operation.READ, item.name),
        answers="topics",
    ),
    API_DESCRIBE_CLUSTER: _ANYONE,
    API_DESCRIBE_PRODUCERS: _of_topics(Operation.READ),
    API_DESCRIBE_TRANSACTIONS: Rule(
        items=("transactional_ids",), answers="transaction_states",
        item=lambda _, item: _transaction(Operation.DESCRIBE, item),
        hidden=_topics_of_transactions,
    ),
    API_LIST_TRANSACTIONS: Rule(hidden=_listed_transactions),
    API_CONSUMER_GROUP_HEARTBEAT: Rule(whole=_consumer_heartbeat),
    API_CONSUMER_GROUP_DESCRIBE: Rule(
        items=("group_ids",), item=lambda _, item: _group(Operation.DESCRIBE, item),
        answers="groups", hidden=_topics_of_members,
    ),
    API_DESCRIBE_ACLS: _of_cluster(Operation.DESCRIBE),
    API_CREATE_ACLS: _of_cluster(Operation.ALTER),
    API_DELETE_ACLS: _of_cluster(Operation.ALTER),
    API_DESCRIBE_CLIENT_QUOTAS: _of_cluster(Operation.DESCRIBE_CONFIGS),
    API_ALTER_CLIENT_QUOTAS: _of_cluster(Operation.ALTER_CONFIGS),
    API_DESCRIBE_USER_SCRAM_CREDENTIALS: _of_cluster(Operation.DESCRIBE),
    API_ALTER_USER_SCRAM_CREDENTIALS: _of_cluster(Operation.ALTER),
}  # fmt: skip
