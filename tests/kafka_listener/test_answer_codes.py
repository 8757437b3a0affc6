"""The codes that answers begin with, against answers as kio writes them."""

import dataclasses
import io
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from pidlease.kafka.api import API_API_VERSIONS, API_HEARTBEAT
from pidlease.kafka.codec.response_error_codes import code_of, code_position
from proxy.kafka.served_versions import SERVED_VERSIONS
from tests.kafka_listener.client import WireClient
from tests.kafka_listener.harness import Server
from tests.kafka_listener.messages import build

_CODE = ErrorCode.rebalance_in_progress
_SERVED = [
    (key, version)
    for key, (low, high) in SERVED_VERSIONS.items()
    for version in range(low, high + 1)
    if key != API_API_VERSIONS
]


@pytest.mark.parametrize(("key", "version"), _SERVED)
def test_it_is_where_kio_writes_it(key: int, version: int) -> None:
    kind: Any = load_response_schema(key, version)
    names = [each.name for each in dataclasses.fields(kind)]
    if "error_code" not in names[: 2 if names[0] == "throttle_time" else 1]:
        assert code_position(key, version) == -1
        assert code_of(key, version, b"\xff" * 100) == 0
        return
    answer = io.BytesIO()
    header = kind.__header_schema__
    entity_writer(header)(answer, build(header, {"correlation_id": 7}))
    entity_writer(kind)(answer, build(kind, {"error_code": _CODE, "assignment": b""}))
    assert code_of(key, version, answer.getvalue()) == _CODE.value
    cut = answer.getvalue()[: code_position(key, version) + 1]
    assert code_of(key, version, cut) == 0


async def test_it_is_counted(server: Server, client: WireClient) -> None:
    for version in (0, 4):
        answer = await client.call(
            API_HEARTBEAT, version, group_id="g", generation_id=1, member_id="nobody"
        )
        assert answer.error_code is ErrorCode.unknown_member_id
    assert server.door.counts.errors == {(API_HEARTBEAT, ErrorCode.unknown_member_id.value): 2}
