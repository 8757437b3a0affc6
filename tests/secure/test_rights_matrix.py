"""The matrix of rights: each API key and version, for clients with and without each right."""

import re
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from pidlease.kafka import api
from pidlease.kafka.codec.messages import read_request
from pidlease.kafka.codec.primitives import read_request_header
from pidlease.kafka.codec.time_slices import at_once
from proxy.kafka.access.refused_responses import refused_response
from proxy.kafka.access.request_rights import RULES
from proxy.kafka.access.secure_connection import SecureConnection
from proxy.kafka.access.secured_apis import SecuredApis, secured_versions
from proxy.kafka.listener_config import ClusterConfig
from proxy.kafka.served_versions import _FORWARDED, SERVED_VERSIONS
from proxy.security.acls import Acl, Operation, Permission, ResourceKind
from proxy.security.audit_log import AuditLog
from proxy.security.authorizer import Authorizer, Caller
from proxy.security.quotas import Quotas
from proxy.security.security_config import ListenerSecurity, SecurityConfig
from tests.kafka_listener.messages import decode_response, encode_request
from tests.secure.rights_requests import GROUP, ID, REQUESTS, TOPIC
from tests.secure.secured import allow

_T, _G, _X = ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.TRANSACTIONAL_ID
_C, _CLUSTER = ResourceKind.CLUSTER, "kafka-cluster"
_OP = Operation
#: The rights that a request of `REQUESTS` needs, all of them, and the error without.
NEEDS: Final[dict[int, tuple[int, list[tuple[Operation, ResourceKind, str]]]]] = {
    api.API_FETCH: (29, [(_OP.READ, _T, TOPIC)]),
    api.API_LIST_OFFSETS: (29, [(_OP.DESCRIBE, _T, TOPIC)]),
    api.API_METADATA: (29, [(_OP.DESCRIBE, _T, TOPIC)]),
    api.API_OFFSET_COMMIT: (30, [(_OP.READ, _G, GROUP), (_OP.READ, _T, TOPIC)]),
    api.API_OFFSET_FETCH: (30, [(_OP.DESCRIBE, _G, GROUP), (_OP.DESCRIBE, _T, TOPIC)]),
    api.API_FIND_COORDINATOR: (30, [(_OP.DESCRIBE, _G, GROUP)]),
    api.API_JOIN_GROUP: (30, [(_OP.READ, _G, GROUP)]),
    api.API_HEARTBEAT: (30, [(_OP.READ, _G, GROUP)]),
    api.API_LEAVE_GROUP: (30, [(_OP.READ, _G, GROUP)]),
    api.API_SYNC_GROUP: (30, [(_OP.READ, _G, GROUP)]),
    api.API_DESCRIBE_GROUPS: (30, [(_OP.DESCRIBE, _G, GROUP)]),
    api.API_CREATE_TOPICS: (29, [(_OP.CREATE, _T, TOPIC)]),
    api.API_DELETE_TOPICS: (29, [(_OP.DELETE, _T, TOPIC)]),
    api.API_DELETE_RECORDS: (29, [(_OP.DELETE, _T, TOPIC)]),
    api.API_INIT_PRODUCER_ID: (31, [(_OP.IDEMPOTENT_WRITE, _C, _CLUSTER)]),
    api.API_ADD_PARTITIONS_TO_TXN: (53, [(_OP.WRITE, _X, ID), (_OP.WRITE, _T, TOPIC)]),
    api.API_ADD_OFFSETS_TO_TXN: (53, [(_OP.WRITE, _X, ID), (_OP.READ, _G, GROUP)]),
    api.API_END_TXN: (53, [(_OP.WRITE, _X, ID)]),
    api.API_TXN_OFFSET_COMMIT: (
        53, [(_OP.WRITE, _X, ID), (_OP.READ, _G, GROUP), (_OP.READ, _T, TOPIC)],
    ),
    api.API_DESCRIBE_CONFIGS: (29, [(_OP.DESCRIBE_CONFIGS, _T, TOPIC)]),
    api.API_ALTER_CONFIGS: (29, [(_OP.ALTER_CONFIGS, _T, TOPIC)]),
    api.API_INCREMENTAL_ALTER_CONFIGS: (29, [(_OP.ALTER_CONFIGS, _T, TOPIC)]),
    api.API_CREATE_PARTITIONS: (29, [(_OP.ALTER, _T, TOPIC)]),
    api.API_DELETE_GROUPS: (30, [(_OP.DELETE, _G, GROUP)]),
    api.API_OFFSET_DELETE: (30, [(_OP.DELETE, _G, GROUP), (_OP.READ, _T, TOPIC)]),
    api.API_DESCRIBE_PRODUCERS: (29, [(_OP.READ, _T, TOPIC)]),
    api.API_DESCRIBE_TRANSACTIONS: (53, [(_OP.DESCRIBE, _X, ID)]),
    api.API_CONSUMER_GROUP_HEARTBEAT: (30, [(_OP.READ, _G, GROUP), (_OP.DESCRIBE, _T, TOPIC)]),
    api.API_CONSUMER_GROUP_DESCRIBE: (30, [(_OP.DESCRIBE, _G, GROUP)]),
    api.API_DESCRIBE_ACLS: (31, [(_OP.DESCRIBE, _C, _CLUSTER)]),
    api.API_CREATE_ACLS: (31, [(_OP.ALTER, _C, _CLUSTER)]),
    api.API_DELETE_ACLS: (31, [(_OP.ALTER, _C, _CLUSTER)]),
    api.API_DESCRIBE_CLIENT_QUOTAS: (31, [(_OP.DESCRIBE_CONFIGS, _C, _CLUSTER)]),
    api.API_ALTER_CLIENT_QUOTAS: (31, [(_OP.ALTER_CONFIGS, _C, _CLUSTER)]),
    api.API_DESCRIBE_USER_SCRAM_CREDENTIALS: (31, [(_OP.DESCRIBE, _C, _CLUSTER)]),
    api.API_ALTER_USER_SCRAM_CREDENTIALS: (31, [(_OP.ALTER, _C, _CLUSTER)]),
}  # fmt: skip
_LISTS: Final = (api.API_LIST_GROUPS, api.API_LIST_TRANSACTIONS)
_OWN: Final = frozenset((29, 30, 31, 48, 49, 50, 51))
_LOGIN: Final = ListenerSecurity(login=True)
VERSIONS: Final = secured_versions({**_FORWARDED, **SERVED_VERSIONS}, login=True, acls=True)
_CASES: Final = [
    (key, version)
    for key, (low, high) in sorted(VERSIONS.items())
    if key in NEEDS
    for version in range(low, high + 1)
]


def test_every_served_api_has_a_row() -> None:
    assert VERSIONS.keys() <= RULES.keys()
    assert RULES.keys() <= VERSIONS.keys()


def test_every_row_is_tested() -> None:
    open_to_all = {key for key, rule in RULES.items() if rule.anyone}
    # Produce has tests of its own; lists are filtered, not refused.
    assert RULES.keys() - open_to_all == {*NEEDS, *_LISTS, api.API_PRODUCE}
    assert open_to_all == {17, 18, 36, 60}


def test_every_api_of_the_source_has_a_row() -> None:
    """An API that someone adds to `pidlease/kafka/api.py` needs a row before it is served."""
    numbers = {value for name, value in vars(api).items() if name.startswith("API_")}
    only_sent = {api.API_OFFSET_FOR_LEADER_EPOCH}  # to Kafka; no client is served it
    assert numbers - only_sent <= RULES.keys()
    assert not only_sent & RULES.keys()


class _Inner:
    """Handlers that are not to be reached."""

    def __init__(self) -> None:
        self.versions = {**_FORWARDED, **SERVED_VERSIONS}
        self.topics: Any = None
        self.seen: list[tuple[Any, bytes]] = []
        self.produce = self.api_versions = None
        #: Called when other programs' topics are looked for.
        self.on_look: Callable[[], None] = lambda: None
        self.looks = 0

    async def look(self) -> None:
        self.looks += 1
        self.on_look()

    def answer(self, slot: Any, header: Any, frame: bytearray) -> bytes:
        """Answer without an error."""
        request = read_request(header, frame)
        if header.api_key != api.API_METADATA or request.topics:  # brokers are for everyone
            self.seen.append((header, bytes(frame)))
        return at_once(refused_response(header, request, ErrorCode.none))

    def restrict_produce(self, guard: Any) -> None:
        pass


def _apis(*acls: Acl, audit: AuditLog | None = None) -> tuple[SecuredApis, _Inner, Any]:
    inner = _Inner()
    log = audit or AuditLog(None)
    authorizer = Authorizer(["User:root"], allow_if_none=False, audit=log)
    authorizer.replace(acls)
    changed: list[Any] = []

    async def change(*what: Any) -> None:
        changed.append(what)

    security: Any = SimpleNamespace(
        config=SecurityConfig(kafka=_LOGIN, acls=True), authorizer=authorizer, audit=log,
        kafka_acls=None,
        credentials={("bob", "SCRAM-SHA-256"): SimpleNamespace(iterations=4096)},
        change_acls=change, change_users=change, change_quotas=change, changed=changed,
        quotas=Quotas(10.0, 1.0),
    )  # fmt: skip
    engine: Any = SimpleNamespace(topics={TOPIC: SimpleNamespace(name=TOPIC, topic_id="")},
                                  awaited={}, topics_version=1)  # fmt: skip
    config = ClusterConfig("c", "h", 1, auto_create=True, default_partitions=1)
    return SecuredApis(inner, engine, config, security), inner, security  # type: ignore[arg-type]


def _slot(user: str) -> Any:
    connection: Any = SecureConnection.__new__(SecureConnection)
    connection.caller = Caller(f"User:{user}", "10.0.0.1")
    connection.may_write_to, connection.may_write_as = set(), set()
    connection.may_read_from, connection.rights_version = set(), None
    return SimpleNamespace(connection=connection, correlation_id=7, api_key=0)


async def _answer(apis: SecuredApis, user: str, key: int, version: int) -> bytes | None:
    frame = bytearray(encode_request(key, version, REQUESTS[key], 7))
    answered = apis.answer(_slot(user), read_request_header(frame), frame)
    return answered if isinstance(answered, bytes) else await answered


def _codes(entity: Any) -> Iterator[int]:
    """All error codes of a response."""
    for name in getattr(entity, "__dataclass_fields__", ()):
        value = getattr(entity, name)
        if re.fullmatch(r"(partition_)?error_code", name):
            yield int(value)
        elif isinstance(value, tuple):
            for each in value:
                yield from _codes(each)


@pytest.mark.parametrize(("key", "version"), _CASES)
async def test_without_any_right(key: int, version: int) -> None:
    """Attack 2: refused with Kafka's error, and nothing reaches the log or Kafka."""
    apis, inner, security = _apis()
    answer = await _answer(apis, "alice", key, version)
    assert answer is not None
    correlation, body = decode_response(key, version, answer)
    assert correlation == 7
    assert set(_codes(body)) - {0} == {NEEDS[key][0]}
    assert inner.seen == []
    assert security.changed == []


@pytest.mark.parametrize("key", sorted(NEEDS))
async def test_each_right_is_needed(key: int) -> None:
    """With all rights but one it is refused; with exactly these, it is served."""
    needs = NEEDS[key][1]
    version = VERSIONS[key][1]
    acls = [allow("alice", *each) for each in needs]
    for missing in acls:
        apis, inner, security = _apis(*(each for each in acls if each is not missing))
        answer = await _answer(apis, "alice", key, version)
        assert answer is not None
        assert set(_codes(decode_response(key, version, answer)[1])) - {0}, (key, missing)
        assert (inner.seen, security.changed) == ([], [])
    for user, entries in (("alice", acls), ("root", [])):
        apis, inner, _ = _apis(*entries)
        answer = await _answer(apis, user, key, version)
        if key in _OWN:
            assert not set(_codes(decode_response(key, version, answer or b"")[1])) - {0}
        else:
            assert len(inner.seen) == 1, (key, user)


@pytest.mark.parametrize("key", sorted(NEEDS))
async def test_a_denial_wins(key: int) -> None:
    needs = NEEDS[key][1]
    names = {_T: "*", _G: "*", _X: "*", _C: _CLUSTER}
    everything = [allow("*", _OP.ALL, kind, name) for kind, name in names.items()]
    for each in needs:
        denied = allow("alice", *each, permission=Permission.DENY)
        if key == api.API_INIT_PRODUCER_ID:
            # One of two rights is enough: both must be denied.
            denied_too = allow("alice", _OP.WRITE, _T, "*", permission=Permission.DENY)
            apis, inner, _ = _apis(*everything, denied, denied_too)
        elif key == api.API_CREATE_TOPICS:
            denied_too = allow("alice", _OP.CREATE, _C, _CLUSTER, permission=Permission.DENY)
            apis, inner, _ = _apis(*everything, denied, denied_too)
        else:
            apis, inner, _ = _apis(*everything, denied)
        await _answer(apis, "alice", key, VERSIONS[key][1])
        assert inner.seen == [], key


@pytest.mark.parametrize("key", [
    key for key in sorted(NEEDS) if RULES[key].items and key not in (24, 10)
])  # fmt: skip
async def test_a_part_is_refused_and_the_rest_is_passed_on(key: int) -> None:
    """Only the allowed item reaches the log; the answer has a row for each."""
    version = VERSIONS[key][1]
    rule = RULES[key]
    kind = load_request_schema(key, version)
    array = next(each for each in rule.items if each in kind.__dataclass_fields__)
    code, needs = NEEDS[key]
    apis, inner, _ = _apis(*(allow("alice", *each) for each in needs))
    values = dict(REQUESTS[key])
    (item,) = values[array]
    values[array] = [_renamed(item), item]
    frame = bytearray(encode_request(key, version, values, 7))
    answered = apis.answer(_slot("alice"), read_request_header(frame), frame)
    answer = answered if isinstance(answered, bytes) else await answered
    assert answer is not None
    ((header, passed),) = inner.seen
    assert len(getattr(read_request(header, bytearray(passed)), array)) == 1
    assert b"secret" not in passed
    _, body = decode_response(key, version, answer)
    rows = getattr(body, rule.answers)
    assert len(rows) == 2
    assert set(_codes(rows[1])) == {29 if needs[-1][1] is _T else code}
    assert set(_codes(rows[0])) <= {0}


def _renamed(item: Any) -> Any:
    if isinstance(item, str):
        return "secret"
    return {name: "secret" if value in (TOPIC, GROUP, ID) else value
            for name, value in item.items()}  # fmt: skip


_BY_ID: Final[dict[int, dict[str, object]]] = {
    api.API_METADATA: {"allow_auto_topic_creation": False,
                       "include_topic_authorized_operations": False},
    api.API_DELETE_TOPICS: {"timeout": timedelta(seconds=1)},
}  # fmt: skip
_SEE: Final = {api.API_METADATA: _OP.DESCRIBE, api.API_DELETE_TOPICS: _OP.DELETE}


async def _by_ids(apis: SecuredApis, key: int, *ids: uuid.UUID | None) -> list[int]:
    """The error codes of a request for topics by their ids."""
    version = VERSIONS[key][1]
    topics = [{"name": None, "topic_id": each} for each in ids]
    frame = bytearray(encode_request(key, version, {"topics": topics, **_BY_ID[key]}, 7))
    answered = apis.answer(_slot("alice"), read_request_header(frame), frame)
    answer = answered if isinstance(answered, bytes) else await answered
    assert answer is not None
    rows = getattr(decode_response(key, version, answer)[1], RULES[key].answers)
    assert {each.name for each in rows} == {None}
    return sorted(int(each.error_code) for each in rows)


@pytest.mark.parametrize("key", _BY_ID)
async def test_a_topic_with_an_unknown_id_is_not_for_kafka_to_decide_about(key: int) -> None:
    """Kafka knows topics that this server does not know yet, and not the client's rights."""
    apis, inner, _ = _apis(allow("alice", _OP.ALL, _T, "*"))
    assert await _by_ids(apis, key, uuid.uuid4(), uuid.uuid4()) == [100, 100]
    assert (inner.seen, inner.looks) == ([], 1)
    # One that names nothing: the handlers refuse it.
    await _by_ids(apis, key, None)
    assert (len(inner.seen), inner.looks) == (1, 1)


@pytest.mark.parametrize("key", _BY_ID)
async def test_a_topic_that_was_just_made_is_found_before_its_rights_are_decided(key: int) -> None:
    id_ = uuid.uuid4()
    for acls, codes, passed in (([], [29], 0), ([allow("alice", _SEE[key], _T, "new")], [0], 1)):
        apis, inner, _ = _apis(*acls)

        def found(engine: Any = apis._engine) -> None:
            engine.topics["new"] = SimpleNamespace(name="new", topic_id=id_.hex)
            engine.topics_version += 1

        inner.on_look = found
        assert await _by_ids(apis, key, id_) == codes
        assert (len(inner.seen), inner.looks) == (passed, 1)
