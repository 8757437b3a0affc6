"""Requests that are like the one before: read and answered by template as by the general codec."""

import random
from datetime import timedelta
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pidlease.kafka.codec.primitives import MalformedError, read_request_header
from pidlease.kafka.codec.produce import (
    FLEXIBLE_FROM,
    PartitionResponse,
    ProduceTemplate,
    RecordError,
    read_produce_request,
    write_produce_response,
)
from pidlease.kafka.records.record_batch import (
    CorruptBatchError,
    InvalidBatchError,
    check_from_client,
    check_intact,
    read_from_client,
    read_header,
)
from tests.kafka_listener.batches import FIELDS, batch, changed
from tests.kafka_listener.messages import PRODUCE, decode_response, encode_request

_VERSIONS: Final = range(3, 13)
_REPEATED: Final = range(5, 13)
_OFFSETS: Final = st.integers(0, 2**62)
_BATCH: Final = batch([b"value"], 2 << 48 | 1, 0, 0)


def _request(
    version: int, data: bytes | None, *, topic: str = "topic", partition: int = 3,
    correlation_id: int = 7, acks: int = -1, transactional_id: str | None = None,
) -> bytearray:  # fmt: skip
    topics = [{"name": topic, "partition_data": [{"index": partition, "records": data}]}]
    values = {
        "transactional_id": transactional_id, "acks": acks,
        "timeout": timedelta(seconds=30), "topic_data": topics,
    }  # fmt: skip
    return bytearray(encode_request(PRODUCE, version, values, correlation_id))


_ERRORS: Final = st.lists(st.builds(RecordError, st.integers(0, 2**31 - 1), st.text(max_size=20)))


@given(
    st.sampled_from(_VERSIONS),
    st.sampled_from([0, 32, 87]),
    st.sampled_from([-1, 1_700_000_000_123]),
    st.text(max_size=20),
    _ERRORS,
)
def test_the_response_has_all_that_kafka_said(
    version: int, code: int, append_time: int, message: str, errors: list[RecordError]
) -> None:
    frame = _request(version, _BATCH)
    header = read_request_header(frame)
    request = read_produce_request(frame, header.body, version)
    result = PartitionResponse(code, 5, 2, message, append_time, tuple(errors))
    response = write_produce_response(version, 7, request, [result])
    (topic,) = decode_response(PRODUCE, version, response)[1].responses
    (part,) = topic.partition_responses
    time = part.log_append_time
    assert (part.error_code.value, part.base_offset) == (code, 5)
    assert (-1 if time is None else round(time.timestamp() * 1000)) == append_time
    if version >= 8:
        found = [(each.batch_index, each.batch_index_error_message or "")
                 for each in part.record_errors]  # fmt: skip
        assert found == errors
        assert (part.error_message or "") == message


def _template(frame: bytearray) -> ProduceTemplate | None:
    header = read_request_header(frame)
    request = read_produce_request(frame, header.body, header.version)
    return ProduceTemplate.of(frame, header.version, request)


@given(st.sampled_from(_REPEATED), st.binary(max_size=20_000), st.binary(max_size=20_000), _OFFSETS)
def test_the_batch_and_the_response_of_a_request_like_the_last(
    version: int, first: bytes, second: bytes, offset: int
) -> None:
    template = _template(_request(version, first))
    assert template is not None

    frame = _request(version, second, correlation_id=2**31 - 1)
    found = template.batch(frame)

    header = read_request_header(frame)
    request = read_produce_request(frame, header.body, version)
    assert found is not None
    assert bytes(found) == bytes(request.parts[0].data) == second
    assert template.response(header.correlation_id, offset, 5)[4:] == write_produce_response(
        version, header.correlation_id, request, [PartitionResponse(0, offset, 5)]
    )


@given(st.sampled_from(_REPEATED), st.data())
def test_whatever_the_template_takes_the_codec_reads_the_same_way(
    version: int, data: st.DataObject
) -> None:
    """One byte, or the length, of a request is another: the codec is the oracle."""
    frame = _request(version, _BATCH)
    template = _template(frame)
    assert template is not None
    other = bytearray(frame)
    at = data.draw(st.integers(0, len(other) - 1))
    other[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        cut = data.draw(st.integers(-20, 20))
        other = other[:cut] if cut < 0 else other + bytes(cut)

    found = template.batch(other)

    if found is None:
        return
    header = read_request_header(other)
    request = read_produce_request(other, header.body, header.version)
    expected = read_produce_request(frame, read_request_header(frame).body, version)
    assert (header.api_key, header.version) == (PRODUCE, version)
    assert (request.acks, request.topics) == (expected.acks, expected.topics)
    assert request.parts[0][:2] == expected.parts[0][:2]
    assert bytes(found) == bytes(request.parts[0].data)


@pytest.mark.parametrize("version", _VERSIONS)
@pytest.mark.parametrize(
    "other",
    [
        {"topic": "topik"}, {"topic": "topics"}, {"partition": 4}, {"acks": 1},
        {"transactional_id": "t"}, {"transactional_id": ""},
    ],
    ids=str,
)  # fmt: skip
def test_any_other_difference_needs_the_codec(version: int, other: dict[str, object]) -> None:
    template = _template(_request(version, _BATCH))
    assert (template is None) == (version not in _REPEATED)
    if template is not None:
        changed_request = _request(version, _BATCH, **other)  # type: ignore[arg-type]
        assert template.batch(changed_request) is None


@pytest.mark.parametrize("version", [each for each in _REPEATED if each >= FLEXIBLE_FROM])
@pytest.mark.parametrize("behind", [1, 2, 3], ids=["request", "topic", "partition"])
def test_tags_after_the_batch_need_the_codec(version: int, behind: int) -> None:
    frame = _request(version, _BATCH)
    template = _template(frame)
    assert template is not None
    frame[-behind] = 1  # one tag, which does not follow: the codec refuses it
    assert template.batch(frame) is None


@pytest.mark.parametrize("version", _REPEATED)
def test_a_request_of_another_version_is_not_like_it(version: int) -> None:
    template = _template(_request(version, _BATCH))
    assert template is not None
    for other in _VERSIONS:
        assert (template.batch(_request(other, _BATCH)) is not None) == (other == version)


@pytest.mark.parametrize("version", _REPEATED)
@pytest.mark.parametrize(
    "special", [{"acks": 0}, {"transactional_id": "t"}, {"transactional_id": ""}], ids=str
)
def test_requests_without_a_template(version: int, special: dict[str, object]) -> None:
    assert _template(_request(version, _BATCH, **special)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("version", _VERSIONS)
def test_null_records_have_no_template(version: int) -> None:
    assert _template(_request(version, None)) is None


def test_a_length_without_an_end_is_not_read_to_the_end() -> None:
    """Some megabytes of it took minutes, with the event loop stopped."""
    front = _request(FLEXIBLE_FROM, b"")[:-4]
    frame = front + b"\xff" * (8 << 20)
    template = _template(_request(FLEXIBLE_FROM, _BATCH))
    assert template is not None

    assert template.batch(frame) is None
    with pytest.raises(MalformedError):
        read_produce_request(frame, read_request_header(frame).body, FLEXIBLE_FROM)


def _refused(data: bytes) -> bool:
    """Whether the checks one by one, which name what is wrong, refuse a batch."""
    try:
        header = read_header(data)
        check_intact(header, data)
        check_from_client(header)
    except (CorruptBatchError, InvalidBatchError):
        return True
    return False


@given(
    st.sampled_from(sorted(FIELDS)), st.integers(-130, 130), st.booleans(), st.integers(0, 1 << 30)
)
def test_checks_in_one_go_are_the_checks_one_by_one(
    field: str, value: int, fix_crc: bool, seed: int
) -> None:
    size = {"b": 1, "h": 2, "i": 4, "q": 8}[FIELDS[field][1][1]]
    value = (value + 128) % 256 - 128 if size == 1 else value
    data = changed(_BATCH, fix_crc=fix_crc, **{field: value})
    chance = random.Random(seed)
    if chance.random() < 0.2:
        data = data[: chance.randrange(len(data))]

    header = read_from_client(data)

    assert (header is None) == _refused(data)
    if header is not None:
        assert header == read_header(data)
        assert type(header) is type(read_header(data))
