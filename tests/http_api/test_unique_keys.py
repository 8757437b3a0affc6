"""JSON with a key twice in one object: once its first value was dropped, and the answer was 200."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from hypothesis import given
from hypothesis import strategies as st

from proxy.http.unique_keys import check_unique_keys, keys_and_objects
from tests.http_api.appending import JSON, door

NDJSON = {"content-type": "application/x-ndjson"}
_TWICE = [
    (b'{"records": [{"value": "a"}], "records": [{"value": "b"}]}', "records"),
    (b'{"records": [{"value": "a"}], "\\u0072ecords": [{"value": "b"}]}', "records"),
    (b'{"records": [{"value": "a", "value": "a"}]}', "value"),
    (b'{"records": [{"value": "a:\\"{"}, {"key": ":", "value": "a", "key": "b"}]}', "key"),
    (b'{"records": [{"value": {"base64": "YQ==", "base64": "Yg=="}}]}', "base64"),
    (b'{"records": [{"value": "", "headers": [{"key": "a", "key": "b"}]}]}', "key"),
    (b'{"records":[{"value":"a"}],"pid":1,"generation":0,"first_sequence":0,"pid":2}', "pid"),
]
_ONCE = [
    b'{"records": [{"value": "\\"a\\": {"}, {"value": {"base64": "YQ=="}, "key": "{:"}]}',
    b'{"records": [{"value": "a", "key": "value", "headers": [{"key": "a"}, {"key": "a"}]}]}',
]


async def test_records_with_a_key_twice(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        for body, key in _TWICE:
            status, answer = await here.raw(body, JSON)
            assert (status, answer["field"]) == (400, key), (body, answer)
            assert "more than once" in answer["detail"]
        line = b'{"value": "a"}\n{"value": "b", "value": "c"}\n'
        status, answer = await here.raw(line, NDJSON)
        assert (status, answer["field"]) == (400, "records.1.value"), answer
        assert (await here.records()).log_end == 0
        for body in _ONCE:
            assert (await here.raw(body, JSON))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "key"),
    [
        ("POST", "/v1/leases", '{"topic": "t", "partition": 0, "partition": 1}', "partition"),
        ("POST", "/v1/leases/batch", '{"leases": [{"topic": "t", "topic": "u"}]}', "topic"),
        ("POST", "/v1/topics", '{"name": "a", "partitions": 1, "name": "b"}', "name"),
        (
            "PATCH", "/v1/topics/t/settings",
            '{"settings": {"retention.ms": "1", "retention.ms": "2"}}', "retention.ms",
        ),
        ("POST", "/v1/jobs", '{"name": "a", "name": "b"}', "name"),
    ],
)  # fmt: skip
async def test_other_bodies_with_a_key_twice(
    tmp_path: Path, method: str, path: str, body: str, key: str
) -> None:
    async with door(tmp_path) as here:
        response = await here.client.request(method, path, content=body, headers=JSON)
        answer = response.json()
        assert (response.status_code, answer["field"]) == (400, key), answer
        assert "more than once" in answer["detail"]


_VALUES: Any = st.recursive(
    st.none() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


def _count(value: object) -> tuple[int, int]:
    if isinstance(value, dict):
        inner, own = list(value.values()), (len(value), 1)
    else:
        inner, own = value if isinstance(value, list) else [], (0, 0)
    counts = [_count(each) for each in inner]
    return own[0] + sum(keys for keys, _ in counts), own[1] + sum(found for _, found in counts)


@given(_VALUES, st.booleans(), st.sampled_from([(",", ":"), (" , ", " : ")]))
def test_keys_and_objects_are_counted(
    value: object, ascii_only: bool, separators: tuple[str, str]
) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only, separators=separators)
    encoded = body.encode(errors="surrogatepass")
    assert keys_and_objects(encoded) == _count(value)
    check_unique_keys(body.encode(errors="replace"))


def test_a_key_twice_anywhere_is_named() -> None:
    with pytest.raises(RequestValidationError) as refused:
        check_unique_keys(b'[{"a": [{"b": 1, "c": 2, "b": 3}]}]', "records", 4)
    assert refused.value.errors()[0]["loc"] == ("body", "records", 4, "b")
