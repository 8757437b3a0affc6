"""The names, the offsets and the JSON values of streams, without a server."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pidlease.storage.topics.stream_settings import expires_ms
from pidlease.storage.topics.topic_store import illegal_name
from proxy.http.streams.json_values import JsonValuesError, json_values
from proxy.http.streams.stream_names import StreamNameError, path_for, topic_for
from proxy.http.streams.stream_offsets import offset_of, offset_text
from proxy.http.streams.stream_requests import next_cursor


@given(st.text(st.sampled_from("aA0F5_/.-é \x00"), min_size=1, max_size=12))
def test_names_map_both_ways(path: str) -> None:
    try:
        topic = topic_for(path)
    except StreamNameError:
        assert not path.strip("./")
        return
    assert not illegal_name(topic)
    assert path_for(topic) == path


@given(st.text(st.sampled_from("aF05_."), min_size=1, max_size=9))
def test_a_topic_has_one_path_or_none(topic: str) -> None:
    try:
        path = path_for(topic)
    except StreamNameError:
        return
    assert topic_for(path) == topic


def test_usual_names_stay() -> None:
    names = {"my_topic": "my_topic", "a/b-c.d": "a__b-c.d", "a_2E": "a_5F2E", "é": "_C3_A9"}
    assert {path: topic_for(path) for path in names} == names
    for topic in ("a_41", "_FF"):
        with pytest.raises(StreamNameError):
            path_for(topic)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_offsets_sort_as_text(one: int, two: int) -> None:
    assert (offset_text(one) < offset_text(two)) == (one < two)
    assert offset_of(offset_text(one)) == one


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(_JSON, st.sampled_from([None, 2]))
def test_values_are_those_of_the_array_or_the_one(value: object, indent: int | None) -> None:
    found = [json.loads(each) for each in json_values(json.dumps(value, indent=indent).encode())]
    assert found == (value if isinstance(value, list) else [value])


@pytest.mark.parametrize(
    "text", ["", " ", "[1", "[1,]", "[,1]", "1 2", "{'a':1}", "[1]]", "nul", "Infinity", "\ufeff1"]
)
def test_other_texts_are_no_json(text: str) -> None:
    with pytest.raises(JsonValuesError):
        json_values(text.encode())


def test_values_stay_as_they_are_written() -> None:
    body = b' [1.00, 12345678901234567890123 ,"\\u0041", {"a" : 1e400}] '
    values = [b"1.00", b"12345678901234567890123", b'"\\u0041"', b'{"a" : 1e400}']
    assert json_values(body) == values


def test_times_and_cursors() -> None:
    assert expires_ms("1970-01-01T00:00:01Z") == 1000
    assert expires_ms("1970-01-01T01:00:00.25+01:00") == 250
    assert expires_ms("1970-13-01T00:00:01Z") is None
    assert expires_ms("1970-01-01") is None
    now = next_cursor("")
    assert next_cursor("x") == next_cursor("1") == now
    assert int(next_cursor(now)) > int(now)
