"""Workers share a Kafka, and are killed, as is their supervisor: each record is there once.

Clients know the workers' common address only. What Kafka itself has is compared with what they were
told.
"""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pidlease.kafka.records.identity_header import HEADER_NAME, Identity, encode_identity
from tests.crash.lives import get_on
from tests.crash.readback import consume
from tests.crash.seeds import SOAK, new_random
from tests.kafka_backend.loads import all_loads
from tests.servers.kafka import KafkaServer
from tests.servers.supervised import SupervisedServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until
from tests.servers.zookeeper import ZooKeeperServer

pytestmark = [needs_kafka, pytest.mark.kafka]

_HANG_S = 300.0
_PARTITIONS = 6
_WORKERS = 2
_STARTED_AGAIN = "a worker has ended and is started again"


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaServer]:
    """Its own: the others of this package are shared by servers with other coordinators."""
    with KafkaServer(tmp_path / "kafka") as running:
        yield running


@pytest.fixture(params=["kafka", "zookeeper"] if SOAK else ["kafka"])
def server(
    request: pytest.FixtureRequest, kafka: KafkaServer, tmp_path: Path
) -> Iterator[SupervisedServer]:
    with ExitStack() as stack:
        coordinator = {"coordination": "kafka"}
        if request.param == "zookeeper":
            zookeeper = stack.enter_context(ZooKeeperServer(tmp_path / "zookeeper"))
            hosts = f"{zookeeper.hosts}/w"
            coordinator = {"zookeeper": hosts, "zookeeper_session_seconds": "2"}
        server = SupervisedServer(
            tmp_path / "server", _WORKERS, log="kafka", upstream=kafka.bootstrap,
            log_level="info", upstream_metadata_seconds="0.5",
            # Once a bug: all threads of the log read, and waited for a look-up by one of them.
            io_threads="1", **coordinator,
        )  # fmt: skip
        try:
            yield server
        finally:
            server.kill9()


def _runs(pid: int) -> bool:
    """Whether a process is more than an entry in the table of processes."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _ports_of_leaders(admin: AdminClient, topic: str) -> set[int]:
    found = admin.list_topics(topic)
    leaders = {each.leader for each in found.topics[topic].partitions.values()}
    return {found.brokers[each].port for each in leaders if each in found.brokers}


@pytest.mark.timeout(900)
def test_kills_of_a_worker_and_of_the_supervisor(
    kafka: KafkaServer, server: SupervisedServer
) -> None:
    random = new_random("workers")
    server.start()
    server.wait_complete()
    topic = f"workers-{server.kafka_port}"
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(topic, _PARTITIONS)])[topic].result(WAIT_S)
    loads = all_loads(server.bootstrap, server, server, topic, _PARTITIONS, random)
    get_on(loads, within_s=_HANG_S)
    addresses = {server.kafka_port + 1, server.kafka_port + 2}
    until(lambda: _ports_of_leaders(admin, topic) == addresses, "each to lead some partitions")

    killed = server.pid_of(2)
    os.kill(killed, signal.SIGKILL)
    until(lambda: server.pid_of(2) not in (0, killed), "another worker 2")
    assert server.log_text().count(_STARTED_AGAIN) == 1
    assert "signal SIGKILL" in server.log_text()
    assert _runs(server.pid_of(1))
    get_on(loads, within_s=_HANG_S)

    os.kill(server.pid, signal.SIGHUP)
    read = "settings read again"
    until(lambda: server.log_text().count(read) == _WORKERS + 1, "all to read the settings again")

    _produce_as_a_stranger(kafka, f"stranger-{topic}")
    pids = server.worker_pids()
    assert len(pids) == _WORKERS
    server.kill9()
    until(lambda: not any(map(_runs, pids)), "no worker to be left")
    server.start()
    server.wait_complete(times=2)
    get_on(loads, within_s=_HANG_S)

    assert server.stop(timeout_s=_HANG_S) == 0
    stops = re.findall(r"(stopping|stopped) +worker=(\d)", server.log_text())
    assert stops == [(each, str(number)) for number in (2, 1) for each in ("stopping", "stopped")]
    assert re.search(r"drained +slots_left=0 worker=2", server.log_text())
    server.start()
    get_on(loads, within_s=_HANG_S)

    for load in loads:
        load.finish(_HANG_S)
    stored = consume(kafka.bootstrap, topic, _PARTITIONS, markers=True)
    for load in loads:
        load.ledger.check(stored)
    print(f"{len(stored)} records; a worker and the supervisor were killed, and all were stopped")


def _produce_as_a_stranger(kafka: KafkaServer, topic: str) -> None:
    """A record that names its producer, under an id of Kafka's that no server has recorded.

    Whoever replays it looks up whether the id is now a writer's.
    """
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    identity = encode_identity(Identity(-1, "stranger", 0, 0, 0))
    producer.produce(topic, b"x", headers=[(HEADER_NAME, identity)])
    assert producer.flush(_HANG_S) == 0
