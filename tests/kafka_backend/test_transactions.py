"""Read, process, write in transactions over three brokers, while everything is killed.

Each record of the input is in the output once and in order, as Kafka itself shows it to who reads
what is committed. Others write to the same partitions under our PIDs meanwhile: of them, too, each
record is there once, and what the server knows is what it reads from the log again.
"""

import shutil
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition

from proxy.kafka.produce_api import OWN_PIDS_FROM
from tests.crash.clients import LibrdkafkaLoad, Load
from tests.crash.lives import Retries, loads_for, rounds
from tests.crash.readback import Stored, consume
from tests.crash.relay import Weather
from tests.crash.seeds import SOAK, new_random
from tests.kafka_backend.cluster import behind_a_relay, kill_a_broker, make
from tests.kafka_backend.copying import Copying
from tests.kafka_backend.test_kills import get_on, read_back
from tests.servers.kafka import KafkaCluster
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S

pytestmark = [
    needs_kafka, pytest.mark.kafka,
    pytest.mark.timeout(7200 if SOAK else 900),
]  # fmt: skip

SOURCE, TARGET, NAME = "to-copy", "copied", "copier"
PARTITIONS: Final = 3
#: What happens once in each round, in an order by the seed; there are more rounds where it hits
#: nothing.
FAULTS: Final = ("server", "server", "broker", "instance")
ROUNDS: Final = 15 if SOAK else 1


def test_transactions_while_everything_is_killed(cluster: KafkaCluster, tmp_path: Path) -> None:
    random = new_random("transactions")
    weather = Weather(random, faults_every=60)
    for topic in (SOURCE, TARGET):
        make(cluster, topic, PARTITIONS, min_insync_replicas="2")
    with behind_a_relay(cluster, tmp_path, weather) as (server, relay):
        retries = Retries(server)
        retries.new_life()
        server.start()
        feed = LibrdkafkaLoad(relay.bootstrap, SOURCE, PARTITIONS, Random(random.random()), "feed")
        copying = Copying(relay.bootstrap, SOURCE, TARGET, NAME, random)
        plain = loads_for(relay.bootstrap, TARGET, PARTITIONS, random)
        loads: list[Load] = [feed, copying, *plain]
        for load in loads:
            load.start()

        def all_happened() -> bool:
            retries.look()
            lost = weather.done["lose answer"] + weather.done["cut answer"]
            ended = copying.done["committed"] and copying.done["aborted"]
            return retries.total > 0 and lost > 0 and ended > 0

        replaced = 0
        for _ in rounds(ROUNDS, all_happened):
            for fault in random.sample(FAULTS, len(FAULTS)):
                get_on_or_say(loads, retries, copying)
                time.sleep(random.random())
                if fault == "server":
                    server.kill9()
                    retries.new_life()
                    server.start()
                elif fault == "broker":
                    copying.done["leaders moved"] += kill_a_broker(cluster, TARGET, random)
                else:
                    copying.replace(WAIT_S)
                    replaced += 1
        get_on_or_say(loads, retries, copying)
        weather.faults_every = 0
        feed.finish(WAIT_S)
        source = read_back(cluster.bootstrap, SOURCE, PARTITIONS, [feed], WAIT_S)
        _wait_until_copied(cluster, copying, source)
        copying.finish(WAIT_S)
        target = read_back(cluster.bootstrap, TARGET, PARTITIONS, plain, WAIT_S)
        retries.look()
        everything = consume(cluster.bootstrap, TARGET, PARTITIONS, markers=True, aborted=True)
        print(f"{dict(copying.done)}, {dict(weather.done)}, {len(source)} copied,"
              f" {len(target)} in all, {len(everything) - len(target)} aborted,"
              f" {retries.total:.0f} duplicates")  # fmt: skip
        _check_copies(source, target)
        _check_known(server, target)
    assert len(everything) > len(target), "nothing that was aborted ever stood in the log"
    assert copying.done["fenced"] == replaced >= ROUNDS
    for happened in ("committed", "aborted", "leaders moved"):
        assert copying.done[happened] > 0, happened
    assert weather.done["lose answer"] + weather.done["cut answer"] > 0
    assert retries.total > 0, "no retry was a duplicate"


def get_on_or_say(loads: list[Load], retries: Retries, copying: Copying) -> None:
    """Wait until each load gets on; the error says where the copier is."""
    try:
        get_on(loads, retries, WAIT_S)
    except AssertionError as error:
        error.add_note(copying.state())
        raise


def _wait_until_copied(cluster: KafkaCluster, copying: Copying, source: list[Stored]) -> None:
    """Wait until the group has committed all, by what Kafka itself tells of it."""
    ends = dict.fromkeys(range(PARTITIONS), 0)
    for each in source:
        ends[each.partition] = max(ends[each.partition], each.offset + 1)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": NAME})
    deadline = time.monotonic() + WAIT_S
    try:
        while True:
            asked = [TopicPartition(SOURCE, number) for number in ends]
            told = {each.partition: each.offset for each in consumer.committed(asked, WAIT_S)}
            if told == ends:
                return
            assert not copying.ledger.failures, copying.ledger.failures
            assert time.monotonic() < deadline, f"committed {told} of {ends}"
            assert all(told[number] <= end for number, end in ends.items())
            time.sleep(0.2)
    finally:
        consumer.close()


def _check_copies(source: list[Stored], target: list[Stored]) -> None:
    """Each once, on the same partition, in the same order."""
    for number in range(PARTITIONS):
        due = [each.value for each in source if each.partition == number]
        copies = [each.value for each in target
                  if each.partition == number and each.value.startswith(b"feed/")]  # fmt: skip
        doubled = [value[:30] for value, count in Counter(copies).items() if count > 1]
        assert not doubled, f"partition {number}: copied twice: {doubled[:5]} ({len(doubled)})"
        lost = set(due) - set(copies)
        assert not lost, f"partition {number}: {len(lost)} are not there"
        assert copies == due, f"partition {number}: out of order"


def _check_known(server: PidleaseServer, target: list[Stored]) -> None:
    """Kafka's own ids are in no snapshot; and one of a start without any says the same."""
    known = _stop_and_look(server)
    assert min(pid for pid, *_ in known) >= OWN_PIDS_FROM
    plain = sum(not each.value.startswith(b"feed/") for each in target)
    of_target = [high for (_, topic, _), (high, *_) in known.items() if topic == TARGET]
    assert sum(high + 1 for high in of_target) == plain
    shutil.rmtree(server.data_dir / "snapshots")
    server.start()
    assert _stop_and_look(server) == known


def _stop_and_look(server: PidleaseServer) -> dict[tuple[int, str, int], tuple[Any, ...]]:
    """Stop, and read what the snapshot has of each producer on each partition."""
    assert server.stop() == 0
    newest = max((server.data_dir / "snapshots").glob("snapshot-*"))
    rows = pq.read_table(newest / "producers.parquet").to_pylist()
    return {
        (row["pid"], row["topic"], row["partition"]): (
            row["high"], row["lowest"], row["generation"], row["batches"],
        )
        for row in rows
    }  # fmt: skip
