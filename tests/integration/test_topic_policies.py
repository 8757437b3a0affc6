"""Policies of topics on a real server: set by all three ways, kept over kills, and what they do."""

import asyncio
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from typer.testing import CliRunner

from pidlease.testing.loopback_ports import LOOPBACK
from proxy.__main__ import cli
from tests.integration.test_admin_clients import Librdkafka
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import INIT, Answer, WireClient
from tests.kafka_listener.messages import INIT_PRODUCER_ID
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

_POLICY_VIOLATION, _GAP = 44, 45


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PidleaseServer]:
    with PidleaseServer(tmp_path, settings={"retention_ms": "99000000"}) as running:
        yield running
    assert "Traceback" not in running.log_text()


def topics(server: PidleaseServer, *words: str) -> tuple[int, str, str]:
    """Run `pidlease topics` in this process: its own start costs more than all the rest."""
    done = CliRunner().invoke(cli, ["topics", *words, "--url", server.http_url])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


def shown(server: PidleaseServer, *words: str) -> dict[str, tuple[str, str]]:
    """The settings of a topic, or of all: value and who set it."""
    code, answer, _ = topics(server, "show", *words, "--json")
    assert code == 0
    settings = json.loads(answer)["settings"]
    return {name: (row["value"], row["source"]) for name, row in settings.items()}


def patch(server: PidleaseServer, path: str, change: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(LOOPBACK, server.http_port, timeout=WAIT_S)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("PATCH", path, json.dumps(change), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


async def _pid(server: PidleaseServer) -> int:
    async with await WireClient.connect(LOOPBACK, server.kafka_port) as client:
        body = await client.call(INIT_PRODUCER_ID, 4, **INIT)
    assert body.error_code == 0
    return int(body.producer_id)


async def _send(server: PidleaseServer, topic: str, pid: int, first: int) -> Answer:
    async with await WireClient.connect(LOOPBACK, server.kafka_port) as client:
        epoch = 0 if pid > 0 else -1
        return await client.produce(topic, batch([b"%d" % first], pid, epoch, first))


def lease(server: PidleaseServer) -> int:
    return asyncio.run(_pid(server))


def send(server: PidleaseServer, topic: str, pid: int, first: int) -> int:
    return asyncio.run(_send(server, topic, pid, first)).code


def test_three_ways_to_set_them_kept_over_kills(server: PidleaseServer) -> None:
    admin = Librdkafka(server)
    for topic in ("by-kafka", "by-http", "by-cli", "by-nobody"):
        admin.create(topic)
    admin.create("made-so", pidlease_initial="zero")
    admin.alter("by-kafka", pidlease_deduplication="off")
    change = {"pidlease.policies": "kafka,none"}
    status, _ = patch(server, "/v1/topics/by-http/settings", change)
    assert status == 200
    assert topics(server, "set", "by-cli", "pidlease.initial=zero", "retention.ms=5")[0] == 0
    assert patch(server, "/v1/topic-defaults", {"pidlease.initial": "zero"})[0] == 200
    assert topics(server, "set", "--all", "pidlease.policies=strict,kafka,none")[0] == 0

    def look() -> None:
        of_all = {
            "segment.bytes": ("1073741824", "default"),
            "retention.ms": ("99000000", "start"),
            "retention.bytes": ("-1", "default"),
            "pidlease.fsync": ("batch", "default"),
            "pidlease.deduplication": ("on", "default"),
            "pidlease.policies": ("none,strict,kafka", "all topics"),
            "pidlease.initial": ("zero", "all topics"),
        }
        assert shown(server, "--all") == shown(server, "by-nobody") == of_all
        own: dict[str, dict[str, tuple[str, str]]] = {
            "by-kafka": {"pidlease.deduplication": ("off", "topic")},
            "by-http": {"pidlease.policies": ("none,kafka", "topic")},
            "by-cli": {"pidlease.initial": ("zero", "topic"), "retention.ms": ("5", "topic")},
            "made-so": {"pidlease.initial": ("zero", "topic")},
        }
        numbers = {"topic": 1, "all topics": 3, "start": 4, "default": 5}
        for topic, settings in own.items():
            found = shown(server, topic)
            assert found == {**of_all, **settings}
            told = admin.configs(topic)
            assert {name: (told[name].value, told[name].source) for name in found} == {
                name: (value, numbers[source]) for name, (value, source) in found.items()
            }, "by Kafka's protocol the same"
        code, table, _ = topics(server, "list")
        assert code == 0
        (line,) = (line for line in table.splitlines() if "by-http" in line)
        assert [word for word in line.split() if word != "│"] == [
            "by-http", "1", "on", "none,kafka", "zero",
        ]  # fmt: skip

    look()
    for _ in range(2):
        admin.crash()
        look()
    server.restart()
    admin.connect()
    look()

    names = ["pidlease.initial", "pidlease.policies"]
    assert topics(server, "unset", "--all", *names)[0] == 0
    assert topics(server, "unset", "by-cli", "retention.ms", "pidlease.initial")[0] == 0
    admin.alter("by-kafka", pidlease_deduplication=None)
    admin.crash()
    for topic in ("by-cli", "by-kafka", "by-nobody"):
        found = {source for name, (_, source) in shown(server, topic).items() if "pidl" in name}
        assert found == {"default"}


def test_wrong_values_are_refused_by_name_whichever_way(server: PidleaseServer) -> None:
    admin = Librdkafka(server)
    admin.create("t")
    wrong = {
        "pidlease.deduplication": "maybe", "pidlease.policies": "kafka,fast",
        "pidlease.initial": "one",
    }  # fmt: skip
    for name, value in wrong.items():
        with pytest.raises(KafkaException, match=name):
            admin.alter("t", **{name.replace(".", "_"): value})
        with pytest.raises(KafkaException, match=name):
            admin.create("u", 1, **{name.replace(".", "_"): value})
        for path in ("/v1/topics/t/settings", "/v1/topic-defaults"):
            status, answer = patch(server, path, {name: value})
            assert (status, answer["field"]) == (400, name)
            assert name in answer["error"]
        for whose in ("t", "--all"):
            code, out, said = topics(server, "alter", whose, f"{name}={value}")
            assert (code, out) == (1, "")
            assert said.startswith(f"pidlease: {name} ")
            assert topics(server, "unset", whose, f"{name}x")[0] == 1
    assert topics(server, "set", "absent", "pidlease.initial=zero")[0] == 1
    assert topics(server, "show", "absent")[0] == 1
    assert set(admin.partitions()) == {"t"}
    for whose in ("t", "--all"):
        found = shown(server, whose)
        assert {source for name, (_, source) in found.items() if name in wrong} == {"default"}


def test_what_they_do_at_once_and_after_a_kill(server: PidleaseServer) -> None:
    admin = Librdkafka(server)
    for topic in ("t", "u"):
        admin.create(topic)
    pid = lease(server)
    assert [send(server, "t", pid, number) for number in (0, 1, 1, 5)] == [0, 0, 0, _GAP]
    assert admin.watermarks("t") == (0, 2)

    topics(server, "set", "t", "pidlease.deduplication=off")
    assert [send(server, "t", pid, number) for number in (1, 5)] == [0, 0]
    assert admin.watermarks("t") == (0, 4)
    admin.crash()
    assert send(server, "t", pid, 5) == 0
    assert admin.watermarks("t") == (0, 5)
    topics(server, "unset", "t", "pidlease.deduplication")
    assert [send(server, "t", pid, number) for number in (5, 8, 6)] == [0, _GAP, 0]
    assert admin.watermarks("t") == (0, 6)

    topics(server, "set", "--all", "pidlease.policies=none,strict")
    patch(server, "/v1/topics/u/settings", {"pidlease.policies": "kafka"})
    for _ in range(2):
        assert send(server, "t", pid, 7) == _POLICY_VIOLATION
        assert send(server, "t", -1, -1) == 0
        assert send(server, "u", -1, -1) == _POLICY_VIOLATION
        assert send(server, "u", lease(server), 0) == 0
        admin.crash()
    topics(server, "unset", "--all", "pidlease.policies")
    assert [send(server, "t", pid, number) for number in (7, 7)] == [0, 0]
    assert admin.watermarks("t") == (0, 9)


def test_a_damaged_file_of_defaults_ends_the_start(tmp_path: Path) -> None:
    with PidleaseServer(tmp_path) as server:
        assert topics(server, "set", "--all", "pidlease.deduplication=off")[0] == 0
        path = server.data_dir / "topics" / "defaults"
        server.kill9()
        content = path.read_bytes()
        path.write_bytes(content.replace(b"off", b"oft"))
        server.launch()
        assert server.wait_exit() == 2
        last = server.log_text().splitlines()[-1]
        assert "topics/defaults is damaged (checksum); take it from a backup" in last
        assert "Traceback" not in server.log_text()
        path.write_bytes(content)
        server.restart()
        assert shown(server, "--all")["pidlease.deduplication"] == ("off", "all topics")
