"""One connection to a broker: answers in order, answers that are none, and ends."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from pidlease.kafka.client import broker_connection as module
from pidlease.kafka.client.bootstrap import connect
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.settings import UpstreamConfig
from pidlease.kafka.errors import (
    UpstreamAwayError,
    UpstreamError,
    UpstreamLostError,
    UpstreamNonsenseError,
    UpstreamRefusedError,
)
from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.servers.authority import Authority, needs_openssl

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def broker(serve: Serve) -> AsyncIterator[int]:
    """Something that listens as a broker does."""
    server = await asyncio.start_server(serve, LOOPBACK, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def linked(serve: Serve, seconds: float = 60.0) -> AsyncIterator[BrokerConnection]:
    async with broker(serve) as port:
        link = BrokerConnection((LOOPBACK, port), seconds)
        await asyncio.get_running_loop().create_connection(lambda: link, LOOPBACK, port)
        try:
            yield link
        finally:
            link.close()


def request(number: int, content: bytes = b"") -> bytes:
    """API 0, version 0, and a correlation id."""
    return bytes(4) + number.to_bytes(4, "big") + content


async def read(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


def frame(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        try:
            asked = await read(reader)
        except asyncio.IncompleteReadError:
            return
        writer.write(frame(asked[4:]))


async def test_answers_come_to_who_asked_however_they_are_cut() -> None:
    async def in_pieces(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        content = b"".join([frame((await read(reader))[4:]) for _ in range(5)])
        for start in range(0, len(content), 70_000):
            writer.write(content[start : start + 70_000])
            await writer.drain()
            await asyncio.sleep(0.002)

    sizes = [0, 100_000, 3, 300_000, 5_000_000]
    async with linked(in_pieces) as link:
        asked = [link.ask(request(n, b"x" * size)) for n, size in enumerate(sizes)]
        answers = await asyncio.gather(*asked)
    assert answers == [request(n, b"x" * size)[4:] for n, size in enumerate(sizes)]


async def test_memory_comes_with_the_answer_not_with_what_it_says() -> None:
    came = asyncio.Event()

    async def boasts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read(reader)
        writer.write(b"\x7f\xff\xff\xff" + bytes(3_000_000))
        await writer.drain()
        await asyncio.sleep(0.1)
        came.set()
        await reader.read()

    async with linked(boasts) as link:
        asked = asyncio.ensure_future(link.ask(request(0)))
        await came.wait()
        assert link._frame is not None
        assert 1_000_000 < len(link._frame) <= 8 << 20
        link.close()
        with pytest.raises(UpstreamLostError):
            await asked


async def test_an_answer_that_nobody_asked_for_ends_it() -> None:
    async def wrong(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read(reader)
        writer.write(frame(b"\0\0\0\x09"))

    async with linked(wrong) as link:
        both = await asyncio.gather(link.ask(request(1)), link.ask(request(2)),
                                    return_exceptions=True)  # fmt: skip
        assert [type(each) for each in both] == [UpstreamNonsenseError] * 2
        with pytest.raises(UpstreamLostError):
            await link.ask(request(3))


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\0\0\0\x03"])
async def test_a_size_that_makes_no_sense_ends_it(size: bytes) -> None:
    async def wrong(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read(reader)
        writer.write(size + bytes(10))

    async with linked(wrong) as link:
        with pytest.raises(UpstreamNonsenseError):
            await link.ask(request(1))


async def test_a_broker_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WATCH_SECONDS", 0.05)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with linked(silent, seconds=0.1) as link:
        changed = asyncio.Event()
        link.on_change = changed.set
        with pytest.raises(UpstreamLostError, match="no response in time"):
            await link.ask(request(1))
        await changed.wait()
        assert not link.open


async def test_the_oldest_request_decides_what_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks a connection that is dead again and again does not keep it."""
    monkeypatch.setattr(module, "_WATCH_SECONDS", 0.05)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with linked(silent, seconds=0.1) as link:
        first = link.begin(request(1))
        second = link.begin(request(2), seconds=3600)
        async with asyncio.timeout(30):
            both = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(each) for each in both] == [UpstreamLostError] * 2


async def test_a_request_may_take_longer_than_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WATCH_SECONDS", 0.02)
    looked = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await read(reader)
        await looked.wait()
        writer.write(frame(asked[4:]))

    async with linked(late, seconds=0.01) as link:
        asked = link.begin(request(1), seconds=60)
        look, looks = link._watch_responses, 0

        def counted() -> None:
            nonlocal looks
            looks += 1
            look()
            if looks == 5:
                looked.set()

        monkeypatch.setattr(link, "_watch_responses", counted)
        async with asyncio.timeout(30):
            assert await asked == b"\0\0\0\x01"


async def test_who_waits_is_told_when_the_broker_takes_more() -> None:
    reads = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reads.wait()
        while await reader.read(1 << 20):
            pass
        writer.close()

    async with linked(slow) as link:
        changed = asyncio.Event()
        link.on_change = changed.set
        link.begin(request(1, bytes(50 << 20)))
        assert link.paused
        assert not changed.is_set()
        reads.set()
        async with asyncio.timeout(30):
            await changed.wait()
        assert link.open
        assert not link.paused


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_what_had_no_room_is_sent_in_order_later(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    """Also if the connection itself writes to its socket: small requests and large ones."""

    async def check() -> None:
        reads = asyncio.Event()

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reads.wait()
            await echo(reader, writer)

        sizes = [0, 100_000, 3, 30_000_000, 1, 2, 5_000_000, 100]
        async with linked(slow) as link:
            link.hold_back(lambda: False)
            changed = asyncio.Event()
            link.on_change = changed.set
            asked = [link.begin(request(n, b"%d" % n * size)) for n, size in enumerate(sizes)]
            assert link.paused
            assert link._transport is not None
            assert not link._transport.get_write_buffer_size()
            reads.set()
            async with asyncio.timeout(30):
                while link.paused:
                    # There may be room again that the loop has not seen yet.
                    sizes.append(3)
                    asked.append(link.begin(request(len(asked), b"%d" % len(asked) * 3)))
                    await asyncio.sleep(0)
                answers = await asyncio.gather(*asked)
                await changed.wait()
                assert not link.paused
                assert await link.ask(request(99)) == request(99)[4:]
        assert answers == [request(n, b"%d" % n * size)[4:] for n, size in enumerate(sizes)]

    run(check())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_socket_that_fails_ends_the_connection(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def check() -> None:
        ended = asyncio.Event()

        async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.abort()
            ended.set()

        async with linked(ends) as link:
            link.hold_back(lambda: False)
            await ended.wait()
            asked = [link.begin(request(n, bytes(10_000_000))) for n in range(3)]
            async with asyncio.timeout(30):
                answers = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(each) for each in answers] == [UpstreamLostError] * 3
            assert not link.open

    run(check())


@needs_openssl
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_large_answer_waits_until_it_may_be_read(
    run: Callable[[Coroutine[Any, Any, None]], None], tls: bool, tmp_path: Path
) -> None:
    """What came before it and comes after it is all there, and in order."""
    served, trusts = _contexts(tmp_path) if tls else (None, None)
    sizes = [3, 100_000, 10, 65_530, 5_000_000, 0]
    asked_for: list[int] = []

    async def check() -> None:
        server = await asyncio.start_server(echo, LOOPBACK, 0, ssl=served)
        port = server.sockets[0].getsockname()[1]
        link = BrokerConnection((LOOPBACK, port), 60.0)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: link, LOOPBACK, port, ssl=trusts)

        def admits(size: int) -> bool:
            asked_for.append(size)
            return False

        link.admits = admits
        asked = [link.begin(request(n, b"%d" % n * size)) for n, size in enumerate(sizes)]
        async with asyncio.timeout(30):
            for number, size in enumerate(sizes):
                if size > 65_000:
                    while not link.announced:  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
                    await asyncio.sleep(0.05)
                    assert not link.arriving
                    assert not asked[number].done()
                    link.read_on()
                    assert link.arriving
                assert await asked[number] == request(number, b"%d" % number * size)[4:]
        assert asked_for == [size + 4 for size in sizes if size > 65_000]
        link.close()
        server.close()

    run(check())


async def test_who_does_not_read_finds_no_answer_late() -> None:
    def look() -> None:
        assert link._watch is not None
        link._watch.cancel()
        link._watch_responses()
        assert link.open

    async with linked(echo, seconds=60.0) as link:
        link.admits = lambda _: False
        asked = link.begin(request(1, bytes(1_000_000)))
        async with asyncio.timeout(30):
            while not link.announced:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            link._in_flight[0].latest = 0.0
            look()
            link.read_on()
            look()
            assert len(await asked) == 1_000_004


def _contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server, and of a client that trusts it."""
    authority = Authority(folder)
    own = authority.issue("broker", f"IP:{LOOPBACK}")
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(own.certificate, own.key)
    return served, ssl.create_default_context(cafile=str(authority.root.certificate))


@needs_openssl
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_with_tls_the_transport_goes_on_writing(
    run: Callable[[Coroutine[Any, Any, None]], None], tmp_path: Path
) -> None:
    served, trusts = _contexts(tmp_path)

    async def check() -> None:
        server = await asyncio.start_server(echo, LOOPBACK, 0, ssl=served)
        port = server.sockets[0].getsockname()[1]
        link = BrokerConnection((LOOPBACK, port), 60.0)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: link, LOOPBACK, port, ssl=trusts)
        link.hold_back(lambda: False)
        asked = [link.ask(request(n, bytes(size))) for n, size in enumerate((0, 5_000_000, 3))]
        async with asyncio.timeout(30):
            answers = await asyncio.gather(*asked)
        assert [len(each) for each in answers] == [4, 5_000_004, 7]
        link.close()
        server.close()

    run(check())


async def test_the_end_of_the_connection_is_told_to_all() -> None:
    async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await read(reader)
        writer.write(frame(asked[4:]))
        await writer.drain()
        writer.close()

    async with linked(ends) as link:
        asked = [link.ask(request(number)) for number in range(3)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each) for each in answers] == [bytearray, UpstreamLostError, UpstreamLostError]


async def test_a_bug_of_one_does_not_strand_the_others() -> None:
    def broken(_: bytearray | UpstreamError) -> None:
        raise ZeroDivisionError

    async with linked(echo) as link:
        link.send([request(1)], broken)
        assert await link.ask(request(2)) == b"\0\0\0\x02"


# ---------------------------------------------------------------------- connecting


def config(port: int) -> UpstreamConfig:
    return UpstreamConfig(((LOOPBACK, port),), connect_seconds=0.3)


async def test_nobody_listens() -> None:
    (port,) = free_ports(1)
    with pytest.raises(UpstreamAwayError, match=str(port)):
        await connect(config(port), (LOOPBACK, port))


async def test_nobody_answers() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with broker(silent) as port:
        with pytest.raises(UpstreamAwayError, match=r"no connection within 0\.3 s"):
            await connect(config(port), (LOOPBACK, port))


async def test_who_ends_the_connection_may_want_tls() -> None:
    async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read(reader)
        writer.close()

    async with broker(ends) as port:
        with pytest.raises(UpstreamRefusedError, match="does it want TLS"):
            await connect(config(port), (LOOPBACK, port))


async def test_who_has_answered_before_does_not_want_tls() -> None:
    """It is going down: it takes the connection, and ends it."""
    goes_down = False

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await read(reader)
        if not goes_down:
            writer.write(frame(asked[4:8] + bytes(6)))
            await writer.drain()
        writer.close()

    async with broker(serve) as port:
        known = config(port)
        (await connect(known, (LOOPBACK, port))).close()
        goes_down = True
        for _ in range(2):
            with pytest.raises(UpstreamAwayError, match="the connection ended") as caught:
                await connect(known, (LOOPBACK, port))
            # Whoever waits may be sure that nothing of his was sent.
            assert not isinstance(caught.value, UpstreamLostError)
        with pytest.raises(UpstreamRefusedError, match="does it want TLS"):
            await connect(config(port), (LOOPBACK, port))


async def test_who_answers_something_else_is_no_kafka() -> None:
    async def wrong(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await read(reader)
        writer.write(frame(asked[4:8] + b"\0\0\0\0\0\x09short"))

    async with broker(wrong) as port:
        with pytest.raises(UpstreamNonsenseError, match="versions are invalid"):
            await connect(config(port), (LOOPBACK, port))
