"""Kafka's own command line tools against this server; in the soak against a real Kafka as well."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from deploy.reference.kafka_api_page import api_name
from proxy.kafka.served_versions import ADVERTISED
from tests.clients.tools import Tools, table
from tests.crash.seeds import SOAK
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S

#: One server for all of them, so one worker.
pytestmark = [needs_kafka, pytest.mark.kafka]


@pytest.fixture(scope="module", params=["pidlease", "kafka"] if SOAK else ["pidlease"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaServer | PidleaseServer]:
    kind = PidleaseServer if request.param == "pidlease" else KafkaServer
    with kind(tmp_path_factory.mktemp("tools")) as running:
        yield running


@pytest.fixture
def tools(server: KafkaServer | PidleaseServer, tmp_path: Path) -> Tools:
    return Tools(server.bootstrap, tmp_path)


def _fill(tools: Tools, topic: str, counts: list[int]) -> None:
    """Make a topic with so many records in its partitions."""
    admin = AdminClient({"bootstrap.servers": tools.bootstrap})
    admin.create_topics([NewTopic(topic, len(counts))])[topic].result(WAIT_S)
    producer = Producer({"bootstrap.servers": tools.bootstrap, "enable.idempotence": True})
    for partition, count in enumerate(counts):
        for number in range(count):
            producer.produce(topic, b"%d" % number, partition=partition)
    assert producer.flush(WAIT_S) == 0


def test_topics(tools: Tools) -> None:
    made = tools.run("kafka-topics", "--create", "--create", "--topic", "made", "--partitions", "3",
                     "--config", "retention.ms=1000000")  # fmt: skip
    assert made == ["Created topic made."]
    assert "made" in tools.run("kafka-topics", "--list", "--list")
    head, *partitions = tools.run("kafka-topics", "--describe", "--describe", "--topic", "made")
    assert "PartitionCount: 3" in head
    assert "retention.ms=1000000" in head
    numbers = [line.split("\t")[2] for line in partitions]
    assert numbers == ["Partition: 0", "Partition: 1", "Partition: 2"]
    assert all("Leader: 1" in line for line in partitions)
    tools.run("kafka-topics", "--alter", "--alter", "--topic", "made", "--partitions", "5")
    head, *partitions = tools.run("kafka-topics", "--describe", "--describe", "--topic", "made")
    assert "PartitionCount: 5" in head
    assert len(partitions) == 5
    tools.run("kafka-topics", "--delete", "--delete", "--topic", "made")
    assert "made" not in tools.run("kafka-topics", "--list", "--list")
    tools.keep()


def test_configs(tools: Tools) -> None:
    _fill(tools, "set", [1])
    topic = ("--entity-type", "topics", "--entity-name", "set")
    done = tools.run("kafka-configs", "--alter", "--alter", *topic, "--add-config",
                     "retention.ms=1000000,segment.bytes=2000000")  # fmt: skip
    assert done == ["Completed updating config for topic set."]
    said = tools.run("kafka-configs", "--describe", "--describe", *topic)
    assert said[0] == "Dynamic configs for topic set are:"
    assert {line.split()[0] for line in said[1:]} == {
        "retention.ms=1000000",
        "segment.bytes=2000000",
    }
    tools.run("kafka-configs", "--alter", "--alter", *topic, "--delete-config", "retention.ms")
    said = tools.run("kafka-configs", "--describe", "--describe", *topic)
    assert [line.split()[0] for line in said[1:]] == ["segment.bytes=2000000"]
    tools.keep()


def test_configs_of_all_topics(server: KafkaServer | PidleaseServer, tools: Tools) -> None:
    """What Kafka has for all brokers (--entity-default) is here what holds for all topics."""
    if isinstance(server, KafkaServer):
        pytest.skip("about settings of our own")
    everybody = ("--entity-type", "brokers", "--entity-default")
    done = tools.run("kafka-configs", "--alter", "--alter", *everybody, "--add-config",
                     "pidlease.initial=zero,pidlease.policies=[kafka,none,strict]")  # fmt: skip
    assert done == ["Completed updating default config for brokers in the cluster."]
    said = tools.run("kafka-configs", "--describe", "--describe", *everybody)
    assert {line.split()[0] for line in said[1:]} == {
        "pidlease.policies=none,strict,kafka",
        "pidlease.initial=zero",
    }
    names = "pidlease.initial,pidlease.policies"
    tools.run("kafka-configs", "--alter", "--alter", *everybody, "--delete-config", names)
    said = tools.run("kafka-configs", "--describe", "--describe", *everybody)
    assert said == ["Default configs for brokers in the cluster are:"]
    tools.keep()


def test_console_producer_and_consumer(tools: Tools) -> None:
    sent = [f"key {n}:value {n}" for n in range(1000)]
    tools.run("kafka-console-producer", "idempotent, zstd", "--topic", "console",
              "--property", "parse.key=true", "--property", "key.separator=:",
              "--compression-codec", "zstd",
              stdin="".join(f"{line}\n" for line in sent))  # fmt: skip
    got = tools.run("kafka-console-consumer", "in a group", "--topic", "console", "--group", "eyes",
                    "--from-beginning", "--max-messages", "1000", "--timeout-ms", "60000",
                    "--property", "print.key=true", "--property", "key.separator=:",
                    "--property", "print.offset=true")  # fmt: skip
    # One partition, and what was printed is in its order.
    assert got == [f"Offset:{place}:{line}" for place, line in enumerate(sent)]
    consumer = Consumer({"bootstrap.servers": tools.bootstrap, "group.id": "eyes"})
    try:
        [place] = consumer.committed([TopicPartition("console", 0)], timeout=WAIT_S)
    finally:
        consumer.close()
    assert place.offset == 1000
    tools.keep()


def test_consumer_groups(tools: Tools) -> None:
    _fill(tools, "grouped", [10, 5])
    consumer = Consumer({"bootstrap.servers": tools.bootstrap, "group.id": "looked-at"})
    try:
        places = [TopicPartition("grouped", number, offset) for number, offset in ((0, 10), (1, 2))]
        consumer.commit(offsets=places, asynchronous=False)
    finally:
        consumer.close()
    group, topic = ("--group", "looked-at"), ("--topic", "grouped")

    def offsets() -> dict[str, tuple[str, str, str]]:
        lines = tools.run("kafka-consumer-groups", "--describe", "--describe", *group)
        return {
            row["PARTITION"]: (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"])
            for row in table(lines, "GROUP")
        }

    assert "looked-at" in tools.run("kafka-consumer-groups", "--list", "--list")
    assert offsets() == {"0": ("10", "10", "0"), "1": ("2", "5", "3")}
    said = tools.run("kafka-consumer-groups", "--describe --state", "--describe", "--state", *group)
    assert said[-1].split()[-2:] == ["Empty", "0"]
    tools.run("kafka-consumer-groups", "--reset-offsets", "--reset-offsets", *group, *topic,
              "--to-earliest", "--execute")  # fmt: skip
    assert offsets() == {"0": ("0", "10", "10"), "1": ("0", "5", "5")}
    tools.run("kafka-consumer-groups", "--reset-offsets", "--reset-offsets", *group,
              "--topic", "grouped:0", "--shift-by", "4", "--execute")  # fmt: skip
    tools.run("kafka-consumer-groups", "--delete-offsets", "--delete-offsets", *group,
              "--topic", "grouped:1")  # fmt: skip
    assert offsets() == {"0": ("4", "10", "6")}
    tools.run("kafka-consumer-groups", "--delete", "--delete", *group)
    assert "looked-at" not in tools.run("kafka-consumer-groups", "--list", "--list")
    tools.keep()


def test_members_of_a_group(tools: Tools) -> None:
    _fill(tools, "shared", [1, 1, 1])
    settings = {"bootstrap.servers": tools.bootstrap, "group.id": "alive", "client.id": "reader",
                "auto.offset.reset": "earliest"}  # fmt: skip
    consumer = Consumer(settings)
    try:
        consumer.subscribe(["shared"])
        assert len(consumer.consume(3, timeout=WAIT_S)) == 3
        lines = tools.run("kafka-consumer-groups", "--describe --members", "--describe",
                          "--members", "--group", "alive")  # fmt: skip
    finally:
        consumer.close()
    [member] = table(lines, "GROUP")
    assert member["CLIENT-ID"] == "reader"
    assert member["#PARTITIONS"] == "3"
    tools.keep()


def test_offsets_and_deleted_records(tools: Tools, tmp_path: Path) -> None:
    _fill(tools, "counted", [7, 4])
    assert tools.run("kafka-get-offsets", "latest", "--topic", "counted") == [
        "counted:0:7",
        "counted:1:4",
    ]
    places = tmp_path / "places.json"
    partitions = [{"topic": "counted", "partition": 0, "offset": 5}]
    places.write_text(json.dumps({"version": 1, "partitions": partitions}))
    said = tools.run("kafka-delete-records", "before an offset", "--offset-json-file", str(places))
    assert said[-1] == "partition: counted-0\tlow_watermark: 5"
    earliest = ("--topic", "counted", "--time", "earliest")
    assert tools.run("kafka-get-offsets", "earliest", *earliest) == ["counted:0:5", "counted:1:0"]
    tools.keep()


def test_producers_of_a_partition(tools: Tools) -> None:
    _fill(tools, "written", [12])
    lines = tools.run("kafka-transactions", "describe-producers", "describe-producers",
                      "--topic", "written", "--partition", "0")  # fmt: skip
    [producer] = table(lines, "ProducerId")
    assert int(producer["ProducerId"]) >= 0
    assert (producer["ProducerEpoch"], producer["LastSequence"]) == ("0", "11")
    assert producer["CurrentTransactionStartOffset"] == "None"
    tools.keep()


def test_api_versions(tools: Tools, server: KafkaServer | PidleaseServer) -> None:
    if isinstance(server, KafkaServer):
        pytest.skip("Kafka serves others")
    lines = tools.run("kafka-broker-api-versions", "all of them")
    told = {line.split("(")[0].strip(): line for line in lines[1:-1] if "UNSUPPORTED" not in line}
    for key, (lowest, highest) in ADVERTISED.items():
        versions = f"{lowest} to {highest}" if lowest < highest else str(lowest)
        assert f"({key}): {versions} [usable" in told.pop(api_name(key))
    assert not told, "more than is advertised"
    tools.keep()


def test_cluster_id(tools: Tools) -> None:
    admin = AdminClient({"bootstrap.servers": tools.bootstrap})
    expected = admin.describe_cluster().result(WAIT_S).cluster_id
    said = tools.run("kafka-cluster", "cluster-id", "cluster-id")
    assert said == [f"Cluster ID: {expected}"]
    tools.keep()


def test_librdkafka_asks_for_all_topics(tools: Tools) -> None:
    """Its request has three bytes too many, which Kafka does not look at."""
    _fill(tools, "listed", [1, 1])
    admin = AdminClient({"bootstrap.servers": tools.bootstrap})
    assert len(admin.list_topics(timeout=WAIT_S).topics["listed"].partitions) == 2


def test_performance(tools: Tools) -> None:
    _fill(tools, "fast", [0, 0, 0])
    [*_, said] = tools.run("kafka-producer-perf-test", "100,000 records", "--topic", "fast",
                           "--num-records", "100000", "--record-size", "100",
                           "--throughput", "-1")  # fmt: skip
    assert said.startswith("100000 records sent")
    consumer = Consumer({"bootstrap.servers": tools.bootstrap, "group.id": "none"})
    try:
        ends = [
            consumer.get_watermark_offsets(TopicPartition("fast", number), timeout=WAIT_S)[1]
            for number in range(3)
        ]
    finally:
        consumer.close()
    assert sum(ends) == 100_000
    tools.keep()
