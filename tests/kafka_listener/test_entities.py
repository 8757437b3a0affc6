"""The reader of requests against kio's own, over random requests of every version."""

import asyncio
import dataclasses
import types
import typing
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from pidlease.kafka.codec.entities import read_entity, read_entity_slowly
from pidlease.kafka.codec.messages import read_request
from pidlease.kafka.codec.primitives import (
    MalformedError,
    Reader,
    RequestHeader,
    read_request_header,
)
from proxy.kafka.served_versions import SERVED_VERSIONS
from tests.kafka_listener.group_requests import (
    JOIN_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SUBSCRIPTION,
    committing,
    joining,
)
from tests.kafka_listener.messages import FETCH, METADATA, PRODUCE, encode_request
from tests.property.profile import examples

_RANGES: Final = {"int8": 2**7, "int16": 2**15, "int32": 2**31, "int64": 2**63}
#: ApiVersions is answered without a look at the body; the other ones are read by hand.
_EACH: Final = [
    (key, version)
    for key, (lowest, highest) in sorted(SERVED_VERSIONS.items())
    if key not in (PRODUCE, METADATA, OFFSET_COMMIT, OFFSET_FETCH, 18)
    for version in range(lowest, highest + 1)
]


def _values(kind: Any) -> st.SearchStrategy[dict[str, Any]]:
    hints = typing.get_type_hints(kind)
    return st.fixed_dictionaries(
        {
            field.name: _value(hints[field.name], field.metadata.get("kafka_type", ""))
            for field in dataclasses.fields(kind)
        }
    )


def _value(hint: Any, kafka_type: str) -> st.SearchStrategy[Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = next(each for each in typing.get_args(hint) if each is not type(None))
        return st.one_of(st.none(), _value(inner, kafka_type))
    if typing.get_origin(hint) is tuple:
        return st.lists(_value(typing.get_args(hint)[0], kafka_type), max_size=3)
    if dataclasses.is_dataclass(hint):
        return _values(hint)
    if isinstance(hint, type) and issubclass(hint, ErrorCode):
        return st.sampled_from(ErrorCode)
    if isinstance(hint, type) and issubclass(hint, datetime):
        return st.integers(0, 2**41).map(
            lambda ms: datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)
        )
    if kafka_type in _RANGES:
        return st.integers(-_RANGES[kafka_type], _RANGES[kafka_type] - 1)
    return _plain(hint)


def _plain(hint: Any) -> st.SearchStrategy[Any]:
    if issubclass(hint, bool):
        return st.booleans()
    if issubclass(hint, str):
        return st.text(max_size=40)
    if issubclass(hint, bytes):
        return st.binary(max_size=40)
    if issubclass(hint, uuid.UUID):
        return st.uuids()
    assert issubclass(hint, timedelta), hint
    return st.integers(-(2**31), 2**31 - 1).map(lambda ms: timedelta(milliseconds=ms))


@pytest.mark.parametrize(("key", "version"), _EACH)
def test_it_reads_what_kio_reads(key: int, version: int) -> None:
    kind: Any = load_request_schema(key, version)

    @examples(25)
    @given(_values(kind), st.one_of(st.none(), st.text(max_size=10)))
    def check(values: dict[str, Any], client_id: str | None) -> None:
        frame = bytearray(encode_request(key, version, values, 7, client_id))
        header = read_request_header(frame)
        body = header.body + (1 if kind.__flexible__ else 0)
        wanted, size = entity_reader(kind)(bytes(frame[body:]), 0)
        assert body + size == len(frame)
        assert read_request(header, frame) == wanted
        reader = Reader(frame, body, flexible=kind.__flexible__)
        assert asyncio.run(read_entity_slowly(kind, reader)) == wanted
        assert reader.at == len(frame)

    check()


@pytest.mark.parametrize(("key", "version"), _EACH)
def test_unknown_tags_at_the_end_of_a_body_change_nothing(key: int, version: int) -> None:
    kind: Any = load_request_schema(key, version)
    if not kind.__flexible__:
        return
    frame = encode_request(key, version, {}, 1, "")
    tagged = frame[:-1] + b"\x02" + b"\x00\x00" + b"\x96\x01\x03abc"
    header = RequestHeader(key, version, 1, "", 10)
    assert read_request(header, bytearray(tagged)) == read_request(header, bytearray(frame))


async def test_many_elements_are_read_in_turns_also_in_small_arrays() -> None:
    kind: Any = load_request_schema(FETCH, 4)
    partitions = [{"partition": number} for number in range(200)]
    topics = [{"topic": f"t-{number}", "partitions": partitions} for number in range(200)]
    frame = bytearray(encode_request(FETCH, 4, {"topics": topics}, 1, ""))
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    beating = asyncio.create_task(beat())
    found = await read_entity_slowly(kind, Reader(frame, 10, flexible=False))
    beating.cancel()
    assert [len(topic.partitions) for topic in found.topics] == [200] * 200
    assert beats >= 40_000 // 500


def test_a_time_longer_than_python_knows_is_as_long_as_it_knows() -> None:
    kind = load_request_schema(OFFSET_COMMIT, 2)
    frame = encode_request(OFFSET_COMMIT, 2, committing("g", "t", {0: 1}), 1, "")
    for raw, wanted in (
        (2**63 - 1, timedelta.max),
        (-(2**63), timedelta.min),
        (5, timedelta(milliseconds=5)),
    ):
        changed = bytearray(frame)
        at = 10 + 3 + 4 + 2  # behind the header, group, generation and member
        changed[at : at + 8] = raw.to_bytes(8, "big", signed=True)
        found = read_entity(kind, Reader(changed, 10, flexible=False))
        assert found.retention_time == wanted


def test_null_bytes_are_malformed_where_there_must_be_some() -> None:
    frame = encode_request(JOIN_GROUP, 0, joining("g"), 1, "")
    size = len(SUBSCRIPTION)
    at = frame.index(size.to_bytes(4, "big") + SUBSCRIPTION)
    broken = bytearray(frame[:at] + b"\xff\xff\xff\xff" + frame[at + 4 + size :])
    with pytest.raises(MalformedError, match="null bytes"):
        read_request(RequestHeader(JOIN_GROUP, 0, 1, "", 10), broken)
