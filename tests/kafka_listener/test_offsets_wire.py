"""OffsetCommit and OffsetFetch by hand against kio, over random requests and answers."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from pidlease.kafka.codec import offsets as codec
from pidlease.kafka.codec.offsets import read_commit, read_fetch, write_commit
from pidlease.kafka.codec.primitives import MalformedError, RequestHeader, read_request_header
from pidlease.storage.offsets.journal_records import CommittedOffset
from tests.kafka_listener.group_requests import OFFSET_COMMIT, OFFSET_FETCH, committing, fetching
from tests.kafka_listener.messages import decode_response, encode_request
from tests.kafka_listener.test_entities import _values
from tests.property.profile import examples

_NUMBERS = st.integers(-(2**31), 2**31 - 1)
_OFFSETS = st.integers(-(2**63), 2**63 - 1)
_CODES = st.sampled_from([ErrorCode.none, ErrorCode.unknown_topic_or_partition])


def _header(key: int, version: int) -> RequestHeader:
    return RequestHeader(key, version, 9, "", 0)


def _read_by_kio(key: int, version: int, frame: bytes) -> Any:
    kind: Any = load_request_schema(key, version)
    header = read_request_header(bytearray(frame))
    return entity_reader(kind)(frame[header.body + kind.__flexible__ :], 0)[0]


@pytest.mark.parametrize("version", range(2, 10))
def test_commits_are_read_as_kio_reads_them(version: int) -> None:
    @examples(40)
    @given(_values(load_request_schema(OFFSET_COMMIT, version)))
    def check(values: dict[str, Any]) -> None:
        frame = encode_request(OFFSET_COMMIT, version, values, 7, "x")
        wanted = _read_by_kio(OFFSET_COMMIT, version, frame)
        header = read_request_header(bytearray(frame))
        found = read_commit(header, bytearray(frame))
        retention = getattr(wanted, "retention_time", timedelta(milliseconds=-1))
        assert (found.group_id, found.generation, found.member_id) == (
            wanted.group_id, wanted.generation_id_or_member_epoch, wanted.member_id,
        )  # fmt: skip
        assert found.instance_id == getattr(wanted, "group_instance_id", None)
        assert found.retention_ms == retention // timedelta(milliseconds=1)
        assert found.topics == [
            (
                topic.name,
                [
                    (
                        part.partition_index,
                        part.committed_offset,
                        getattr(part, "committed_leader_epoch", -1),
                        part.committed_metadata or "",
                    )
                    for part in topic.partitions
                ],
            )
            for topic in wanted.topics
        ]

    check()


@pytest.mark.parametrize("version", range(1, 10))
def test_fetches_are_read_as_kio_reads_them(version: int) -> None:
    @examples(40)
    @given(_values(load_request_schema(OFFSET_FETCH, version)))
    def check(values: dict[str, Any]) -> None:
        frame = encode_request(OFFSET_FETCH, version, values, 7, "x")
        wanted = _read_by_kio(OFFSET_FETCH, version, frame)
        header = read_request_header(bytearray(frame))
        found = read_fetch(header, bytearray(frame))
        groups = wanted.groups if version >= 8 else (wanted,)
        assert [each.group_id for each in found] == [each.group_id for each in groups]
        for group, due in zip(found, groups, strict=True):
            if due.topics is None:
                assert group.topics is None
                continue
            assert group.topics == [(each.name, each.partition_indexes) for each in due.topics]

    check()


@pytest.mark.parametrize("version", range(2, 10))
def test_answers_to_commits_are_what_kio_reads(version: int) -> None:
    @examples(30)
    @given(st.lists(st.tuples(st.text(max_size=20), st.lists(st.tuples(_NUMBERS, _CODES)))))
    def check(topics: list[tuple[str, list[tuple[int, ErrorCode]]]]) -> None:
        frame = write_commit(_header(OFFSET_COMMIT, version), topics)
        correlation_id, body = decode_response(OFFSET_COMMIT, version, frame)
        assert correlation_id == 9
        assert topics == [
            (topic.name, [(part.partition_index, part.error_code) for part in topic.partitions])
            for topic in body.topics
        ]

    check()


_COMMITTED = st.none() | st.builds(
    CommittedOffset, _OFFSETS, _NUMBERS, st.text(max_size=200), st.just(0)
)
_TOPICS = st.lists(
    st.tuples(st.text(max_size=20), st.lists(st.tuples(_NUMBERS, _COMMITTED), max_size=5)),
    max_size=4,
)


def _write_fetch(version: int, groups: list[tuple[str, list[Any]]], error: ErrorCode) -> bytes:
    parts = [codec.write_fetch_head(_header(OFFSET_FETCH, version), len(groups))]
    for group_id, topics in groups:
        parts.append(codec.write_group_head(version, group_id, len(topics)))
        for name, rows in topics:
            parts.append(codec.write_topic_head(version, name, len(rows)))
            parts += (codec.write_rows(version, rows, error), codec.write_tags(version))
        parts.append(codec.write_group_tail(version, error))
    return b"".join([*parts, codec.write_tags(version)])


@pytest.mark.parametrize("version", range(1, 10))
def test_answers_to_fetches_are_what_kio_reads(version: int) -> None:
    groups_max = 4 if version >= 8 else 1

    @examples(30)
    @given(
        st.lists(st.tuples(st.text(max_size=20), _TOPICS), min_size=1, max_size=groups_max),
        st.sampled_from([ErrorCode.none, ErrorCode.coordinator_not_available]),
    )
    def check(groups: list[tuple[str, list[Any]]], error: ErrorCode) -> None:
        frame = _write_fetch(version, groups, error)
        correlation_id, body = decode_response(OFFSET_FETCH, version, frame)
        assert correlation_id == 9
        found = body.groups if version >= 8 else (body,)
        assert len(found) == len(groups)
        for told, (group_id, topics) in zip(found, groups, strict=True):
            if version >= 8:
                assert told.group_id == group_id
            if version >= 2:
                assert told.error_code == error
            assert [each.name for each in told.topics] == [name for name, _ in topics]
            rows = [part for each in told.topics for part in each.partitions]
            due = [row for _, each in topics for row in each]
            assert len(rows) == len(due)
            for part, (number, committed) in zip(rows, due, strict=True):
                wanted = committed or CommittedOffset(-1)
                assert (part.partition_index, part.committed_offset, part.metadata) == (
                    number, wanted.offset, wanted.metadata,
                )  # fmt: skip
                assert part.error_code == (error if version < 2 else 0)
                if version >= 5:
                    assert part.committed_leader_epoch == wanted.leader_epoch

    check()


def test_nulls_where_there_must_be_something_are_malformed() -> None:
    frame = bytearray(encode_request(OFFSET_FETCH, 2, fetching("g", None), 1, ""))
    assert read_fetch(RequestHeader(OFFSET_FETCH, 2, 1, "", 10), frame) == [("g", None)]
    with pytest.raises(MalformedError, match="null array"):
        read_fetch(RequestHeader(OFFSET_FETCH, 1, 1, "", 10), frame)
    frame = bytearray(encode_request(OFFSET_COMMIT, 2, committing("g", "t", {0: 1}), 1, ""))
    frame[10:13] = b"\xff\xff"
    with pytest.raises(MalformedError, match="null string"):
        read_commit(RequestHeader(OFFSET_COMMIT, 2, 1, "", 10), frame)
