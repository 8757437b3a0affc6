"""Real clients in front of a real, secured server: each mechanism, reloads, and no secret shown."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import admin as confluent_admin

from proxy.security.acls import ResourceKind
from tests.secure.secured_process import HANG_S, SECRETS, Running, started
from tests.servers.authority import Certificate, needs_openssl

pytestmark = needs_openssl
#: Its names, which have no types.
_ADMIN: Final[Any] = confluent_admin
_T, _G = ResourceKind.TOPIC, ResourceKind.GROUP


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with started(tmp_path_factory.mktemp("clients") / "server", "t") as made:
        yield made


def _until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def _produce(producer: Producer, topic: str, value: bytes) -> Any:
    """Send a record; the error, or None."""
    errors: list[Any] = []
    try:
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    except KafkaException as error:
        return error.args[0]  # librdkafka has learned it from the metadata already
    producer.flush(HANG_S)
    assert errors, "no answer"
    return errors[0]


_MECHANISMS: Final = ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"]


@pytest.mark.parametrize("mechanism", _MECHANISMS)
def test_librdkafka(running: Running, mechanism: str) -> None:
    producer = Producer(running.librdkafka("alice", mechanism, **{"enable.idempotence": True}))
    assert _produce(producer, "t", mechanism.encode()) is None
    consumer = Consumer(
        running.librdkafka("alice", mechanism, **{
            "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False,
        })
    )  # fmt: skip
    consumer.subscribe(["t"])
    found: list[bytes] = []
    try:
        _until(lambda: _poll(consumer, found) and mechanism.encode() in found)
    finally:
        consumer.close()
    refused = _produce(producer, "other", b"x")
    assert refused is not None
    assert "AUTHORIZATION" in refused.name() or "UNKNOWN" in refused.name()


def _poll(consumer: Consumer, found: list[bytes]) -> bool:
    message = consumer.poll(1.0)
    if message is not None and message.error() is None:
        found.append(message.value() or b"")
    return True


@pytest.mark.parametrize("mechanism", _MECHANISMS)
async def test_aiokafka(running: Running, mechanism: str) -> None:
    value = f"aio {mechanism}".encode()
    producer = AIOKafkaProducer(**running.aiokafka("alice", mechanism, enable_idempotence=True))
    await producer.start()
    try:
        await producer.send_and_wait("t", value)
    finally:
        await producer.stop()
    consumer = AIOKafkaConsumer(
        "t", **running.aiokafka("alice", mechanism, auto_offset_reset="earliest")
    )
    await consumer.start()
    try:
        async for message in consumer:
            if message.value == value:
                break
    finally:
        await consumer.stop()


def test_a_start_stores_what_the_salts_of_unknown_users_are_made_of(running: Running) -> None:
    assert (running.data / "security" / "stand-ins").stat().st_mode & 0o777 == 0o600


def test_a_client_with_a_wrong_password_is_refused(running: Running) -> None:
    errors: list[Any] = []
    producer = Producer(running.librdkafka("alice", "SCRAM-SHA-256", **{
        "sasl.password": "wrong", "error_cb": errors.append}))  # fmt: skip
    producer.produce("t", b"never")

    def refused() -> bool:
        producer.poll(0.1)
        return any(each.code() == KafkaError._AUTHENTICATION for each in errors)

    _until(refused)
    producer.purge()


def test_a_client_logs_in_again_in_time(running: Running) -> None:
    """KIP-368: a session lasts 3 s here; librdkafka renews it, and no record is lost."""
    producer = Producer(running.librdkafka("alice", "SCRAM-SHA-512"))
    before = _logins(running)
    errors = []
    for number in range(20):
        errors.append(_produce(producer, "t", f"again {number}".encode()))
        time.sleep(0.25)
    assert errors == [None] * 20
    _until(lambda: _logins(running) > before + 1)


def _logins(running: Running) -> int:
    path = running.folder / "audit"
    lines = [json.loads(each) for each in path.read_text().splitlines()]
    return sum(1 + each.get("repeats_before", 0) for each in lines if each["event"] == "login")


def test_certificates_and_acls_reload_under_load(running: Running) -> None:
    producer = Producer(running.librdkafka("alice", "PLAIN"))
    assert _produce(producer, "t", b"before") is None
    renewed = running.authority.issue("renewed", "IP:127.0.0.1")
    _replace(running.certificate, renewed)
    os.kill(running.server.pid, signal.SIGHUP)
    assert _produce(producer, "t", b"after") is None
    _until(lambda: "certificates reloaded" in running.server.log_text())
    late = Producer(running.librdkafka("alice", "PLAIN"))
    assert _produce(late, "t", b"new connection") is None


def _replace(old: Certificate, new: Certificate) -> None:
    old.key.write_bytes(new.key.read_bytes())
    old.certificate.write_bytes(new.certificate.read_bytes())


def test_acls_and_users_by_an_admin_client(running: Running) -> None:
    """As kafka-acls.sh and kafka-configs.sh send them."""
    admin = _ADMIN.AdminClient(running.librdkafka("root", "SCRAM-SHA-512"))
    binding = _ADMIN.AclBinding(
        _ADMIN.ResourceType.TOPIC, "by-", _ADMIN.ResourcePatternType.PREFIXED, "User:dora", "*",
        _ADMIN.AclOperation.WRITE, _ADMIN.AclPermissionType.ALLOW,
    )  # fmt: skip
    for future in admin.create_acls([binding]).values():
        future.result(HANG_S)
    every = _ADMIN.AclBindingFilter(
        _ADMIN.ResourceType.TOPIC, None, _ADMIN.ResourcePatternType.ANY, "User:dora", None,
        _ADMIN.AclOperation.ANY, _ADMIN.AclPermissionType.ANY,
    )  # fmt: skip
    assert admin.describe_acls(every).result(HANG_S) == [binding]
    secret = b"Dora-planted-secret"
    new = _ADMIN.UserScramCredentialUpsertion(
        "dora", _ADMIN.ScramCredentialInfo(_ADMIN.ScramMechanism.SCRAM_SHA_256, 8192), secret
    )
    admin.alter_user_scram_credentials([new])["dora"].result(HANG_S)
    assert admin.create_topics([_ADMIN.NewTopic("by-dora", 1)])["by-dora"].result(HANG_S) is None
    settings = {"sasl.password": secret.decode(), "acks": "all"}
    dora = Producer(running.librdkafka("dora", "SCRAM-SHA-256", **settings))
    assert _produce(dora, "by-dora", b"x") is None
    described = admin.describe_user_scram_credentials(["dora"])["dora"].result(HANG_S)
    assert [each.iterations for each in described.scram_credential_infos] == [8192]
    gone = _ADMIN.UserScramCredentialDeletion("dora", _ADMIN.ScramMechanism.SCRAM_SHA_256)
    admin.alter_user_scram_credentials([gone])["dora"].result(HANG_S)
    for removed in admin.delete_acls([every]).values():
        assert removed.result(HANG_S) == [binding]
    late = Producer(running.librdkafka("dora", "SCRAM-SHA-256", **{
        **settings, "message.timeout.ms": 3000}))  # fmt: skip
    assert _produce(late, "by-dora", b"x") is not None


def test_https(running: Running) -> None:
    with running.http() as nobody:
        assert nobody.get("/v1/status").status_code == 401
        assert nobody.get("/healthz").status_code == 200
    with running.http("alice") as alice:
        assert alice.get("/v1/status").status_code == 403
        records = {"records": [{"value": "over https"}]}
        assert alice.post("/v1/topics/t/records", json=records).status_code == 200
        assert alice.post("/v1/topics/other/records", json=records).status_code == 403
        found = alice.get("/v1/topics/t/partitions/0/records?offset=0").json()["records"]
        assert "over https" in json.dumps(found)


def test_a_stream_ends_when_its_right_is_revoked(running: Running) -> None:
    """Attack 7: an open response over HTTP, within seconds of the file's change."""
    path = running.data / "security" / "acls"
    before = path.read_bytes()
    with running.http("root") as root:
        text = {"Content-Type": "text/plain"}
        assert root.put("/v1/stream/live", headers=text, content=b"first").status_code == 201
        extra = '{"principal":"User:alice","operation":"READ","kind":"TOPIC","name":"live"}\n'
        path.write_bytes(before + extra.encode())
        with running.http("alice") as alice:
            _until(lambda: alice.get("/v1/stream/live?offset=-1").status_code == 200)
            with alice.stream("GET", "/v1/stream/live?offset=-1&live=sse") as response:
                lines = response.iter_lines()
                assert any("first" in line for line in lines)
                path.write_bytes(before)
                _until(lambda: alice.get("/v1/stream/live?offset=-1").status_code == 403)
                root.post("/v1/stream/live", headers=text, content=b"after the revocation")
                rest: list[str] = []
                with pytest.raises(httpx.RemoteProtocolError):
                    rest.extend(lines)
                assert not any("after the revocation" in line for line in rest)


def test_no_secret_is_shown(running: Running) -> None:
    """Attack 11: in no log, error, metric, status, audit line, or file."""
    with running.http("root") as root, running.http() as nobody:
        texts = [root.get(path).text for path in ("/v1/status", "/metrics", "/docs")]
        bad = {"Authorization": "Basic !" + SECRETS["alice"]}
        texts.append(nobody.get("/v1/status", headers=bad).text)
    texts.append(running.users("list"))
    assert "alice: SCRAM-SHA-256 (10000 iterations), SCRAM-SHA-512" in texts[-1]
    files = [each for each in running.folder.rglob("*") if each.is_file()]
    assert any(each.name == "audit" for each in files)
    texts += [each.read_bytes().decode("latin-1") for each in files]
    assert "Traceback" not in running.server.log_text()
    for secret in SECRETS.values():
        assert not any(secret in text for text in texts)
