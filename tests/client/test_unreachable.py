"""Servers that cannot be reached: named in the log within a second, and in the record's error."""

import asyncio
import logging
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pidlease.client import DeliveryTimeoutError, LeasedProducer, LeaseRefusedError, ProducerError
from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.client.fake_broker import FakeBroker
from tests.client.fake_leases import FakeLeases
from tests.client.harness import World, until, world

#: Beyond the second that is promised: the machine may be busy.
_SLACK_S = 5.0


#: Instead of a response, the connection is reset.
_RESET = b"reset"


@asynccontextmanager
async def server(response: bytes | None) -> AsyncIterator[str]:
    """HOST:PORT of one that sends this to each request and closes; None: it never responds."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if response is None:
            await reader.read(-1)
        else:
            await reader.read(1)
            if response != _RESET:
                writer.write(response)
            else:
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, linger
                )
        writer.close()

    listening = await asyncio.start_server(accept, LOOPBACK, 0)
    try:
        yield f"{LOOPBACK}:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


async def send_in_vain(there: World, caplog: pytest.LogCaptureFixture, leases: str) -> str:
    """Send a record; check the log, and return the text of the record's error."""
    async with world_producer(there, leases=leases, delivery_timeout_ms=2_500) as producer:
        started = time.monotonic()
        future = await producer.send("t", b"x")
        await until(lambda: warnings(caplog))
        assert time.monotonic() - started < 1 + _SLACK_S
        assert leases in warnings(caplog)[0]
        with pytest.raises(DeliveryTimeoutError, match="never sent") as failed:
            await future
    lines = [each for each in warnings(caplog) if each.startswith("no lease")]
    assert len(lines) == len(set(lines))  # not one for each retry
    assert leases in str(failed.value)
    return str(failed.value)


@asynccontextmanager
async def world_producer(there: World, **options: Any) -> AsyncIterator[LeasedProducer]:
    producer = there.producer(**options)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop(0)


@pytest.mark.parametrize(
    ("response", "named"),
    [
        (b"", "is it the port of the Kafka listener"),
        (_RESET, "ReadError: the connection was closed; is it the port of the Kafka"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", "is it the HTTP port of pidlease"),
    ],
)
async def test_the_wrong_port(
    response: bytes, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as there, server(response) as address:
        assert named in await send_in_vain(there, caplog, f"http://{address}")


async def test_https_to_a_port_without_tls() -> None:
    """Trying again does not help, so the start fails at once."""
    async with world() as there, server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        producer = there.producer(leases=f"https://{address}")
        with pytest.raises(LeaseRefusedError, match="is it http://, and not https://") as caught:
            await producer.start()
        assert "HTTP 0" not in str(caught.value)


async def test_nothing_listens(caplog: pytest.LogCaptureFixture) -> None:
    """Once the error was "never sent" after 120 s, and the log had no warning."""
    async with world() as there:
        text = await send_in_vain(there, caplog, f"http://{LOOPBACK}:{free_ports(1)[0]}")
        assert "ConnectError" in text


async def test_leases_that_do_not_respond(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as there, server(None) as address:
        text = await send_in_vain(there, caplog, f"http://{address}")
        assert "no response within 1 s" in text


async def test_the_leader_cannot_be_reached(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeLeases() as leases:
        async with FakeBroker(leases, {"t": 1}, 1) as broker:
            there = World(broker, leases)
            producer = there.producer(delivery_timeout_ms=1_000)
            await producer.start()
            await producer.partitions_for("t")
        future = await producer.send("t", b"x")
        with pytest.raises(ProducerError, match=broker.bootstrap):
            await future
        await producer.stop(0)
    assert any(broker.bootstrap in each for each in warnings(caplog))


async def test_no_bootstrap_server(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as there:
        address = f"{LOOPBACK}:{free_ports(1)[0]}"
        producer = there.producer(bootstrap_servers=address, request_timeout_ms=300)
        with pytest.raises(ProducerError, match=address):
            await producer.start()
    (line,) = warnings(caplog)
    assert address in line


async def test_a_bootstrap_server_that_does_not_respond(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as there, server(None) as address:
        producer = there.producer(bootstrap_servers=address, request_timeout_ms=3_000)
        with pytest.raises(ProducerError, match=address):
            await producer.start()
    assert warnings(caplog)[0] == f"no bootstrap server responds within 1 s: {address}"


async def test_a_topic_of_which_no_server_told_is_not_called_unknown() -> None:
    """Once one response later than the request timeout gave UNKNOWN_TOPIC_OR_PARTITION."""
    times = {"delivery_timeout_ms": 1_000, "request_timeout_ms": 100}
    async with world() as there, there.producer(**times) as producer:
        await there.broker.go_away()
        with pytest.raises(ProducerError, match="topic t: no server returns its metadata: "):
            await producer.send("t", b"x")
        await there.broker.listen()


async def test_a_topic_is_waited_for_while_no_server_responds() -> None:
    """As long as a record may take, not as long as one response."""
    async with world() as there, there.producer(request_timeout_ms=100) as producer:
        await there.broker.go_away()
        began = time.monotonic()
        sent = asyncio.create_task(producer.send_and_wait("t", b"x"))
        await until(lambda: time.monotonic() - began > 0.3)
        assert not sent.done()
        await there.broker.listen()
        assert (await sent).offset == 0


@pytest.mark.parametrize("topic", ["", "a b", "..", "x" * 250, "\u00e4"])
async def test_an_illegal_topic_at_once(topic: str) -> None:
    async with world() as there, there.producer() as producer:
        with pytest.raises(ValueError, match="illegal topic name"):
            await producer.send(topic, b"x")
