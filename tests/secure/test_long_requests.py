"""A request that names very much is decided and refused in steps: other clients get answers."""

import asyncio
import io
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.serial import entity_writer

from pidlease.kafka import api
from pidlease.kafka.codec.messages import Request
from pidlease.kafka.codec.primitives import read_request_header
from proxy.kafka.access.request_rights import RULES
from proxy.kafka.access.secured_apis import SecuredApis
from proxy.security.acls import Operation, Pattern, ResourceKind
from proxy.security.audit_log import AuditLog
from proxy.security.authorizer import Authorizer
from proxy.security.security_config import SecurityConfig
from tests.kafka_listener.client import WireClient
from tests.kafka_listener.messages import decode_response, encode_request
from tests.secure.rights_requests import REQUESTS
from tests.secure.secured import LOGIN, allow, secured
from tests.secure.test_rights_matrix import _CASES, _apis, _slot

_ACLS = SecurityConfig(kafka=LOGIN, acls=True)
_NAMES = [f"name-{number:05}" for number in range(20_000)]
_FEWER = _NAMES[::5]
_PARTITIONS = [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}]
_TOPICS = [{"name": name, "partitions": _PARTITIONS} for name in _FEWER]


@contextmanager
def _at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many decisions were made in each turn of the event loop that has made some."""
    permits, decided, turns = Authorizer.permits, [0], []

    def counted(self: Authorizer, *given: Any) -> bool:
        decided[0] += 1
        return permits(self, *given)

    async def note_turns() -> None:
        while True:
            if decided[0]:
                turns.append(decided[0])
                decided[0] = 0
            await asyncio.sleep(0)

    monkeypatch.setattr(Authorizer, "permits", counted)
    noting = asyncio.create_task(note_turns())
    try:
        yield turns
    finally:
        noting.cancel()


async def _versions_until(client: WireClient, over: asyncio.Event) -> int:
    """Ask for ApiVersions again and again; the number of answers."""
    answers = 0
    while not over.is_set():
        await client.call(api.API_API_VERSIONS, 0)
        answers += 1
    return answers


@pytest.mark.parametrize(("key", "version", "values", "some"), [
    (api.API_DESCRIBE_GROUPS, 5, {"groups": _NAMES}, False),
    (api.API_METADATA, 9, {"topics": [{"name": name} for name in _FEWER]}, False),
    (api.API_LIST_OFFSETS, 6, {"replica_id": -1, "topics": _TOPICS}, True),
])  # fmt: skip
async def test_other_clients_get_answers_meanwhile(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: int,
    version: int,
    values: dict[str, Any],
    some: bool,
) -> None:
    """Whether the client has no right at all, or a right to half of the names."""
    kind = ResourceKind.GROUP if key == api.API_DESCRIBE_GROUPS else ResourceKind.TOPIC
    acls = [allow("alice", Operation.DESCRIBE, kind, "name-0", pattern=Pattern.PREFIXED)]
    async with (
        secured(tmp_path, _ACLS, acls * some) as running,
        await running.login("alice") as alice,
        await running.login("bob") as bob,
    ):
        alice.timeout_s = 60
        with _at_once(monkeypatch) as turns:
            over = asyncio.Event()
            asking = asyncio.create_task(_versions_until(bob, over))
            body = await alice.call(key, version, **values)
            over.set()
            assert await asking > 20
        assert max(turns) <= 100
    asked = _NAMES if key == api.API_DESCRIBE_GROUPS else _FEWER
    assert sum(turns) == len(asked)
    rows = getattr(body, RULES[key].answers)
    found = [getattr(each, "name", None) or each.group_id for each in rows]
    assert sorted(found) == asked


async def test_what_is_named_again_is_refused_and_audited_once() -> None:
    audit = AuditLog(None)
    apis, inner, _ = _apis(audit=audit)
    frame = bytearray(encode_request(15, 5, {"groups": ["g", "h"] * 5_000}, 7))
    _, body = decode_response(15, 5, await _answer(apis, frame))
    assert [each.group_id for each in body.groups] == ["g", "h"]
    assert audit.denied == {("DESCRIBE",): 2}
    assert inner.seen == []


@pytest.mark.parametrize(("key", "version"), [
    (key, version) for key, version in _CASES if RULES[key].items
])  # fmt: skip
async def test_steps_write_what_one_step_would(key: int, version: int) -> None:
    """Responses with many rows, and with many rows within one row."""
    values = dict(REQUESTS[key])
    kind = load_request_schema(key, version)
    array = next((each for each in RULES[key].items if each in kind.__dataclass_fields__), "")
    if not array:
        return
    item = copy(values[array][0])
    for nested in ("partitions", "partition_indexes"):
        if isinstance(item, dict) and nested in item:
            item[nested] = item[nested] * 20
    values[array] = [_numbered(item, number) for number in range(20)]
    apis, _, _ = _apis()
    frame = bytearray(encode_request(key, version, values, 7))
    answer = await _answer(apis, frame)
    entity = Request(key, version).decode(bytearray(answer))
    stream = io.BytesIO()
    entity_writer(type(entity))(stream, entity)
    assert answer.endswith(stream.getvalue())


async def _answer(apis: SecuredApis, frame: bytearray) -> bytes:
    slot = _slot("alice")
    slot.connection.hold = slot.connection.release = lambda: None  # nothing reads from it
    answered = apis.answer(slot, read_request_header(frame), frame)
    return (answered if isinstance(answered, bytes) else await answered) or b""


def _numbered(item: Any, number: int) -> Any:
    if isinstance(item, str):
        return f"{item}-{number}"
    named = next(name for name in ("name", "topic", "resource_name") if item.get(name))
    return {**item, named: f"{item[named]}-{number}"}
