"""Metadata by hand against kio: every request and every answer of every version."""

import io
import uuid
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from pidlease.kafka.codec.metadata import (
    FLEXIBLE_FROM,
    NO_ID,
    NODE_ID,
    BrokerAddress,
    MetadataPartitions,
    MetadataReader,
    MetadataRequest,
    RequestedTopic,
    topic_layout,
    write_head,
    write_no_topic,
    write_tail,
    write_topic,
)
from pidlease.kafka.codec.primitives import MalformedError, write_array
from proxy.kafka.served_versions import SERVED_VERSIONS
from tests.kafka_listener.messages import METADATA, build, encode_request
from tests.property.profile import examples

_VERSIONS: Final = range(SERVED_VERSIONS[METADATA][0], SERVED_VERSIONS[METADATA][1] + 1)
_HEADER_BYTES: Final = 10  # with an empty client id
_write_head: Final = partial(
    write_head,
    cluster_id="cluster-id",
    brokers=[BrokerAddress(NODE_ID, "host.example", 9092)],
    controller=NODE_ID,
)


def _read(body: bytes, version: int, step: int = 3) -> MetadataRequest:
    reader = MetadataReader(bytearray(body), 0, version)
    while reader.left:
        reader.read_topics(step)
    return reader.end()


def _names(version: int) -> st.SearchStrategy[dict[str, Any]]:
    name = st.text(max_size=300)
    if version < 10:
        return st.fixed_dictionaries({"name": name})
    return st.fixed_dictionaries(
        {"name": st.one_of(st.none(), name), "topic_id": st.one_of(st.none(), st.uuids())}
    )


@pytest.mark.parametrize("version", _VERSIONS)
def test_a_request_is_read_as_kio_reads_it(version: int) -> None:
    topics = st.lists(_names(version), max_size=10)
    kind: Any = load_request_schema(METADATA, version)

    @examples(60)
    @given(topics if version == 0 else st.one_of(st.none(), topics), st.booleans(), st.booleans())
    def check(asked: list[dict[str, Any]] | None, create: bool, told: bool) -> None:
        values = {
            "topics": asked, "allow_auto_topic_creation": create,
            "include_topic_authorized_operations": told,
            "include_cluster_authorized_operations": told,
        }  # fmt: skip
        body = encode_request(METADATA, version, values, 1, "")[_HEADER_BYTES:]
        wanted, _ = entity_reader(kind)(body[1 if kind.__flexible__ else 0 :], 0)
        found = _read(body, version)
        every = wanted.topics is None or (version == 0 and not wanted.topics)
        assert (found.topics is None) == every
        assert found.create == getattr(wanted, "allow_auto_topic_creation", True)
        if found.topics is not None:
            assert found.topics == [
                RequestedTopic(each.name, _id_bytes(getattr(each, "topic_id", None)))
                for each in wanted.topics
            ]

    check()


@pytest.mark.parametrize("version", _VERSIONS)
def test_a_request_that_is_cut_short_or_too_long_is_malformed(version: int) -> None:
    values = {"topics": [{"name": "one"}, {"name": "two"}]}
    body = encode_request(METADATA, version, values, 1, "")[_HEADER_BYTES:]
    assert [each.name for each in _read(body, version).topics or ()] == ["one", "two"]
    for end in range(len(body)):
        with pytest.raises(MalformedError):
            _read(body[:end], version)
    with pytest.raises(MalformedError, match="too many"):
        _read(body + b"\0", version)


@pytest.mark.parametrize("version", range(9, 14))
def test_librdkafka_asks_for_all_topics_with_three_bytes_too_many(version: int) -> None:
    """librdkafka #5049, as version 2.16 sends it: the null array has four bytes."""
    flags = b"\1\0\0" if version <= 10 else b"\1\0"
    assert _read(b"\0" + bytes(4) + flags + b"\0", version).topics is None


def test_null_names_and_arrays_only_where_there_may_be() -> None:
    with pytest.raises(MalformedError, match="null"):
        _read(b"\xff\xff\xff\xff", 0)
    with pytest.raises(MalformedError, match="null"):
        _read(b"\0\0\0\1\xff\xff", 1)


def _id_bytes(topic_id: uuid.UUID | None) -> bytes:
    return topic_id.bytes if topic_id is not None else NO_ID


# ---------------------------------------------------------------------- answers


def _by_kio(version: int, topics: list[dict[str, Any]]) -> bytes:
    """The whole answer, without the correlation id."""
    kind: Any = load_response_schema(METADATA, version)
    values = {
        "brokers": [{"node_id": 1, "host": "host.example", "port": 9092, "rack": None}],
        "cluster_id": "cluster-id",
        "controller_id": 1,
        "topics": topics,
        "cluster_authorized_operations": -(2**31),
        "error_code": ErrorCode.none,
    }
    stream = io.BytesIO()
    entity_writer(kind)(stream, build(kind, values))
    return stream.getvalue()


def _partition(number: int) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none, "partition_index": number, "leader_id": 1, "leader_epoch": 0,
        "replica_nodes": [1], "isr_nodes": [1], "offline_replicas": [],
    }  # fmt: skip


def _topic(
    name: str | None, topic_id: uuid.UUID | None, partitions: int, code: int = 0
) -> dict[str, Any]:
    return {
        "error_code": ErrorCode(code), "name": name, "topic_id": topic_id, "is_internal": False,
        "partitions": [_partition(number) for number in range(partitions)],
        "topic_authorized_operations": -(2**31),
    }  # fmt: skip


@pytest.mark.parametrize("version", _VERSIONS)
@pytest.mark.parametrize("counts", [[], [1], [3, 0, 1], [1000, 2], [1] * 200])
def test_an_answer_is_byte_by_byte_what_kio_writes(version: int, counts: list[int]) -> None:
    layout, rows = topic_layout(version), MetadataPartitions()
    flexible = version >= FLEXIBLE_FROM
    ids = [uuid.uuid4() for _ in counts]
    parts = [write_array(len(counts) + 1, flexible=flexible)]
    wanted = []
    for place, (count, topic_id) in enumerate(zip(counts, ids, strict=True)):
        name = f"topic-{place}"
        parts.append(write_topic(layout, name, topic_id.hex, rows.of(layout, count), count))
        wanted.append(_topic(name, topic_id, count))
    parts.append(write_no_topic(layout, RequestedTopic("absent", NO_ID), 3))
    wanted.append(_topic("absent", None, 0, 3))

    found = _write_head(version, 5) + b"".join(parts) + write_tail(version)

    tags = b"\0" if flexible else b""
    assert found == (5).to_bytes(4, "big") + tags + _by_kio(version, wanted)


@pytest.mark.parametrize("version", [12, 13])
def test_a_topic_that_no_id_names_has_a_null_name(version: int) -> None:
    topic_id = uuid.uuid4()
    found = write_no_topic(topic_layout(version), RequestedTopic(None, topic_id.bytes), 100)
    whole = _write_head(version, 5) + write_array(1, flexible=True) + found
    wanted = _by_kio(version, [_topic(None, topic_id, 0, 100)])
    assert whole[5:] + write_tail(version) == wanted


@pytest.mark.parametrize("layout", [0, 1, 5, 7, 8, 9, 10])
def test_rows_grow_and_stay_the_same(layout: int) -> None:
    table = MetadataPartitions()
    few, many = table.of(layout, 3), table.of(layout, 70_000)
    assert many.startswith(few)
    assert table.of(layout, 3) == few
    assert table.of(layout, 0) == b""
    size = len(few) // 3
    for number in (0, 1, 255, 256, 65_535, 65_536, 69_999):
        row = many[number * size : (number + 1) * size]
        assert row == few[:size].replace(bytes(6), b"\0\0" + number.to_bytes(4, "big"), 1)


def test_every_version_has_a_layout_of_its_own_kind() -> None:
    found = [topic_layout(version) for version in _VERSIONS]
    assert found == [0, 1, 1, 1, 1, 5, 6, 7, 8, 9, 10, 10, 10, 10]
