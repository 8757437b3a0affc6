"""`pidlease coordination migrate`: servers that used ZooKeeper go on with nothing but Kafka."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pidlease.coordination.zookeeper.zookeeper_connection import MOVED, ZooKeeper, ZooKeeperConfig
from pidlease.coordination.zookeeper.zookeeper_files import ZooKeeperFiles
from pidlease.coordination.zookeeper.zookeeper_members import ZooKeeperMembers
from pidlease.testing.server_process import PIDLEASE
from proxy.backends import coordination_move
from proxy.backends.coordination_move import MoveError, move_to_kafka
from proxy.configuration.settings import load_settings
from tests.http_api.appending import JSON
from tests.http_api.lives import ask
from tests.kafka_backend.test_kafka_coordination import IN_KAFKA, lease, number_of
from tests.kafka_backend.test_writer import post, topic_with
from tests.secure.secured import write_users
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until
from tests.servers.zookeeper import ZooKeeperServer

pytestmark = [needs_kafka, pytest.mark.kafka]


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaServer]:
    """One for each test: a cluster is moved once."""
    with KafkaServer(tmp_path / "kafka") as running:
        yield running


def _migrate(kafka: KafkaServer, hosts: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PIDLEASE, "coordination", "migrate", "--upstream", kafka.bootstrap, "--zookeeper", hosts],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip


def test_a_deployment_is_moved(
    kafka: KafkaServer, zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    hosts = f"{zookeeper.hosts}/moved"
    in_zookeeper = {"zookeeper": hosts, "log_level": "info"}
    with in_front_of(kafka, tmp_path / "a") as in_files:
        in_files.start()
        lease(in_files, topic_with(in_files), name="before")
        assert in_files.stop() == 0
    with in_front_of(kafka, tmp_path / "a", **in_zookeeper) as server:
        server.start()
        topic = topic_with(server)
        for number in range(3):
            assert post(server, topic, b"x", "one", number)[1]["duplicate"] is False
        first = lease(server, topic, name="two")
        for _ in range(250):
            last = lease(server, topic)
        status, _ = ask(server, "PATCH", f"/v1/topics/{topic}/settings",
                        b'{"pidlease.policies": "strict,epoch"}', JSON)  # fmt: skip
        assert status == 200
        refused = _migrate(kafka, hosts)
        assert refused.returncode == 1
        assert "stop all servers first: " in refused.stderr
        # It was refused before anything was done.
        assert server.stop() == 0
        server.start()
        assert server.stop() == 0
    with in_front_of(kafka, tmp_path / "a", **IN_KAFKA) as server:
        server.launch()
        assert server.wait_exit() == 2
        assert "or move them to Kafka by `pidlease coordination migrate`" in server.log_text()

    connection = ZooKeeper(ZooKeeperConfig(hosts))
    connection.start()
    connection.wait(WAIT_S)
    path = connection.path("topics/another")
    connection.ensure(path)
    refused = _migrate(kafka, hosts)
    assert (refused.returncode, "other Kafka clusters" in refused.stderr) == (1, True)
    connection.call(lambda client: client.delete_async(path))
    write_users(tmp_path, "alice")
    users = (tmp_path / "security" / "users").read_bytes()
    (cluster,) = connection.children(connection.path("owners"))
    ZooKeeperFiles(connection, cluster).replace("users", users, None)
    # Three servers have shared the cluster; their data directories keep their node ids.
    for expected in (1, 2, 3):
        assert ZooKeeperMembers(connection, cluster).node_id() == expected
    connection.close()

    moved = _migrate(kafka, hosts)
    assert moved.returncode == 0, moved.stderr
    assert "moved to Kafka: " in moved.stdout
    assert " 2 names, " in moved.stdout
    assert " policies of 1 topics;" in moved.stdout
    again = _migrate(kafka, hosts)
    assert again.returncode == 1
    assert "it was moved already" in again.stderr

    for folder in ("a", "b"):  # one that has used ZooKeeper, and a new one
        with in_front_of(kafka, tmp_path / folder, **in_zookeeper) as server:
            server.launch()
            assert server.wait_exit() == 2
            assert "start without --zookeeper" in server.log_text()
    secured = {**IN_KAFKA, "kafka_security_protocol": "SASL_PLAINTEXT"}
    for folder in ("a", "b"):
        with in_front_of(kafka, tmp_path / folder, **secured) as server:
            server.start()
            assert (server.data_dir / "security" / "users").read_bytes() == users
            assert post(server, topic, b"x", "one", 2)[1]["duplicate"] is True
            assert post(server, topic, b"x", "one", 3)[1]["duplicate"] is (folder == "b")
            after = lease(server, topic, name="two")
            assert after["pid"] == first["pid"]
            assert after["generation"] > first["generation"]
            first = after
            new = lease(server, topic)
            assert number_of(new["pid"]) > number_of(last["pid"])
            last = new
            assert "strict,epoch" in json.dumps(ask(server, "GET", f"/v1/topics/{topic}")[1])
            assert server.stop() == 0
            marks = sorted(each.name for each in (server.data_dir / "sequence").iterdir())
            assert "kafka" in marks
            assert "zookeeper" not in marks
    with in_front_of(kafka, tmp_path / "c", **IN_KAFKA, shared="true") as server:
        server.start()
        (member,) = ask(server, "GET", "/v1/servers")[1]["servers"]
        assert member["node_id"] == 4


async def test_a_move_that_stops_halfway_is_repeated(
    kafka: KafkaServer, zookeeper: ZooKeeperServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = f"{zookeeper.hosts}/halfway"
    with in_front_of(kafka, tmp_path / "a", zookeeper=hosts) as server:
        server.start()
        topic = topic_with(server)
        first = lease(server, topic, name="two")
        assert server.stop() == 0
    given = {"log": "kafka", "upstream": kafka.bootstrap, "zookeeper": hosts}
    settings = load_settings(None, given)
    copy = coordination_move._copy

    def fail(*args: Any) -> Any:
        copy(*args)
        raise MoveError("killed")

    monkeypatch.setattr(coordination_move, "_copy", fail)
    with pytest.raises(MoveError, match="killed"):
        await move_to_kafka(settings, print)
    monkeypatch.undo()
    # Neither coordinator is used meanwhile.
    for options, text in (
        ({"zookeeper": hosts}, "moved to Kafka, or this was begun"),
        ({"coordination": "kafka"}, "was begun and not completed"),
    ):
        for folder in ("a", "b"):
            with in_front_of(kafka, tmp_path / folder, **options) as server:
                server.launch()
                assert server.wait_exit() == 2
                assert text in server.log_text()
    moved = await move_to_kafka(settings, print)
    assert moved.names == 1
    with in_front_of(kafka, tmp_path / "b", **IN_KAFKA) as server:
        server.start()
        assert lease(server, topic, name="two")["pid"] == first["pid"]
        assert server.stop() == 0


def test_a_server_that_stood_by_does_not_go_on_with_zookeeper(
    kafka: KafkaServer, zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    """No node shows it; it notices itself."""
    hosts = f"{zookeeper.hosts}/standby"
    options = {"zookeeper": hosts, "log_level": "info"}
    with (
        in_front_of(kafka, tmp_path / "a", **options) as active,
        in_front_of(kafka, tmp_path / "b", **options) as standby,
    ):
        active.start()
        standby.launch()
        until(lambda: "standing by" in standby.log_text(), "it stands by")
        connection = ZooKeeper(ZooKeeperConfig(hosts))
        connection.start()
        connection.wait(WAIT_S)
        connection.ensure(connection.path(MOVED))  # as a move does when it has found no server
        connection.close()
        assert active.stop() == 0
        until(lambda: "moved to Kafka" in standby.log_text(), "it notices")
        assert standby.get("/readyz")[0] == 503
        standby.stop()
