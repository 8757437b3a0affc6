"""A server with many kinds of topics, to read by its files and by its Kafka port."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from pidlease.client.blocking_producer import BlockingProducer
from tests.copier.sides import CODECS, make_topic
from tests.servers.pidlease import PidleaseServer

RECORDS = 3000
PARTITIONS = 3


@pytest.fixture(scope="package")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PidleaseServer]:
    """A server that Kafka clients and leased producers fill, killed in between."""
    with PidleaseServer(tmp_path_factory.mktemp("live")) as running:
        # The timestamps are of long ago: retention would delete segments during slow tests.
        kept = {"segment_bytes": "20000", "retention_ms": "-1"}
        make_topic(running.bootstrap, "t", PARTITIONS, **kept)
        make_topic(running.bootstrap, "other", 1)
        fill_by_clients(running, 0)
        fill_by_leases(running)
        running.kill9()
        running.restart()
        fill_by_clients(running, RECORDS)
        yield running


def fill_by_clients(server: PidleaseServer, first: int) -> None:
    """Records with and without PIDs, in batches of all codecs."""
    for place, codec in enumerate(CODECS):
        producer = Producer({
            "bootstrap.servers": server.bootstrap, "compression.type": codec, "linger.ms": 5,
            "enable.idempotence": place % 2 == 0, "batch.num.messages": 100,
        })  # fmt: skip
        for number in range(first + place, first + RECORDS, len(CODECS)):
            producer.produce(
                "t", b"value %d " % number * 5 if number % 7 else None, b"key-%d" % (number % 97),
                number % PARTITIONS, timestamp=1_700_000_000_000 + number,
                headers=[("n", b"%d" % number), ("empty", None)] * (number % 3),
            )  # fmt: skip
        producer.produce("other", b"%d" % place)
        producer.flush()


def fill_by_leases(server: PidleaseServer) -> None:
    """Records with sequence numbers in the header `pidlease`, some with headers of their own."""
    options = {"bootstrap_servers": server.bootstrap, "leases": server.http_url}
    for codec in (None, "zstd"):
        with BlockingProducer(**options, compression_type=codec) as producer:  # type: ignore[arg-type]
            for number in range(300):
                headers: list[tuple[str, bytes | None]] = [("mine", b"%d" % number)]
                producer.send("t", b"leased %d" % number, partition=number % PARTITIONS,
                              headers=headers * (number % 2))  # fmt: skip
            producer.flush()


def logs_of(server: PidleaseServer, topic: str) -> list[Path]:
    """The segments of a topic."""
    return sorted((server.data_dir / "logs").glob(f"{topic}-*/*.log"))
