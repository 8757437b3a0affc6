"""The server, and Kafka, killed under clients that go on: each record once, read from Kafka.

Clients of Kafka's, and ours: under a PID that was leased, by a name, and with numbers of its own.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.client.loads import LeasedLoad
from tests.client.loads import loads_for as leased_loads_for
from tests.crash import lives
from tests.crash.clients import Load
from tests.crash.lives import Retries, loads_for, rounds
from tests.crash.readback import Stored, consume
from tests.crash.seeds import SOAK, new_random
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S

pytestmark = [needs_kafka, pytest.mark.kafka]

TOPIC = "kills"
PARTITIONS = 4
#: Of the server, at least; every so many of them Kafka is killed instead.
KILLS = 120 if SOAK else 4
#: What the server logs of appends whose outcome is open.
WRITER_IN_DOUBT = "is to be taken again"
BATCH_IN_DOUBT = "Kafka did not take a batch"
_KAFKA_EVERY = 4
#: Everybody gets on within this time: a broker takes a while to come back.
_HANG_S = 300.0


@pytest.mark.timeout(7200 if SOAK else 900)
def test_kills_of_the_server_and_of_kafka(tmp_path: Path) -> None:
    random = new_random("in-front-kills")
    # What was acknowledged by one broker alone is in its page cache: kill -9 does not take that.
    with (
        KafkaServer(tmp_path / "kafka") as kafka,
        in_front_of(kafka, tmp_path / "server", snapshot_batches="20",
                    default_partitions=str(PARTITIONS), log_level="info") as server,
    ):  # fmt: skip
        retries = Retries(server)
        retries.new_life()
        server.start()
        make_topic(kafka.bootstrap)
        leased = leased_loads_for(server, server.bootstrap, TOPIC, PARTITIONS, random)
        loads = [*loads_for(server.bootstrap, TOPIC, PARTITIONS, random), *leased]
        for load in loads:
            load.start()

        def happened() -> bool:
            log = server.log_text()
            doubts = WRITER_IN_DOUBT in log and BATCH_IN_DOUBT in log
            return doubts and sum(each.metrics.duplicates for each in leased) > 0

        for number in rounds(KILLS, happened):
            get_on(loads, retries)
            time.sleep(random.random() * 0.3)
            if number % _KAFKA_EVERY == _KAFKA_EVERY - 1:
                kafka.process.kill9()
                time.sleep(random.random() * 2)
                kafka.start()
            else:
                server.kill9()
                retries.new_life()
                server.start()
        get_on(loads, retries)
        stored = read_back(kafka.bootstrap, TOPIC, PARTITIONS, loads, _HANG_S)
        retries.look()
        print(
            f"{number + 1} kills, {len(stored)} records, {retries.total:.0f} duplicates caught here"
        )
        assert server.stop() == 0
        assert "recovered" in server.log_text()
        log = server.log_text()
        assert BATCH_IN_DOUBT in log, "no batch was ever in doubt"
        assert WRITER_IN_DOUBT in log, "no writer was ever in doubt"
        assert sum(each.metrics.duplicates for each in leased) > 0, "no retry was a duplicate"


def make_topic(bootstrap: str) -> None:
    """With its partitions, whatever Kafka makes by itself."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(WAIT_S)


def read_back(
    bootstrap: str, topic: str, partitions: int, loads: Sequence[Load], within_s: float
) -> list[Stored]:
    """Let the clients finish, and hold what Kafka itself has against what they were told."""
    for load in loads:
        load.finish(within_s)
    stored = consume(bootstrap, topic, partitions, markers=True)
    for load in loads:
        load.ledger.check(stored)
        if isinstance(load, LeasedLoad) and "name" in load.options:
            load.check_numbers()
    return stored


def get_on(loads: Sequence[Load], retries: Retries, within_s: float = _HANG_S) -> None:
    """Wait until each client was told of a record since now."""
    lives.get_on(loads, retries.look, within_s)
