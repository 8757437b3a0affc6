"""Requests on one connection without waiting for responses: these come in the requests' order."""

import asyncio
import gc
import json
import re
from pathlib import Path
from typing import Final

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from pidlease.http_api.problems import MEDIA_TYPE
from pidlease.testing.loopback_ports import LOOPBACK
from tests.http_api.appending import OFFERS, RAW, door, listening, path_of, post, producer
from tests.servers.waiting import WAIT_S

_HANG_S: Final = WAIT_S
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")


async def exchange(port: int, *sent: bytes) -> bytes:
    """Send requests in parts, and return all that comes until the end of the connection."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        for part in sent:
            writer.write(part)
            await writer.drain()
        return await asyncio.wait_for(reader.read(), _HANG_S)
    finally:
        writer.close()


def statuses(answer: bytes) -> list[int]:
    return [int(each) for each in _STATUS.findall(answer)]


_CHUNKED: Final = (
    f"POST {path_of()} HTTP/1.1\r\nhost: x\r\ncontent-type: {RAW['content-type']}\r\n"
    "transfer-encoding: chunked\r\n\r\n"
).encode()


@pytest.mark.parametrize(("appends", "at_once"), [(0, True), (65, True), (65, False)])
@pytest.mark.parametrize(
    "malformed",
    [
        _CHUNKED + b"1\r\na\r\nno size\r\n" + post(b"after"),
        b"no request at all\r\n\r\n" + post(b"after"),
    ],
    ids=["body", "head"],
)
async def test_a_malformed_request_is_refused_in_its_turn(
    tmp_path: Path, appends: int, at_once: bool, malformed: bytes
) -> None:
    async with door(tmp_path) as here, listening(here.app) as port:
        first = b"".join(post(b"%d" % number) for number in range(appends))
        parts = (first + malformed,) if at_once else (first, malformed)
        answer = await exchange(port, *parts)
        assert statuses(answer) == [200] * appends + [400]
        offsets = [int(each) for each in re.findall(rb'"offset":(\d+)', answer)]
        assert offsets == list(range(appends))
        found = [each.value for each in (await here.records()).records]
        assert found == [b"%d" % number for number in range(appends)]


async def test_responses_come_in_the_order_of_the_requests(tmp_path: Path) -> None:
    async with door(tmp_path) as here, listening(here.app) as port:
        requests, expected = [], []
        for number in range(70):
            requests += [
                post(b"%d" % number, f"idempotency-key: k{number}"),
                f"GET {path_of()}?offset={number}&max_bytes=1 HTTP/1.1\r\nhost: x\r\n\r\n".encode(),
                f"GET {path_of('u')} HTTP/1.1\r\nhost: x\r\n\r\n".encode(),
                post(b"", *(f"{name}: {value!s}" for name, value in producer("p", 0, 99).items())),
            ]
            expected += [200, 200, 404, 409]
        requests[-1] = post(b"last", "connection: close")
        expected[-1] = 200
        answer = await exchange(port, b"".join(requests))
        assert statuses(answer) == expected
        offsets = re.findall(rb'\{"offset":(\d+),"duplicate"|"offset":(\d+),"timestamp_ms"', answer)
        stored = [int(one) for one, _ in offsets if one]
        assert stored == list(range(71))
        assert [int(other) for _, other in offsets if other] == list(range(70))


async def test_few_requests_are_kept_ahead_of_their_turn(tmp_path: Path) -> None:
    """Once 2.5 MB of short requests took 218 MB, without a login, and more as long as they came."""
    request, count = b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n", 5000
    async with door(tmp_path) as here, listening(here.app) as port:
        last = b"GET /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        exchanging = asyncio.create_task(exchange(port, request * count + last))
        most = 0
        while not exchanging.done():
            kept = sum(isinstance(each, RequestResponseCycle) for each in gc.get_objects())
            most = max(most, kept)
            await asyncio.sleep(0.2)
        assert statuses(await exchanging) == [404] * (count + 1)
        assert 64 < most < 1000


async def test_what_follows_a_refused_head_is_no_request(tmp_path: Path) -> None:
    """Once the append of a head that was too long was refused, and done."""
    async with door(tmp_path) as here, listening(here.app) as port:
        long = post(b"hello", "x: " + "a" * (100 << 10))
        assert statuses(await exchange(port, long + post(b"again"))) == [400]
        assert not (await here.records()).records


async def test_an_offer_of_http2_is_ignored_on_any_request(tmp_path: Path) -> None:
    async with door(tmp_path) as here, listening(here.app) as port:
        requests = post(b"a"), OFFERS, OFFERS, post(b"b", "connection: close")
        for parts in ((b"".join(requests),), requests):
            assert statuses(await exchange(port, *parts)) == [200] * 4


async def test_connect_is_refused(tmp_path: Path) -> None:
    async with door(tmp_path) as here, listening(here.app) as port:
        connect = b"CONNECT other:443 HTTP/1.1\r\nhost: other:443\r\n\r\n"
        assert statuses(await exchange(port, post(b"a") + connect + post(b"b"))) == [200, 400]


_CHUNK: Final = b"1\r\nx\r\n0\r\n\r\n"


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (_CHUNKED.replace(b": chunked", b": gzip, chunked") + _CHUNK, "Transfer-Encoding"),
        (
            _CHUNKED.replace(b"transfer", b"transfer-encoding: br\r\ntransfer") + _CHUNK,
            "Transfer-Encoding",
        ),
        (b"GET /v1/topics HTTP/1.1\r\n\r\n", "Host"),
        (post(b"x").replace(b"host: x\r\n", b""), "Host"),
        (post(b"x", "host: y"), "Host"),
        (OFFERS.replace(b"host: x\r\n", b""), "Host"),
    ],
    ids=["two codings", "two lines", "no host", "an append without host", "two hosts", "an offer"],
)
async def test_an_invalid_head_is_refused_in_its_turn(
    tmp_path: Path, before: int, request_: bytes, field: str
) -> None:
    async with door(tmp_path) as here, listening(here.app) as port:
        answer = await exchange(port, post(b"before") * before + request_ + post(b"after"))
        assert statuses(answer) == [200] * before + [400]
        head, _, body = answer.rpartition(b"\r\n\r\n")
        assert f"content-type: {MEDIA_TYPE}".encode() in head
        problem = json.loads(body)
        assert (problem["code"], problem["field"]) == ("invalid_request", field)
        found = [each.value for each in (await here.records()).records]
        assert found == [b"before"] * before


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /v1/topics HTTP/1.0\r\n\r\n",
        _CHUNKED.replace(b": chunked", b": Chunked\r\nconnection: close") + _CHUNK,
        _CHUNKED.replace(b": chunked", b": chunked \r\nconnection: close") + _CHUNK,
    ],
    ids=["a probe by HTTP/1.0", "a coding in other letters", "a blank after the coding"],
)
async def test_a_valid_head_in_another_form(tmp_path: Path, request_: bytes) -> None:
    async with door(tmp_path) as here, listening(here.app) as port:
        assert statuses(await exchange(port, request_)) == [200]
