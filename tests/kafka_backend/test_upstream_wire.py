"""What is written and read by hand towards Kafka, against kio, which others wrote."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.api import API_FETCH, API_PRODUCE, SENT_VERSIONS
from pidlease.kafka.codec import fetch as fetch_wire
from pidlease.kafka.codec import produce as produce_wire
from pidlease.kafka.codec.fetch import (
    READ_COMMITTED,
    FetchedRecords,
    FetchLimits,
    aborted_transactions,
    empty_partition,
    join_partitions,
    read_partitions,
)
from pidlease.kafka.codec.messages import Request
from pidlease.kafka.codec.produce import PartitionResponse, ProduceBatch, RecordError
from pidlease.kafka.errors import UpstreamAwayError, UpstreamNonsenseError
from tests.kafka_listener.messages import build

PRODUCE, FETCH = 0, 1
PRODUCE_VERSIONS = range(SENT_VERSIONS[API_PRODUCE][0], SENT_VERSIONS[API_PRODUCE][1] + 1)
FETCH_VERSIONS = range(SENT_VERSIONS[API_FETCH][0], SENT_VERSIONS[API_FETCH][1] + 1)
_APPENDED = datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
_APPENDED_MS = 1_700_000_000_123
PLACES = [TopicPartition("a", 0), TopicPartition("b", 7), TopicPartition("a", 3)]


def read_request(key: int, version: int, frame: bytes) -> tuple[Any, Any]:
    kind: Any = load_request_schema(key, version)
    header, size = entity_reader(kind.__header_schema__)(frame, 0)
    body, more = entity_reader(kind)(frame, size)
    assert size + more == len(frame)
    return header, body


def write_response(key: int, version: int, values: dict[str, object]) -> bytes:
    kind: Any = load_response_schema(key, version)
    stream = io.BytesIO()
    stream.write((5).to_bytes(4, "big"))
    entity_writer(kind)(stream, build(kind, {"throttle_time": timedelta(0), **values}))
    return stream.getvalue()


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@pytest.mark.parametrize("transactional_id", [None, "tx"])
def test_produce_is_asked(version: int, transactional_id: str | None) -> None:
    batches = [
        ProduceBatch(place, b"batch of %d" % place.partition, transactional_id) for place in PLACES
    ]
    frame = b"".join(produce_wire.write_produce_request(version, 9, 2500, batches))
    header, body = read_request(PRODUCE, version, frame)
    assert (header.request_api_key, header.request_api_version) == (PRODUCE, version)
    assert (header.correlation_id, header.client_id) == (9, "pidlease")
    assert (body.transactional_id, body.acks, body.timeout) == (
        transactional_id, -1, timedelta(milliseconds=2500),
    )  # fmt: skip
    found = {
        (topic.name, part.index): bytes(part.records)
        for topic in body.topic_data
        for part in topic.partition_data
    }
    assert found == {place: b"batch of %d" % place.partition for place in PLACES}


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_is_answered(version: int) -> None:
    def part(index: int, code: int, offset: int, **more: object) -> dict[str, object]:
        return {"index": index, "error_code": ErrorCode(code), "base_offset": offset,
                "log_append_time": None, "log_start_offset": 1, **more}  # fmt: skip

    errors = [{"batch_index": 2, "batch_index_error_message": "too long"}]
    frame = write_response(PRODUCE, version, {"responses": [
        {"name": "a", "partition_responses": [
            part(0, 0, 42),
            part(3, 87, -1, record_errors=errors, error_message="no"),
        ]},
        {"name": "b", "partition_responses": [
            part(7, 0, 2**40, error_message=None, log_append_time=_APPENDED)
        ]},
    ]})  # fmt: skip
    why, invalid = ("no", (RecordError(2, "too long"),)) if version >= 8 else ("", ())
    start = 1 if version >= 5 else -1
    assert produce_wire.read_produce_response(version, frame) == {
        PLACES[0]: PartitionResponse(0, 42, start),
        PLACES[2]: PartitionResponse(87, -1, start, why, record_errors=invalid),
        PLACES[1]: PartitionResponse(0, 2**40, start, append_time=_APPENDED_MS),
    }
    for size in range(len(frame)):
        with pytest.raises(UpstreamNonsenseError):
            produce_wire.read_produce_response(version, frame[:size])
    with pytest.raises(UpstreamNonsenseError):
        produce_wire.read_produce_response(version, frame + b"\0")


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_batch_that_goes_alone_is_asked_as_others_are(version: int) -> None:
    for place in PLACES:
        batch = ProduceBatch(place, b"a batch")
        alone = b"".join(produce_wire.write_single_request(version, 9, 2500, place, batch.data))
        assert alone[4:] == b"".join(produce_wire.write_produce_request(version, 9, 2500, [batch]))
        assert int.from_bytes(alone[:4], "big") == len(alone) - 4


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@pytest.mark.parametrize("appended", [None, _APPENDED])
@pytest.mark.parametrize(
    ("code", "offset", "message"),
    [(0, 42, None), (0, 0, None), (0, 2**40, ""), (0, -1, None), (87, -1, "no"), (3, -1, None)],
)
def test_a_batch_that_went_alone_is_answered_as_others_are(
    version: int, code: int, offset: int, message: str | None, appended: datetime | None
) -> None:
    part = {"index": 3, "error_code": ErrorCode(code), "base_offset": offset,
            "log_append_time": appended, "log_start_offset": 1,
            "error_message": message}  # fmt: skip
    responses = [{"name": "a", "partition_responses": [part]}]
    frame = write_response(PRODUCE, version, {"responses": responses})
    place = TopicPartition("a", 3)
    alone, time = produce_wire.read_single_response(version, frame, place)
    if alone >= 0:
        assert produce_wire.read_produce_response(version, frame) == {
            place: PartitionResponse(0, alone, 1, append_time=time)
        }
        assert (alone, time) == (offset, -1 if appended is None else _APPENDED_MS)
    assert (alone < 0) == (version < 8 or code != 0 or message is not None or offset < 0)
    for other in (("a", 2), ("b", 3), ("", 3), ("a" * 7, 3)):
        assert produce_wire.read_single_response(version, frame, TopicPartition(*other))[0] == -1
    for damaged in (*(frame[:size] for size in range(len(frame))), frame + b"\0"):
        assert produce_wire.read_single_response(version, damaged, place)[0] == -1


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_is_asked(version: int) -> None:
    frame = fetch_wire.write_fetch_request(version, {PLACES[1]: 2**33}, FetchLimits(70, 5000, 5000))
    header, body = read_request(FETCH, version, frame)
    assert (header.request_api_key, header.client_id) == (FETCH, "pidlease")
    assert (body.max_wait, body.min_bytes, body.max_bytes) == (timedelta(milliseconds=70), 1, 5000)
    assert body.isolation_level == 0
    [topic] = body.topics
    [part] = topic.partitions
    assert (topic.topic, part.partition, part.fetch_offset) == ("b", 7, 2**33)
    assert part.partition_max_bytes == 5000
    assert getattr(part, "current_leader_epoch", -1) == -1
    assert (getattr(body, "session_id", 0), getattr(body, "session_epoch", -1)) == (0, -1)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_of_many_partitions_is_asked(version: int) -> None:
    offsets = {TopicPartition("a", 3): 1, TopicPartition("b", 7): 2, TopicPartition("a", 0): 2**33}
    limits = FetchLimits(70, 5000, 600, READ_COMMITTED)
    header, body = read_request(
        FETCH, version, fetch_wire.write_fetch_request(version, offsets, limits, "caf\u00e9")
    )
    assert header.client_id == "caf\u00e9"
    assert (body.max_bytes, body.isolation_level) == (5000, 1)
    assert [
        (topic.topic, [(each.partition, each.fetch_offset) for each in topic.partitions])
        for topic in body.topics
    ] == [("a", [(3, 1), (0, 2**33)]), ("b", [(7, 2)])]
    assert {each.partition_max_bytes for topic in body.topics for each in topic.partitions} == {600}


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_part_of_a_clients_fetch_is_asked(version: int) -> None:
    """Its partitions of one leader, each with the bytes that the client asks for."""
    request = fetch_wire.FetchRequest(70, 3, 5000, READ_COMMITTED, [])
    positions = [
        (topic, fetch_wire.FetchPosition(*row))
        for topic, row in (("a", (3, 1, 100)), ("b", (7, 2**33, 300)), ("a", (0, 5, 200)))
    ]
    header, body = read_request(
        FETCH, version, fetch_wire.write_forwarded_fetch(version, request, positions)
    )
    assert (header.request_api_key, header.client_id) == (FETCH, "pidlease")
    assert (body.max_wait, body.min_bytes) == (timedelta(milliseconds=70), 3)
    assert (body.max_bytes, body.isolation_level, body.replica_id) == (5000, 1, -1)
    found = [
        (topic.topic, [(each.partition, each.fetch_offset, each.partition_max_bytes)
                       for each in topic.partitions])
        for topic in body.topics
    ]  # fmt: skip
    assert found == [("a", [(3, 1, 100), (0, 5, 200)]), ("b", [(7, 2**33, 300)])]
    parts = [each for topic in body.topics for each in topic.partitions]
    assert {getattr(each, "current_leader_epoch", -1) for each in parts} == {-1}
    assert (getattr(body, "session_id", 0), getattr(body, "session_epoch", -1)) == (0, -1)
    assert (getattr(body, "forgotten_topics_data", ()), getattr(body, "rack_id", "")) == ((), "")


def fetched(version: int) -> bytes:
    def part(index: int, code: int, records: bytes | None, aborted: int) -> dict[str, object]:
        transactions = [{"producer_id": 5 + n, "first_offset": n} for n in range(aborted)]
        return {"partition_index": index, "error_code": ErrorCode(code), "high_watermark": 90,
                "last_stable_offset": 80, "log_start_offset": 3, "preferred_read_replica": -1,
                "aborted_transactions": transactions, "records": records}  # fmt: skip

    return write_response(FETCH, version, {"error_code": ErrorCode.none, "session_id": 0,
        "responses": [
            {"topic": "a", "partitions": [part(0, 0, b"x" * 100, 2), part(3, 6, None, 0)]},
            {"topic": "b", "partitions": [part(7, 0, b"", 0)]},
        ]})  # fmt: skip


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetched_partitions_are_taken_apart_and_joined(version: int) -> None:
    frame = fetched(version)
    code, rows = read_partitions(version, frame)
    first = 3 if version >= 5 else -1
    assert code == 0
    assert {place: (row.code, row.size, row.offsets) for place, row in rows.items()} == {
        ("a", 0): (0, 100, (90, 80, first)),
        ("a", 3): (6, 0, (90, 80, first)),
        ("b", 7): (0, 0, (90, 80, first)),
    }
    aborted = {place: aborted_transactions(version, row) for place, row in rows.items()}
    assert aborted == {("a", 0): [(5, 0), (6, 1)], ("a", 3): [], ("b", 7): []}
    topics: dict[str, list[bytes | memoryview]] = {
        "b": [rows["b", 7].data, empty_partition(version, 8, 5, (1, 2, 3))],
        "a": [rows["a", 3].data, rows["a", 0].data],
    }
    joined = b"".join(join_partitions(version, 5, topics))
    kind: Any = load_response_schema(FETCH, version)
    body, size = entity_reader(kind)(joined, 4)
    assert size + 4 == len(joined)
    found = [
        (topic.topic, part.partition_index, part.error_code.value, len(part.records or b""),
         len(part.aborted_transactions or ()), part.high_watermark)
        for topic in body.responses
        for part in topic.partitions
    ]  # fmt: skip
    assert found == [
        ("b", 7, 0, 0, 0, 90), ("b", 8, 5, 0, 0, 1), ("a", 3, 6, 0, 0, 90), ("a", 0, 0, 100, 2, 90),
    ]  # fmt: skip
    for size in range(len(frame)):
        with pytest.raises(UpstreamNonsenseError):
            read_partitions(version, frame[:size])


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_one_fetched_partition(version: int) -> None:
    frame = write_response(FETCH, version, {"error_code": ErrorCode.none, "session_id": 0,
        "responses": [{"topic": "b", "partitions": [{
            "partition_index": 7, "error_code": ErrorCode.none, "high_watermark": 90,
            "last_stable_offset": 80, "log_start_offset": 3, "preferred_read_replica": -1,
            "aborted_transactions": [{"producer_id": 5, "first_offset": 4}], "records": b"xyz",
        }]}]})  # fmt: skip
    found = fetch_wire.read_fetch_response(version, PLACES[1], frame)
    start = 3 if version >= 5 else -1
    assert found == FetchedRecords(0, 90, start, b"xyz", 80, [(5, 4)])
    for size in range(len(frame)):
        with pytest.raises(UpstreamNonsenseError):
            fetch_wire.read_fetch_response(version, PLACES[1], frame[:size])
    with pytest.raises(UpstreamNonsenseError):
        fetch_wire.read_fetch_response(version, PLACES[1], fetched(version))
    for other in (TopicPartition("b", 8), TopicPartition("c", 7)):
        with pytest.raises(UpstreamNonsenseError, match="was requested"):
            fetch_wire.read_fetch_response(version, other, frame)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_fetch_that_has_to_wait(version: int) -> None:
    """Kafka says nothing of any partition where a quota is used up."""
    values = {"error_code": ErrorCode.none, "session_id": 0, "responses": []}
    frame = write_response(FETCH, version, values)
    with pytest.raises(UpstreamAwayError, match="returns nothing"):
        fetch_wire.read_fetch_response(version, PLACES[1], frame)


def test_requests_have_correlation_ids_of_their_own() -> None:
    """An answer that comes twice is not to pass for the next one."""
    asked = [Request(3, 4).encode(topics=None, allow_auto_topic_creation=False) for _ in range(3)]
    asked += [
        fetch_wire.write_fetch_request(11, {PLACES[0]: 0}, FetchLimits(0, 1, 1)) for _ in range(3)
    ]
    ids = {frame[4:8] for frame in asked}
    assert len(ids) == 6
    assert bytes(4) not in ids


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_batch_that_is_answered_twice(version: int) -> None:
    part = {"index": 0, "error_code": ErrorCode.none, "log_append_time": None,
            "log_start_offset": 1}  # fmt: skip
    rows = [{**part, "base_offset": 3}, {**part, "base_offset": 9}]
    frame = write_response(
        PRODUCE, version, {"responses": [{"name": "a", "partition_responses": rows}]}
    )
    with pytest.raises(UpstreamNonsenseError, match="twice"):
        produce_wire.read_produce_response(version, frame)
