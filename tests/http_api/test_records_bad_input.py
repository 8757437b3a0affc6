"""Appends and reads that make no sense: each is told by its field, and nothing of it is stored."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pidlease.core.pid import Policy, make_pid
from pidlease.http_api.record_messages import NUMBER_MAX, READ_BYTES_MAX, RECORDS_MAX, WAIT_MS_MAX
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.http.record_routes import RecordLimits
from tests.http_api.appending import JSON, RAW, Door, door, listening, path_of, producer, values
from tests.kafka_listener.harness import Wanted

INT64_MAX = 2**63 - 1


async def nothing_stored(here: Door) -> None:
    """Nothing of what was refused is in the log, or known; and it serves on."""
    assert (await here.records()).log_end == 0
    assert len(here.server.engine.names) == 0
    assert here.partition.producers == {}
    status, _ = await here.append(values("fine"), producer("p", 0, 0))
    assert status == 200


# ---------------------------------------------------------------------- the producer's headers


@pytest.mark.parametrize("missing", ["Producer-Id", "Producer-Epoch", "Producer-Seq"])
async def test_one_of_three_headers_is_missing(tmp_path: Path, missing: str) -> None:
    async with door(tmp_path) as here:
        headers = producer("p", 0, 0)
        del headers[missing.lower()]
        for status, answer in (
            await here.append(values("a"), headers),
            await here.raw(b"a", headers),
        ):
            assert (status, answer["field"]) == (400, missing)
        await nothing_stored(here)


@pytest.mark.parametrize("twice", ["Producer-Id", "Producer-Epoch", "Producer-Seq", "Content-Type"])
async def test_a_header_that_is_there_twice(tmp_path: Path, twice: str) -> None:
    async with door(tmp_path) as here:
        headers = [*producer("0", 0, 0).items(), *RAW.items()]
        again = dict(headers)[twice.lower()]
        status, answer = await here.raw(b"a", [*headers, (twice.lower(), again)])
        assert (status, answer["field"]) == (415 if twice == "Content-Type" else 400, twice)
        await nothing_stored(here)


NO_NUMBERS = [
    "",
    " ",
    "-0",
    "-1",
    "+0",
    "+1",
    "1 1",
    "1_0",
    "0x1",
    "1.0",
    "1e3",
    "1,2",
    "٣",
    "²",
    "NaN",
    str(NUMBER_MAX + 1),
    "9" * 17,
    "0" * 17,
    "9" * 5000,
    "\x00",
    "1\n",
]


@pytest.mark.parametrize("field", ["Producer-Epoch", "Producer-Seq"])
async def test_a_number_in_a_header_that_is_none(tmp_path: Path, field: str) -> None:
    async with door(tmp_path) as here:
        for number in NO_NUMBERS:
            headers = {**producer("p", 0, 0), field.lower(): number}
            status, answer = await here.raw(b"a", headers)
            assert (status, answer["field"]) == (400, field), (number, answer)
        await nothing_stored(here)


async def test_numbers_up_to_the_largest(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        assert (await here.raw(b"a", producer("p", NUMBER_MAX, 0)))[0] == 200
        status, answer = await here.raw(b"a", producer("p", NUMBER_MAX, NUMBER_MAX))
        assert (status, answer["expected_seq"]) == (409, 1)


NO_NAMES = [
    b"",
    b"x" * 257,
    "é".encode() * 129,
    b"\xff",
    b"a\x00b",
    b"a\tb",
    b"a\x7f",
    b"\xc2\x85",
    "a\u200bb".encode(),
    "a\u2028b".encode(),
    "a\u00a0b".encode(),
    b"\xed\xa0\x80",
]


async def test_a_producer_id_that_is_none(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        for name in NO_NAMES:
            status, answer = await here.raw(b"a", producer(name, 0, 0))
            assert (status, answer["field"]) == (400, "Producer-Id"), (name, answer)
        await nothing_stored(here)


async def test_a_producer_id_of_any_visible_text(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        names = ["p", "x" * 256, "é" * 128, "two words", "0", "a,b", "名前"]
        for offset, name in enumerate(names):
            for duplicate in (False, True):
                status, answer = await here.raw(b"a", producer(name, 3, 0))
                assert (status, answer) == (200, {"offset": offset, "duplicate": duplicate}), name
            assert here.server.engine.names.find(name) is not None


# ---------------------------------------------------------------------- the body


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({"content-type": ""}, "Content-Type"),
        ({"content-type": "text/plain"}, "Content-Type"),
        ({"content-type": "application/x-www-form-urlencoded"}, "Content-Type"),
        ({**JSON, "content-encoding": "br"}, "Content-Encoding"),
        ({**RAW, "content-encoding": "gzip, gzip"}, "Content-Encoding"),
    ],
)
async def test_a_body_of_another_kind(
    tmp_path: Path, headers: dict[str, str | bytes], field: str
) -> None:
    async with door(tmp_path) as here:
        status, answer = await here.raw(b"{}", headers)
        assert (status, answer["field"]) == (415, field)
        await nothing_stored(here)


NO_JSON = [
    b"",
    b"{",
    b"\xff",
    b'{"records": [{"value": "\xff"}]}',
    b'{"records": [{"value": "\\ud800"}]}',
    b"[" * 10_000,
    b'{"records":' + b"[" * 10_000,
    b"\xef\xbb\xbf{}",
    b"null null",
    b'{"records": [{"value": "a", "timestamp_ms": 1' + b"0" * 5000 + b"}]}",
]


async def test_a_body_that_is_no_json(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        for body in NO_JSON:
            for headers in (JSON, {**JSON, **producer("p", 0, 0)}):
                status, answer = await here.raw(body, headers)
                assert (status, answer["field"]) == (400, "body"), (body[:100], answer)
        await nothing_stored(here)


ONE = {"value": "a"}


NO_SENSE: list[tuple[Any, str]] = [
    (None, "body"),
    ([], "body"),
    ("a", "body"),
    ({}, "records"),
    ({"records": []}, "records"),
    ({"records": None}, "records"),
    ({"records": {}}, "records"),
    ({"records": [ONE] * (RECORDS_MAX + 1)}, "records"),
    ({"records": [ONE, None]}, "records.1"),
    ({"records": [ONE, {}]}, "records.1.value"),
    ({"records": [{"value": 1}]}, "records.0.value"),
    ({"records": [{"value": True}]}, "records.0.value"),
    ({"records": [{"value": ["a"]}]}, "records.0.value"),
    ({"records": [{"value": {}}]}, "records.0.value"),
    ({"records": [{"value": {"base64": 1}}]}, "records.0.value"),
    ({"records": [{"value": {"base64": None}}]}, "records.0.value"),
    ({"records": [{"value": {"base64": "YQ"}}]}, "records.0.value"),
    ({"records": [{"value": {"base64": "Y Q="}}]}, "records.0.value"),
    ({"records": [{"value": {"base64": "é"}}]}, "records.0.value"),
    ({"records": [{"value": {"base64": "-_8="}}]}, "records.0.value"),
    ({"records": [{"value": {"base64": "YQ==", "more": 1}}]}, "records.0.value"),
    ({"records": [{**ONE, "key": 1}]}, "records.0.key"),
    ({"records": [{**ONE, "more": 1}]}, "records.0.more"),
    ({"records": [{**ONE, "timestamp_ms": -(2**63) - 1}]}, "records.0.timestamp_ms"),
    ({"records": [{**ONE, "timestamp_ms": 1.5}]}, "records.0.timestamp_ms"),
    ({"records": [{**ONE, "timestamp_ms": "1"}]}, "records.0.timestamp_ms"),
    ({"records": [{**ONE, "timestamp_ms": True}]}, "records.0.timestamp_ms"),
    ({"records": [{**ONE, "timestamp_ms": 2**63}]}, "records.0.timestamp_ms"),
    ({"records": [{**ONE, "headers": {"a": "b"}}]}, "records.0.headers"),
    ({"records": [{**ONE, "headers": [{}]}]}, "records.0.headers.0.key"),
    ({"records": [{**ONE, "headers": [{"key": None}]}]}, "records.0.headers.0.key"),
    ({"records": [{**ONE, "headers": [{"key": "a", "value": 1}]}]}, "records.0.headers.0.value"),
    ({"records": [{**ONE, "headers": [{"key": "pidlease"}]}]}, "records.0.headers.0.key"),
    (
        {"records": [ONE, {**ONE, "headers": [{"key": "a"}, {"key": "pidlease", "value": "x"}]}]},
        "records.1.headers.1.key",
    ),
    ({"records": [ONE], "more": 1}, "more"),
]


async def test_a_body_that_makes_no_sense(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        for body, field in NO_SENSE:
            for headers in (None, producer("p", 0, 0)):
                status, answer = await here.append(body, headers)
                assert (status, answer["field"]) == (400, field), (str(body)[:200], answer)
                assert len(answer["error"]) < 200
        await nothing_stored(here)


async def test_a_body_that_is_too_long(tmp_path: Path) -> None:
    async with door(tmp_path, limits=RecordLimits(batch_bytes_max=2000)) as here:

        async def parts() -> Any:
            for _ in range(30):
                yield b"x" * 100

        for content in (b"x" * 2001, parts()):
            response = await here.client.post(path_of(), content=content, headers=RAW)
            assert (response.status_code, response.json()["field"]) == (413, "body")
            assert "2000" in response.json()["error"]
        # The body may pass, but the batch has a header, and says who sends it.
        status, answer = await here.raw(b"x" * 2000)
        assert (status, answer["field"]) == (413, "body")
        status, answer = await here.append({"records": [{"value": ""}] * 300})
        assert (status, answer["field"]) == (413, "body"), "small as JSON are large as a batch"
        status, answer = await here.raw(b"x" * 1900, producer("p" * 100, 0, 0))
        assert (status, answer["field"]) == (413, "body")
        await nothing_stored(here)
        assert (await here.raw(b"x" * 1900))[0] == 200


async def test_a_body_without_end_is_read_no_further_than_the_limit(tmp_path: Path) -> None:
    async with door(tmp_path) as here, listening(here.app) as port:
        for head in (b"Content-Length: 99999999999999", b"Transfer-Encoding: chunked"):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            writer.write(
                b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%s\r\n\r\n"
                % (path_of().encode(), head)
            )
            sent = 0
            answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
            part = b"x" * 65_000
            chunk = part if b"Length" in head else b"%x\r\n%s\r\n" % (len(part), part)
            while not answer.done():
                writer.write(chunk)
                await writer.drain()
                sent += len(part)
                assert sent < 64 << 20
                await asyncio.sleep(0)
            assert b" 413 " in await answer
            writer.transport.abort()
        await nothing_stored(here)


async def test_a_body_that_ends_too_early(tmp_path: Path) -> None:
    async with door(tmp_path) as here, listening(here.app) as port:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(
            b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n"
            b"Content-Length: 100\r\n\r\nonly this" % path_of().encode()
        )
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        await asyncio.sleep(0.05)
        await nothing_stored(here)


# ---------------------------------------------------------------------- a leased PID in the body


LEASED = {"pid": make_pid(Policy.STRICT, 1), "generation": 0, "first_sequence": 0}


NO_LEASE: list[tuple[dict[str, Any], str]] = [
    *(({name: None}, name) for name in ("pid", "generation", "first_sequence")),
    ({"pid": -1}, "pid"),
    ({"pid": 0}, "pid"),
    ({"pid": 7}, "pid"),
    ({"pid": "1"}, "pid"),
    ({"pid": 1.0}, "pid"),
    ({"pid": 2**53}, "pid"),
    ({"pid": make_pid(Policy.KAFKA, 1)}, "pid"),
    ({"pid": make_pid(Policy.MONOTONIC, 1)}, "pid"),
    ({"pid": make_pid(Policy.EPOCH, 1)}, "pid"),
    ({"pid": make_pid(Policy.EPOCH, 1 << 47)}, "pid"),
    ({"pid": make_pid(Policy.WRITER, 1)}, "pid"),
    ({"pid": Policy.STRICT << 48}, "pid"),
    ({"generation": -1}, "generation"),
    ({"generation": 2**63}, "generation"),
    ({"generation": "0"}, "generation"),
    ({"first_sequence": -1}, "first_sequence"),
    ({"first_sequence": 2**63}, "first_sequence"),
    ({"first_sequence": INT64_MAX, "records": [ONE] * 2}, "first_sequence"),
    ({"first_sequence": False}, "first_sequence"),
    ({"last_sequence": -1}, "last_sequence"),
    ({"last_sequence": 2**63}, "last_sequence"),
    ({"first_sequence": 5, "last_sequence": 4}, "last_sequence"),
    ({"last_sequence": 0, "records": [ONE] * 2}, "last_sequence"),
]


async def test_a_leased_pid_that_makes_no_sense(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        for change, field in NO_LEASE:
            status, answer = await here.append({**LEASED, "records": [ONE], **change})
            assert (status, answer["field"]) == (400, field), (change, answer)
        await nothing_stored(here)


async def test_a_last_sequence_alone(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        status, answer = await here.append({"records": [ONE], "last_sequence": 0})
        assert (status, answer["field"]) == (400, "pid")


async def test_both_ways_at_once(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        lease = await here.lease()
        body = {**values("a"), **lease, "first_sequence": 0}
        status, answer = await here.append(body, producer("p", 0, 0))
        assert (status, answer["field"]) == (400, "pid")
        assert "Producer-Id" in answer["error"]
        await nothing_stored(here)


async def test_a_pid_that_nobody_leased(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        lease = await here.lease()
        wrong = {**values("a"), "pid": make_pid(Policy.STRICT, 10**12), "first_sequence": 0}
        status, answer = await here.append({**wrong, "generation": 0})
        assert (status, answer["field"]) == (410, "pid")
        here.server.let_leases_end()
        status, answer = await here.append({**values("a"), **lease, "first_sequence": 0})
        assert (status, answer["field"]) == (410, "pid")
        await nothing_stored(here)


# ---------------------------------------------------------------------- where to


NO_PLACE: list[tuple[str, object, int, str | None]] = [
    ("u", 0, 404, "topic"),
    ("t", 2, 404, "partition"),
    ("t", 2**31 - 1, 404, "partition"),
    ("t", 2**31, 400, "partition"),
    ("t", -1, 400, "partition"),
    ("t", "-0", 400, "partition"),
    ("t", "%2B0", 400, "partition"),
    ("t", "%200", 400, "partition"),
    ("t", "0%20", 400, "partition"),
    ("t", "0.0", 400, "partition"),
    ("t", "0x0", 400, "partition"),
    ("t", "1_0", 400, "partition"),
    ("t", "%D9%A0", 400, "partition"),
    ("t", "x", 400, "partition"),
    ("t", "9" * 100, 400, "partition"),
    ("x" * 250, 0, 400, "topic"),
    ("..%2Ft", 0, 404, None),
]


async def test_a_place_that_is_none(tmp_path: Path) -> None:
    async with door(tmp_path, Wanted(auto_create=False)) as here:
        for topic, partition, status, field in NO_PLACE:
            place: Any = {"topic": topic, "partition": partition}
            for found, answer in (
                await here.append(values("a"), **place),
                await here.append(values("a"), producer("p", 0, 0), **place),
                await here.read(**place),
            ):
                assert (found, answer["field"]) == (status, field), (place, answer)
        await nothing_stored(here)


async def test_other_methods(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        for method in ("PUT", "DELETE", "PATCH"):
            response = await here.client.request(method, path_of(), content=b"x" * (2 << 20))
            assert response.status_code == 405


NO_DIGITS = ("", "-1", "+1", " 1", "1 ", "1.0", "1_0", "x", "٣", "9" * 19, "9" * 5000)
NO_QUERY: list[tuple[dict[str, Any], str]] = [
    ({"max_bytes": 0}, "max_bytes"),
    ({"max_bytes": READ_BYTES_MAX + 1}, "max_bytes"),
    ({"wait_ms": WAIT_MS_MAX + 1}, "wait_ms"),
    ({"offset": 2**63}, "offset"),
    ({"max_byte": 1}, "max_byte"),
]


async def test_a_read_that_makes_no_sense(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        for name in ("offset", "max_bytes", "wait_ms"):
            for text in NO_DIGITS:
                status, answer = await here.read(**{name: text})
                assert (status, answer["field"]) == (400, name), (text, answer)
        for query, field in NO_QUERY:
            status, answer = await here.read(**query)
            assert (status, answer["field"]) == (400, field), (query, answer)


async def test_what_is_refused_names_no_more_than_needed(tmp_path: Path) -> None:
    """What was sent is not sent back at length."""
    async with door(tmp_path) as here:
        body = {"records": [{"value": "a", "x" * 100_000: 1}]}
        status, answer = await here.append(body)
        assert status == 400
        assert len(json.dumps(answer)) < 1000, len(json.dumps(answer))
