"""Every panel of every dashboard shows something: asked of a real Prometheus, under real load."""

import importlib.util
import math
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.copier.sides import CopyProcess
from tests.integration.test_scrape import SEVERAL
from tests.observability.dashboards import Asked, asked
from tests.observability.load import (
    CLOSED,
    TOPIC,
    Clients,
    Faulty,
    Ours,
    Repeated,
    append,
    lease,
    make_topic,
)
from tests.observability.prometheus import Prometheus, PrometheusApi
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import in_front_of, not_started
from tests.servers.spark import spark_missing
from tests.servers.spark.application import SparkCopy
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.zookeeper import ZooKeeperServer
from tests.spark.soak import in_the_soak

pytestmark = [pytest.mark.usefixtures("promtool"), pytest.mark.timeout(900)]

_SPARK: Final = spark_missing()
_PYSPARK: Final = importlib.util.find_spec("pyspark") is not None
_UPSTREAM: Final = "pidlease-upstream"
_WAIT_S: Final = 300.0


def shows(prometheus: PrometheusApi, query: Asked) -> bool:
    """Whether a panel has a line with a number."""
    return any(not math.isnan(value) for _, value in prometheus.query(query.plain))


def check_all(prometheus: PrometheusApi, wanted: Iterable[Asked]) -> None:
    """Wait until each query has shown something."""
    empty, deadline = list(wanted), time.monotonic() + _WAIT_S
    assert empty
    while empty and time.monotonic() < deadline:
        time.sleep(0.5)
        empty = [each for each in empty if not shows(prometheus, each)]
    assert not empty, "\n".join(f"{e.board}, {e.panel}: {e.plain}" for e in empty)


def _of_several() -> list[Asked]:
    return [each for each in asked(_UPSTREAM) if any(name in each.expression for name in SEVERAL)]


def _of_spark() -> list[Asked]:
    return [each for each in asked() if "_spark_" in each.expression]


def test_every_panel_of_servers_copiers_and_clients(tmp_path: Path) -> None:
    """All but those of Kafka and of Spark."""
    copier_port, client_port = free_ports(2)
    with (
        not_started(
            tmp_path / "a", snapshot_seconds="1", group_initial_rebalance_seconds="0"
        ) as server,
        not_started(tmp_path / "full", ring_capacity="3") as full,
    ):
        server.start()
        full.start()
        make_topic(server, TOPIC)
        make_topic(server, CLOSED, pidlease_policies="kafka")
        make_topic(full, TOPIC)
        copy = CopyProcess(
            tmp_path / "copier", server.bootstrap, server, "--topics", TOPIC, "--group", "copy",
            "--rename", "{topic}.copy", "--metrics-port", str(copier_port),
        ).start()  # fmt: skip
        targets = {
            "pidlease": [server.http_address, full.http_address],
            "pidlease-copiers": [f"{LOOPBACK}:{copier_port}"],
            "pidlease-clients": [f"{LOOPBACK}:{client_port}"],
        }
        clients, faulty = Clients(server), Faulty(server)
        try:
            with (
                Prometheus(tmp_path / "prometheus", targets) as prometheus,
                Repeated(clients.turn),
                Repeated(faulty.turn),
                Repeated(lambda: (lease(server), lease(full))),
                Ours(server, client_port),
            ):
                check_all(prometheus, (
                    each for each in asked()
                    if each.board != _UPSTREAM and "_spark_" not in each.expression
                ))  # fmt: skip
        finally:
            clients.close()
            copy.process.kill9()


@needs_kafka
@pytest.mark.kafka
def test_every_panel_in_front_of_kafka(kafka: KafkaServer, tmp_path: Path) -> None:
    """With records that are too large for Kafka."""
    with in_front_of(kafka, tmp_path / "server") as server:
        server.start()
        make_topic(server, "small", max_message_bytes="2000")
        make_topic(server, TOPIC)
        clients, faulty = Clients(server), Faulty(server)
        targets = {"pidlease": [server.http_address]}

        def too_large() -> None:
            assert append(server, "large", 0, 0, topic="small", size=3000) == 413

        try:
            with (
                Prometheus(tmp_path / "prometheus", targets) as prometheus,
                Repeated(clients.turn),
                Repeated(faulty.turn),
                Repeated(too_large),
            ):
                several = _of_several()
                check_all(prometheus, [each for each in asked(_UPSTREAM) if each not in several])
        finally:
            clients.close()


@needs_kafka
@pytest.mark.kafka
def test_every_panel_of_several_servers(kafka: KafkaServer, tmp_path: Path) -> None:
    """The second one takes over half of the partitions from the first, and gives them back."""
    with ZooKeeperServer(tmp_path / "zookeeper") as zookeeper:
        same = {"zookeeper": f"{zookeeper.hosts}/p", "shared": "true"}
        with (
            in_front_of(kafka, tmp_path / "a", **same) as first,
            in_front_of(kafka, tmp_path / "b", **same) as second,
        ):
            first.start()
            for number in range(8):
                make_topic(first, f"moved-{number}")
            second.start()
            targets = {"pidlease": [first.http_address, second.http_address]}
            with Prometheus(tmp_path / "prometheus", targets) as prometheus:
                asked_for = _of_several()
                takeovers = [each for each in asked_for if "takeover_seconds" in each.expression]
                check_all(prometheus, [each for each in asked_for if each not in takeovers])
                # A rate needs a takeover that Prometheus sees.
                assert second.stop() == 0
                check_all(prometheus, takeovers)


@pytest.mark.skipif(not _PYSPARK, reason="install pyspark (pip install pidlease[spark])")
def test_every_panel_of_spark(tmp_path: Path) -> None:
    """By the collector that a copy has, without a Spark that gives it numbers: the soak has one."""
    from pidlease.core.topic_partition import TopicPartition
    from pidlease.spark.listener import QueryProgress, SinkCollector
    from pidlease.spark.sink.run_state import Chain, RunState, SourceProducer

    place = TopicPartition(TOPIC, 0)
    source = SourceProducer(1, 0, 0, -1, chains={place: Chain(0, 7)}, sent=7, duplicates=1)
    state = RunState("name", 3, 3, "id", {}, spread=False, ends={place: 0}, sources={place: source})
    told = QueryProgress(batches=3, seconds=0.5, rate=14.0, lag={place: 2})
    registry = CollectorRegistry()
    registry.register(SinkCollector(SimpleNamespace(progress=told, state=lambda: state)))  # type: ignore[arg-type]
    listening, thread = start_http_server(0, LOOPBACK, registry)
    targets = {"pidlease-spark": [f"{LOOPBACK}:{listening.server_port}"]}
    try:
        with Prometheus(tmp_path / "prometheus", targets) as prometheus:
            check_all(prometheus, _of_spark())
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()


@in_the_soak
@pytest.mark.skipif(_SPARK is not None, reason=str(_SPARK))
def test_every_panel_of_a_real_spark(tmp_path: Path) -> None:
    """A copy by `pidlease spark copy`, from the server's Kafka port to itself."""
    (port,) = free_ports(1)
    with not_started(tmp_path / "server", fsync="never") as server:
        server.start()
        make_topic(server, TOPIC)
        faulty = Faulty(server)
        copy = SparkCopy(
            tmp_path / "spark", server.bootstrap, server, tmp_path / "checkpoint",
            "--topics", TOPIC, "--topic", "{topic}.spark", "--trigger-seconds", "1",
            "--metrics-port", str(port),
        ).start()  # fmt: skip
        targets = {"pidlease-spark": [f"{LOOPBACK}:{port}"]}
        try:
            with (
                Prometheus(tmp_path / "prometheus", targets) as prometheus,
                Repeated(faulty.turn),
            ):
                check_all(prometheus, _of_spark())
        except AssertionError as error:
            raise AssertionError(copy.text[-3000:]) from error
        finally:
            copy.kill9()
