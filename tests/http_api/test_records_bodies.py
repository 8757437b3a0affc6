"""Appends as NDJSON, and compressed by gzip or zstd: the same records, bounds and refusals."""

import gzip
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pidlease.http_api.record_messages import RECORDS_MAX
from proxy.http.record_routes import RecordLimits
from tests.http_api.appending import JSON, RAW, door, producer, values

NDJSON = {"content-type": "application/x-ndjson"}
GZIP = {"content-encoding": "gzip"}
ZSTD = {"content-encoding": "zstd"}


def zstd(body: bytes) -> bytes:
    packed: bytes = pa.compress(body, codec="zstd", asbytes=True)
    return packed


#: How bodies are compressed, with the header that says so.
CODINGS = pytest.mark.parametrize(("pack", "coding"), [(gzip.compress, GZIP), (zstd, ZSTD)])
Pack = Callable[[bytes], bytes]
_LINES = b'{"value": "a", "key": "k"}\n\r\n  {"value": {"base64": "AP8="}, "timestamp_ms": 7}\r\n'


async def test_each_line_is_a_record(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        assert await here.raw(_LINES, NDJSON) == (200, {"offset": 0, "duplicate": False})
        found = (await here.records()).records
        assert [(each.key, each.value) for each in found] == [(b"k", b"a"), (None, b"\x00\xff")]
        assert found[1].timestamp_ms == 7
        for duplicate in (False, True):
            status, answer = await here.raw(b'{"value": "b"}', {**NDJSON, **producer("p", 0, 0)})
            assert (status, answer) == (200, {"offset": 2, "duplicate": duplicate})


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (b"", "records"),
        (b"\n \n", "records"),
        (b'{"value": "a"}\n' * (RECORDS_MAX + 1), "records"),
        (b'{"value": "a"}\n{"value": 1}', "records.1.value"),
        (b'{"value": "a"}\n{', "body"),
        (b'{"value": "a"} {"value": "b"}', "body"),
        (b'{"value": "a"}, {"value": "b"}', "body"),
        (b'{"value": "a"}], "pid": 1, "x": [', "body"),
        (b'{"value": "\xff"}', "body"),
        (b'{"value": "a", "headers": [{"key": "pidlease"}]}', "records.0.headers.0.key"),
        (b'{"records": [{"value": "a"}]}', "records.0.value"),
        (b"[]", "records.0"),
        (b"[" * 100_000, "body"),
    ],
)
async def test_lines_that_are_no_records(tmp_path: Path, content: bytes, field: str) -> None:
    async with door(tmp_path) as here:
        for body, coding in ((content, {}), (gzip.compress(content), GZIP)):
            if not content and not coding:
                continue  # httpx sends no content type with an empty body
            status, answer = await here.raw(body, {**NDJSON, **coding})
            assert (status, answer["field"]) == (400, field), answer
        assert (await here.records()).log_end == 0


async def test_empty_lines_count_nothing(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        body = b'{"value": ""}\n\n' * (RECORDS_MAX - 1) + b"\n" * 100_000
        assert (await here.raw(body, NDJSON))[0] == 200
        assert (await here.records()).log_end == RECORDS_MAX - 1


@CODINGS
async def test_many_empty_parts_end_soon(tmp_path: Path, pack: Pack, coding: Any) -> None:
    async with door(tmp_path) as here:
        body = pack(b"") * 10_000 + pack(b"x")
        began = time.monotonic()
        assert (await here.raw(body, {**RAW, **coding}))[0] == 200
        assert time.monotonic() - began < 10


@CODINGS
async def test_bodies_may_be_compressed(tmp_path: Path, pack: Pack, coding: Any) -> None:
    async with door(tmp_path) as here:
        one = json.dumps(values("a")).encode()
        bodies: list[tuple[bytes, Mapping[str, str]]] = [
            (one, JSON), (b"b", RAW), (b'{"value": "c"}\n', NDJSON),
        ]  # fmt: skip
        for body, kind in bodies:
            assert (await here.raw(pack(body), {**kind, **coding}))[0] == 200
        half = pack(one[:9]) + pack(one[9:])
        shouted = f" {coding['content-encoding'].upper()} "
        assert (await here.raw(half, {**JSON, "content-encoding": shouted}))[0] == 200
        found = [each.value for each in (await here.records()).records]
        assert found == [b"a", b"b", b"c", b"a"]


@CODINGS
@pytest.mark.parametrize("kind", [JSON, RAW, NDJSON])
async def test_what_unpacks_to_more_is_refused(
    tmp_path: Path, kind: dict[str, str], pack: Pack, coding: Any
) -> None:
    async with door(tmp_path, limits=RecordLimits(batch_bytes_max=5000)) as here:
        bombs: list[Any] = [
            pack(b"x" * 5001),
            pack(b" " * 4_000_000),
            pack(b" " * 3000) * 2,
            pack(b" " * 1000) * 20,
        ]
        for bomb in bombs:
            status, answer = await here.raw(bomb, {**kind, **coding})
            assert (status, answer["code"]) == (413, "body_too_large"), answer
        assert (await here.records()).log_end == 0


async def test_what_is_no_zstd_is_refused(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        whole = zstd(b"abc" * 100)
        window = b"\x28\xb5\x2f\xfd\x00" + bytes([(30 - 10) << 3]) + b"\x29\x00\x00hello"
        for body in (b"abc", whole[:-1], whole[:5], whole + b"x", gzip.compress(b"a"), window):
            status, answer = await here.raw(body, {**RAW, **ZSTD})
            assert (status, answer["code"], answer["field"]) == (400, "invalid_request", "body")
        assert (await here.records()).log_end == 0


async def test_what_is_no_gzip_is_refused(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        whole = gzip.compress(b"abc" * 100)
        spoilt = bytearray(whole)
        spoilt[-6] ^= 1  # its checksum
        for body in (b"abc", whole[:-1], whole[:5], whole + b"x", bytes(spoilt)):
            status, answer = await here.raw(body, {**RAW, **GZIP})
            assert (status, answer["code"], answer["field"]) == (400, "invalid_request", "body")
        assert (await here.records()).log_end == 0


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_an_empty_body_is_no_compressed_one(tmp_path: Path, coding: str) -> None:
    """Once it was stored as an empty record."""
    async with door(tmp_path) as here:
        status, answer = await here.raw(b"", {**RAW, "content-encoding": coding})
        assert (status, answer["field"]) == (400, "body"), answer
        assert (await here.records()).log_end == 0
        assert (await here.raw(b"", {**RAW, "content-encoding": "identity"}))[0] == 200
        assert [each.value for each in (await here.records()).records] == [b""]
