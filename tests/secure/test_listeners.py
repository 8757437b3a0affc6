"""Several listeners by name: each has its own address, TLS and logins, and clients of each work."""

import asyncio
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.helpers import create_ssl_context
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient

from pidlease.kafka.api import API_DESCRIBE_CLUSTER
from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.kafka_listener.client import WireClient
from tests.kafka_listener.messages import FIND_COORDINATOR, METADATA
from tests.secure.listeners import (
    ADVERTISED,
    EXTERNAL,
    INTERNAL,
    PARTNER,
    PROTOCOLS,
    Listening,
    listening,
)
from tests.secure.secured import handshake, plain, scram
from tests.secure.secured_process import HANG_S, SECRETS
from tests.servers.authority import needs_openssl
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import until

pytestmark = needs_openssl
_ILLEGAL_SASL_STATE: Final = 34
_NO_RIGHT: Final = 29


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    with listening(tmp_path_factory.mktemp("listeners") / "server", "open", "t") as made:
        yield made


async def _connect(running: Listening, name: str, *, certificate: bool = False) -> WireClient:
    context = None
    if name != INTERNAL:
        context = create_ssl_context(cafile=str(running.authority.root.certificate))
        if certificate:
            context.load_cert_chain(*running.client)
    streams = await asyncio.open_connection(
        LOOPBACK, running.ports[name], ssl=context,
        server_hostname="localhost" if context else None,
    )  # fmt: skip
    return WireClient(*streams)


async def _known(running: Listening, name: str) -> WireClient:
    """A client that is logged in, where the listener wants that."""
    client = await _connect(running, name, certificate=name == PARTNER)
    if name == EXTERNAL:
        assert await scram(client, "alice", SECRETS["alice"]) == 0
    return client


@pytest.mark.parametrize("name", PROTOCOLS)
def test_librdkafka_on_each(running: Listening, name: str) -> None:
    errors: list[Any] = []
    producer = Producer(running.confluent(name, **{"enable.idempotence": True}))
    value = f"librdkafka by {name}".encode()
    producer.produce("open", value, on_delivery=lambda error, _: errors.append(error))
    producer.flush(HANG_S)
    assert errors == [None]
    consumer = Consumer(
        running.confluent(name, **{
            "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False,
        })
    )  # fmt: skip
    consumer.subscribe(["open"])
    found: list[bytes | None] = []

    def is_read() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message.value())
        return value in found

    try:
        until(is_read, "the record to be read")
    finally:
        consumer.close()


@pytest.mark.parametrize("name", [INTERNAL, EXTERNAL])
async def test_aiokafka_on_each(running: Listening, name: str) -> None:
    value = f"aiokafka by {name}".encode()
    async with AIOKafkaProducer(**running.aio(name, enable_idempotence=True)) as producer:
        await producer.send_and_wait("open", value)
    consumer = AIOKafkaConsumer("open", **running.aio(name, auto_offset_reset="earliest"))
    async with asyncio.timeout(HANG_S), consumer:
        async for message in consumer:
            if message.value == value:
                break


@pytest.mark.parametrize("name", PROTOCOLS)
def test_metadata_names_the_listener_of_the_request(running: Listening, name: str) -> None:
    found = AdminClient(running.confluent(name)).list_topics(timeout=HANG_S)
    at = [f"{each.host}:{each.port}" for each in found.brokers.values()]
    assert at == [running.address(name)]


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_every_response_with_an_address_names_that_listener(
    running: Listening, name: str
) -> None:
    expected = ADVERTISED[name], running.ports[name]
    async with await _known(running, name) as client:
        for version in range(1, 14):
            body = await client.call(METADATA, version, topics=())
            assert [(each.host, each.port) for each in body.brokers] == [expected], version
        for version in range(3):
            body = await client.call(API_DESCRIBE_CLUSTER, version, endpoint_type=1)
            assert [(each.host, each.port) for each in body.brokers] == [expected], version
        for version in range(7):
            body = await client.call(FIND_COORDINATOR, version, key="g", coordinator_keys=("g",))
            found = body.coordinators[0] if version >= 4 else body
            assert (found.host, found.port) == expected, version


async def test_an_intruder_is_refused_where_the_listener_has_logins(running: Listening) -> None:
    async with await _connect(running, EXTERNAL) as client:
        client.send(METADATA, 9, topics=())
        assert await client.is_closed()
    async with await _connect(running, EXTERNAL, certificate=True) as client:
        client.send(METADATA, 9, topics=())  # a certificate is no login here
        assert await client.is_closed()
    async with await _connect(running, EXTERNAL) as client:
        assert await plain(client, "alice", "wrong") == KafkaError.SASL_AUTHENTICATION_FAILED
        assert await client.is_closed()
    async with await WireClient.connect(LOOPBACK, running.ports[EXTERNAL]) as client:
        client.send(METADATA, 9, topics=())  # without TLS
        assert await client.is_closed()
    async with await _known(running, INTERNAL) as client:
        assert (await client.metadata()).brokers


async def test_a_login_where_the_listener_has_none(running: Listening) -> None:
    """Above all no password in clear: the listener without TLS asks for none."""
    for name in (INTERNAL, PARTNER):
        async with await _connect(running, name) as client:
            found = await handshake(client, "PLAIN")
            assert (int(found.error_code), tuple(found.mechanisms)) == (_ILLEGAL_SASL_STATE, ())
            assert await client.is_closed()


async def test_rights_count_on_each(running: Listening) -> None:
    """Topic t is alice's: clients of INTERNAL have no name, the partner has another one."""
    for name, code in ((INTERNAL, _NO_RIGHT), (EXTERNAL, 0), (PARTNER, _NO_RIGHT)):
        async with await _known(running, name) as client:
            body = await client.call(METADATA, 9, topics=({"name": "t"},))
            assert [int(each.error_code) for each in body.topics] == [code], name


async def test_a_new_certificate_counts_on_each(running: Listening) -> None:
    with_tls = (EXTERNAL, PARTNER)
    old = {await _serial(running, name) for name in with_tls}
    assert len(old) == 1
    async with await _known(running, EXTERNAL) as before:
        renewed = running.authority.issue("renewed", "IP:127.0.0.1", "DNS:localhost")
        running.certificate.key.write_bytes(renewed.key.read_bytes())
        running.certificate.certificate.write_bytes(renewed.certificate.read_bytes())
        os.kill(running.server.pid, signal.SIGHUP)
        for name in with_tls:
            await _renewed(running, name, old)
        assert (await before.metadata()).brokers
    async with await _known(running, EXTERNAL) as client:
        assert (await client.metadata()).brokers


async def _renewed(running: Listening, name: str, old: set[str]) -> None:
    async with asyncio.timeout(HANG_S):
        while await _serial(running, name) in old:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)


async def _serial(running: Listening, name: str) -> str:
    async with await _connect(running, name) as client:
        tls: ssl.SSLObject = client.writer.get_extra_info("ssl_object")
        return str((tls.getpeercert() or {})["serialNumber"])


def test_the_log_names_each(running: Listening) -> None:
    shown = ",".join(f"{name}://{LOOPBACK}:{running.ports[name]}" for name in PROTOCOLS)
    assert f"kafka={shown}" in running.server.log_text()


def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    free, taken = free_ports(2)
    with socket.socket() as other:
        other.bind((LOOPBACK, taken))
        other.listen()
        server = PidleaseServer(tmp_path, settings={
            "listeners": f"PLAINTEXT://{LOOPBACK}:{free},OTHER://{LOOPBACK}:{taken}",
            "listener_security_protocol_map": "OTHER:PLAINTEXT",
        })  # fmt: skip
        server.launch()
        assert server.wait_exit() == 2
    assert f"--listeners OTHER {LOOPBACK}:{taken}: " in server.log_text()


@pytest.mark.parametrize(("settings", "message"), [
    ({"listeners": "PLAINTEXT://127.0.0.1"}, "listeners: "),
    ({"listeners": "A://127.0.0.1:9092"}, "--listener-security-protocol-map A:SASL_SSL"),
    ({"listeners": "PLAINTEXT://127.0.0.1:9092", "kafka_listen": "127.0.0.1:9092"},
     "--listeners replaces --kafka-listen"),
    ({"listeners": "PLAINTEXT://192.0.2.1:9092"}, "say --insecure"),
])  # fmt: skip
def test_settings_that_are_wrong_say_what_to_do(
    tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    server = PidleaseServer(tmp_path, settings=settings)
    server.launch()
    assert server.wait_exit() == 2
    assert message in server.log_text()
