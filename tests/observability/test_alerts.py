"""Alerts that fire for real: the committed file, with seconds in place of minutes."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.observability.load import TOPIC, Faulty, Repeated, append, lease, make_topic
from tests.observability.prometheus import Prometheus
from tests.observability.rules import quick
from tests.observability.rules import rules as all_rules
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of, not_started
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import until
from tests.servers.zookeeper import ZooKeeperServer
from tests.servers.zookeeper.marks import needs_zookeeper

pytestmark = [pytest.mark.usefixtures("promtool"), pytest.mark.timeout(900)]

_WAIT_S: Final = 300.0
_LATE_S: Final = 0.5
_SECONDS: Final = 30
#: Each waits for an answer of its own.
_SENDERS: Final = 8


class Alerts:
    """A Prometheus with the alerts, and the servers that it watches.

    Parameters:
        prometheus: started.
    """

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus

    def fires(self, name: str, server: PidleaseServer, **labels: str) -> None:
        """Wait until an alert fires for a server; what it says is whole."""
        until(lambda: bool(self._of(name, server)), name, 0.2, _WAIT_S)
        alert = self._of(name, server)[0]
        assert labels.items() <= alert["labels"].items(), alert
        for text in alert["annotations"].values():
            assert text
            assert "error" not in text, text
            assert "<no value>" not in text, text
            assert "{{" not in text, text

    def quiet(self, server: PidleaseServer, *names: str) -> None:
        """None of these fires for a server."""
        assert [name for name in names if self._of(name, server)] == []

    def rules_are_well(self) -> None:
        """All were evaluated, and without an error."""
        found = self._prometheus.rules()
        assert {each["name"] for each in found} == {
            each.name.replace("increase5m", "increase5s") for each in all_rules()
        }
        assert [each for each in found if each["health"] != "ok"] == []

    def _of(self, name: str, server: PidleaseServer) -> list[dict[str, Any]]:
        wanted = {"alertname": name, "instance": server.http_address}.items()
        return [each for each in self._prometheus.firing() if wanted <= each["labels"].items()]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Callable[..., Alerts]]:
    """Has servers watched by a Prometheus."""
    with ExitStack() as stack:

        def watch(*servers: PidleaseServer) -> Alerts:
            targets = {"pidlease": [each.http_address for each in servers]}
            found = stack.enter_context(Prometheus(tmp_path / "prometheus", targets, quick()))
            until(lambda: len(found.query("up == 1")) == len(servers), "the first scrapes")
            return Alerts(found)

        yield watch


def test_of_a_server_of_its_own_log(watched: Callable[..., Alerts], tmp_path: Path) -> None:
    """All but those of ZooKeeper and Kafka, at once: most of the time is spent waiting."""
    no_snapshot = {"snapshot_seconds": "0.5", "faults": "fail-from before write */snapshots/* 1"}
    no_fsync = {
        "fsync": "interval", "flush_seconds": "0.2", "faults": "fail-from=EIO before fsync *.log 1"
    }  # fmt: skip
    with (
        not_started(tmp_path / "noisy", log_level="error", **no_snapshot) as noisy,
        not_started(tmp_path / "full", ring_capacity="20") as full,
        not_started(tmp_path / "broken", **no_fsync) as broken,
        not_started(tmp_path / "stuck", faults="slow=120 before write */sequence/* 1") as stuck,
    ):
        stuck.launch()
        for server in (noisy, full, broken):
            server.start()
            make_topic(server, TOPIC)
        alerts = watched(noisy, full, broken, stuck)
        for _ in range(19):
            assert lease(full) == 200
        append(broken, "p", 0, 0)
        faulty = Faulty(noisy)
        with Repeated(faulty.wrong, 0.02), Repeated(faulty.turn), Repeated(lambda: _pause(full)):
            alerts.fires("FencingStorm", noisy, topic=TOPIC, policy="epoch", severity="warning")
            alerts.fires("GapRate", noisy, topic=TOPIC, policy="epoch")
            alerts.fires("SnapshotTooOld", noisy)
            alerts.fires("PartitionStopped", broken)
            alerts.fires("ReplaySlow", stuck)
            alerts.fires("LeaseRingNearlyFull", full)
            alerts.fires("EventLoopLate", full)
        alerts.fires("DiskFilling", noisy)  # of any disk: see `quick`
        alerts.quiet(full, "FencingStorm", "GapRate", "PartitionStopped", "SnapshotTooOld")
        alerts.quiet(noisy, "LeaseRingNearlyFull", "PartitionStopped", "ReplaySlow")
        alerts.quiet(broken, "FencingStorm", "GapRate", "LeaseRingNearlyFull", "ReplaySlow")
        broken.kill9()
        alerts.fires("PidleaseDown", broken, severity="critical")
        alerts.rules_are_well()


def _pause(server: PidleaseServer) -> None:
    with server.process.stopped():
        time.sleep(_LATE_S)


@needs_zookeeper
def test_of_the_coordinator(watched: Callable[..., Alerts], tmp_path: Path) -> None:
    """CoordinatorLost; and, once the block is used up, PidBlockExhausted; neither before."""
    with ZooKeeperServer(tmp_path / "zookeeper") as zookeeper:
        quickly = {"zookeeper_session_seconds": "2", "zookeeper_timeout_seconds": "2"}
        with not_started(
            tmp_path / "a", zookeeper=f"{zookeeper.hosts}/p", fsync="never", **quickly
        ) as server:
            server.start()
            make_topic(server, TOPIC)
            alerts = watched(server)
            assert lease(server) == 200
            alerts.quiet(server, "CoordinatorLost", "PidBlockExhausted")
            zookeeper.kill9()
            alerts.fires("CoordinatorLost", server, coordinator="zookeeper")
            alerts.quiet(server, "PidBlockExhausted")
            until(lambda: lease(server) == 503, "the end of the block", 0, _WAIT_S)
            alerts.fires("PidBlockExhausted", server, severity="critical")
            alerts.rules_are_well()


@needs_kafka
@pytest.mark.kafka
def test_in_front_of_kafka(
    kafka: KafkaServer, watched: Callable[..., Alerts], tmp_path: Path
) -> None:
    """WriterLost: somebody takes it. UpstreamFailing: Kafka hangs."""
    behind = AdminClient({"bootstrap.servers": kafka.bootstrap})
    with in_front_of(kafka, tmp_path / "a", upstream_timeout_seconds="1") as server:
        server.start()
        make_topic(server, "taken")
        make_topic(server, "hanging")
        alerts = watched(server)
        assert append(server, "p", 0, 0, topic="taken") == 200
        alerts.quiet(server, "WriterLost", "UpstreamFailing")
        cluster = behind.list_topics(timeout=_SECONDS).cluster_id
        thief = Producer({
            "bootstrap.servers": kafka.bootstrap, "transactional.id": f"pidlease/{cluster}/taken/0",
        })  # fmt: skip
        thief.init_transactions(_SECONDS)
        thief.begin_transaction()  # the partition's log hears of it by the first record
        thief.produce("taken", b"x", partition=0)
        thief.commit_transaction(_SECONDS)
        append(server, "p", 0, 1, topic="taken")
        alerts.fires("WriterLost", server)

        senders = [
            Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
            for _ in range(_SENDERS)
        ]
        for each in senders:
            each.produce("hanging", b"x")
            assert each.flush(_SECONDS) == 0
        with kafka.process.stopped():
            for each in senders:
                each.produce("hanging", b"x")
            alerts.fires("UpstreamFailing", server, severity="critical")
        for each in senders:
            assert each.flush(_SECONDS) == 0, "it goes on by itself"
        alerts.rules_are_well()
