"""Whole copies: of what compaction and transactions left, over ends of leases, and again."""

import json
import shutil
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import urlopen

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.copier.holes import topic_with_gaps
from tests.copier.sides import (
    PARTITIONS,
    CopyProcess,
    Filler,
    check_same,
    make_topic,
    more_arrived,
    records_of,
)
from tests.crash.seeds import new_random
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

pytestmark = [needs_kafka, pytest.mark.kafka, pytest.mark.timeout(900)]

CANNOT, DIFFERS = 2, 1


def copier(
    folder: Path, source: KafkaServer, server: PidleaseServer, topic: str, *options: str
) -> CopyProcess:
    """A copier of one topic, in a group of its own."""
    return CopyProcess(
        folder, source.bootstrap, server, "--topics", topic, "--rename", "{topic}.copy",
        "--group", f"g-{topic}", "--session-seconds", "6", *options,
    )  # fmt: skip


def filled(source: KafkaServer, topic: str, count: int, random: Random) -> int:
    """A topic with real data; how many records."""
    filler = Filler(source.bootstrap, topic, count, random).start()
    filler.finish()
    return filler.sent


def test_a_copy_that_is_done_again_copies_nothing(
    source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    server.start()
    filled(source, "again", 20_000, new_random("again"))
    first = copier(tmp_path / "1", source, server, "again", "--once")
    assert first.run() == 0, first.text
    count = check_same(source, "again", server, "again.copy")
    before = records_of(server)
    second = copier(tmp_path / "2", source, server, "again", "--once")
    assert second.run() == 0, second.text
    assert "copied 0 records" in second.text
    assert records_of(server) == before == count
    compared = copier(tmp_path / "3", source, server, "again", "--verify")
    assert compared.run() == 0, compared.text
    assert f"records {count:,}, equal {count:,}, lost 0" in compared.text


def test_a_partition_that_was_only_taken_over_has_no_records(
    source: KafkaServer, in_front: PidleaseServer, tmp_path: Path
) -> None:
    """Once a start that failed after that could not be repeated: it left a marker of its writer."""
    in_front.start()
    filled(source, "taken", 2_000, new_random("taken"))
    make_topic(source.bootstrap, "taken.copy")
    ends = []
    consumer = Consumer({"bootstrap.servers": source.bootstrap, "group.id": "taken"})
    for number in range(PARTITIONS):
        wanted = {"topic": "taken.copy", "partition": number, "name": f"n{number}"}
        ask = partial(httpx.post, f"{in_front.http_url}/v1/leases", json=wanted, timeout=WAIT_S)
        until(lambda: ask().is_success, "a lease")  # noqa: B023 - called at once
        place = TopicPartition("taken.copy", number)
        ends.append(consumer.get_watermark_offsets(place, WAIT_S)[1])
    consumer.close()
    assert all(ends), ends
    copying = copier(tmp_path / "1", source, in_front, "taken", "--once")
    assert copying.run() == 0, copying.text
    check_same(source, "taken", in_front, "taken.copy")
    again = copier(tmp_path / "2", source, in_front, "taken", "--once", "--group", "other")
    assert again.run() == 2, again.text
    assert "has records already" in again.text


def test_onto_a_server_in_front_of_the_same_kafka(
    source: KafkaServer, in_front: PidleaseServer, tmp_path: Path
) -> None:
    in_front.start()
    filled(source, "same-cluster", 20_000, new_random("same-cluster"))
    copying = copier(tmp_path / "1", source, in_front, "same-cluster", "--once")
    assert copying.run() == 0, copying.text
    check_same(source, "same-cluster", in_front, "same-cluster.copy")


def test_what_compaction_and_transactions_leave(
    source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    """Holes, markers, and what was aborted: a copy has what a consumer sees."""
    server.start()
    topic = "holes"
    topic_with_gaps(source, topic, new_random("holes"))
    copying = copier(tmp_path / "1", source, server, topic, "--once")
    assert copying.run() == 0, copying.text
    assert check_same(source, topic, server, f"{topic}.copy") > 0
    compared = copier(tmp_path / "2", source, server, topic, "--verify")
    assert compared.run() == 0, compared.text


def test_the_log_s_own_timestamps(
    source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    """What a consumer of the source sees is what the copy's records bring."""
    server.start()
    make_topic(source.bootstrap, "append-time", message_timestamp_type="LogAppendTime")
    producer = Producer({"bootstrap.servers": source.bootstrap, "linger.ms": 20})
    for number in range(3000):
        producer.produce("append-time", b"%d" % number, partition=number % 4, timestamp=1000)
    producer.flush()
    copying = copier(tmp_path / "1", source, server, "append-time", "--once")
    assert copying.run() == 0, copying.text
    compared = copier(tmp_path / "2", source, server, "append-time", "--verify")
    assert compared.run() == 0, compared.text


def test_leases_of_seconds(source: KafkaServer, server: PidleaseServer, tmp_path: Path) -> None:
    """PIDs come and go under way, and over a kill; nothing else does."""
    random = new_random("leases")
    server.settings |= {"lease_seconds": "3"}
    server.start()
    filler = Filler(source.bootstrap, "leases", 30_000, random, 1500).start()
    copying = copier(tmp_path / "1", source, server, "leases", "--commit-seconds", "0.3").start()
    try:
        for _ in range(2):
            time.sleep(5)
            more_arrived(server)
            copying.process.kill9()
            time.sleep(random.choice((0, 7)))  # a lease lasts 3 s
            copying.start()
        more_arrived(server)
        until(lambda: "is over; it goes on" in copying.text, "the end of a lease")
        filler.finish()
        assert copying.process.stop(WAIT_S) == 0, copying.text[-2000:]
    finally:
        copying.process.kill9()
    last = copier(tmp_path / "2", source, server, "leases", "--once")
    assert last.run() == 0, last.text
    assert check_same(source, "leases", server, "leases.copy") == filler.sent


# ------------------------------------------------------------------ what does not fit


def test_a_lease_that_is_over_and_a_log_too_short(
    source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    server.settings |= {"lease_seconds": "2"}
    server.start()
    filled(source, "untold", 4000, new_random("untold"))
    assert copier(tmp_path / "1", source, server, "untold", "--once").run() == 0
    shorten(server, "untold.copy", more=3)
    time.sleep(5)
    refused = copier(tmp_path / "2", source, server, "untold", "--once")
    assert refused.run() == CANNOT
    assert "so it is unknown whether records from offset" in refused.text
    trusting = copier(tmp_path / "3", source, server, "untold", "--once", "--trust-checkpoint")
    assert trusting.run() == 0, trusting.text


def shorten(server: PidleaseServer, topic: str, *, more: int) -> None:
    """Delete a copy's records, and a few that somebody else wrote behind them."""
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for number in range(PARTITIONS):
        for _ in range(more):
            producer.produce(topic, b"somebody's", partition=number)
    producer.flush()
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    places = [TopicPartition(topic, number, -1) for number in range(PARTITIONS)]
    for future in admin.delete_records(places).values():
        future.result(WAIT_S)


def test_what_the_source_has_deleted(
    source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    server.start()
    random = new_random("deleted")
    filled(source, "deleted", 4000, random)
    assert copier(tmp_path / "1", source, server, "deleted", "--once").run() == 0
    before = records_of(server)
    producer = Producer({"bootstrap.servers": source.bootstrap})
    for number in range(400):
        producer.produce("deleted", b"%d" % number, partition=number % 4)
    producer.flush()
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    for future in admin.delete_records(
        [TopicPartition("deleted", n, -1) for n in range(4)]
    ).values():
        future.result(WAIT_S)
    refused = copier(tmp_path / "2", source, server, "deleted", "--once")
    assert refused.run() == CANNOT
    assert "is deleted and was never copied; say --skip-lost" in refused.text.replace("\n", " ")
    assert records_of(server) == before
    skipping = copier(tmp_path / "3", source, server, "deleted", "--once", "--skip-lost")
    assert skipping.run() == 0, skipping.text
    assert records_of(server) == before


def test_a_destination_that_has_lost_records(
    source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    """Its directory was put back from a backup: what was acknowledged since is not there."""
    server.start()
    filled(source, "backup", 4000, new_random("backup"))
    assert copier(tmp_path / "1", source, server, "backup", "--once").run() == 0
    server.stop()
    shutil.copytree(server.data_dir, tmp_path / "backup")
    server.start()
    producer = Producer({"bootstrap.servers": source.bootstrap})
    for number in range(400):
        producer.produce("backup", b"%d" % number, partition=number % 4)
    producer.flush()
    assert copier(tmp_path / "2", source, server, "backup", "--once").run() == 0
    server.stop()
    shutil.rmtree(server.data_dir)
    shutil.copytree(tmp_path / "backup", server.data_dir)
    server.start()
    refused = copier(tmp_path / "3", source, server, "backup", "--once")
    assert refused.run() == CANNOT
    assert "and has lost it from" in refused.text
    rewound = copier(tmp_path / "4", source, server, "backup", "--once", "--rewind")
    assert rewound.run() == 0, rewound.text
    check_same(source, "backup", server, "backup.copy")


def test_a_difference_is_found(source: KafkaServer, server: PidleaseServer, tmp_path: Path) -> None:
    server.start()
    filled(source, "differs", 4000, new_random("differs"))
    assert copier(tmp_path / "1", source, server, "differs", "--once").run() == 0
    producer = Producer({"bootstrap.servers": server.bootstrap})
    producer.produce("differs.copy", b"somebody's", partition=1)
    producer.flush()
    compared = copier(tmp_path / "2", source, server, "differs", "--verify")
    assert compared.run() == DIFFERS
    assert "differs-1: offset" in compared.text
    assert "no copier wrote that" in compared.text
    assert "foreign 1" in compared.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--topics", "nowhere"], "the source has no topic nowhere"),
        (["--topics", "a,b", "--rename", "c"], "would make one topic of several"),
        ([], "either topics, or topics_regex"),
        (["--topics-regex", "("], "topics_regex"),
        (["--topics", "bad-input", "--start", "soon"], "--start 'soon': give earliest, latest, or"),
        (["--topics", "bad-input", "--from", "127.0.0.1:1"], "the source cannot be reached"),
        (["--topics", "bad-input", "--to", "127.0.0.1:1"], "the destination cannot be reached"),
    ],
)
def test_bad_input(
    source: KafkaServer, idle: PidleaseServer, tmp_path: Path, options: list[str], said: str
) -> None:
    command = CopyProcess(tmp_path / "1", source.bootstrap, idle, "--group", "bad",
                          "--give-up-seconds", "0.5", *options)  # fmt: skip
    assert command.run() == CANNOT, command.text
    assert said in command.text
    assert "Traceback" not in command.text
    assert records_of(idle) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--topics", "loop"], "loop would be copied to itself; say --rename"),
        (["--topics-regex", "loop.*", "--rename", "{topic}.copy"], "would be copied as well"),
    ],
)
def test_a_copy_does_not_feed_on_itself(
    source: KafkaServer, in_front: PidleaseServer, tmp_path: Path, options: list[str], said: str
) -> None:
    in_front.start()
    if "loop" not in AdminClient({"bootstrap.servers": source.bootstrap}).list_topics().topics:
        make_topic(source.bootstrap, "loop")
    command = CopyProcess(tmp_path / "1", source.bootstrap, in_front, "--group", "loop", *options)
    assert command.run() == CANNOT, command.text
    assert said in command.text


def test_offsets_that_no_copier_committed(
    source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    server.start()
    filled(source, "theirs", 400, new_random("theirs"))
    consumer = Consumer({"bootstrap.servers": source.bootstrap, "group.id": "g-theirs"})
    consumer.commit(offsets=[TopicPartition("theirs", 2, 5)], asynchronous=False)
    consumer.close()
    refused = copier(tmp_path / "1", source, server, "theirs", "--once")
    assert refused.run() == CANNOT, refused.text
    assert "group g-theirs, theirs-2: offset 5 was not committed by a copier" in refused.text
    assert records_of(server) == 0, "of no partition"
    other = copier(tmp_path / "2", source, server, "theirs", "--once", "--group", "another")
    assert other.run() == 0, other.text


def test_offsets_that_are_gone(source: KafkaServer, server: PidleaseServer, tmp_path: Path) -> None:
    """They expire with the group, and go with a topic: nobody copies everything a second time."""
    server.start()
    filled(source, "expired", 4000, new_random("expired"))
    assert copier(tmp_path / "1", source, server, "expired", "--once").run() == 0
    before = records_of(server)
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    admin.delete_consumer_groups(["g-expired"])["g-expired"].result(WAIT_S)
    refused = copier(tmp_path / "2", source, server, "expired", "--once")
    assert refused.run() == CANNOT, refused.text
    assert "group g-expired has saved nothing for expired-" in refused.text
    assert records_of(server) == before
    twice = copier(tmp_path / "3", source, server, "expired", "--once", "--append")
    assert twice.run() == 0, twice.text
    assert records_of(server) == 2 * before


def test_a_topic_where_nothing_is_judged(
    source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    server.start()
    filled(source, "unjudged", 400, new_random("unjudged"))
    make_topic(server.bootstrap, "unjudged.copy", pidlease_deduplication="off")
    refused = copier(tmp_path / "1", source, server, "unjudged", "--once")
    assert refused.run() == CANNOT, refused.text
    assert "topic unjudged.copy has pidlease.deduplication=off" in refused.text
    assert records_of(server) == 0


def test_metrics(source: KafkaServer, server: PidleaseServer, tmp_path: Path) -> None:
    server.start()
    count = filled(source, "metrics", 4000, new_random("metrics"))
    (port,) = free_ports(1)
    copying = copier(tmp_path / "1", source, server, "metrics", "--metrics-port", str(port))
    copying.start()
    try:
        more_arrived(server, count)
        until(lambda: lags(port) == [0] * PARTITIONS, "the metrics to say that all is copied")
        page = {each.name: each.value for each in scraped(port)}
        assert page["pidlease_copy_records_total"] == count
        assert copying.process.stop(WAIT_S) == 0, copying.text
    finally:
        copying.process.kill9()
    assert f"copied {count:,} records" in copying.text
    taken = str(server.http_port)
    refused = copier(tmp_path / "2", source, server, "metrics", "--metrics-port", taken)
    assert refused.run() == CANNOT
    assert f"--metrics-port {taken}: " in refused.text


def test_the_console_shows_it(source: KafkaServer, server: PidleaseServer, tmp_path: Path) -> None:
    server.start()
    count = filled(source, "shown", 4000, new_random("shown"))
    copying = copier(tmp_path / "1", source, server, "shown").start()
    try:
        until(lambda: progress(server) == ("running", count, 0), "the copy to be shown")
        (job,) = jobs(server)
        assert (job["kind"], job["job"], job["lost_seconds"]) == ("copy", "g-shown", 0)
        assert job["processes"][0]["partitions"] == PARTITIONS
    finally:
        copying.kill9()
    until(lambda: progress(server)[0] == "silent", "the crash to be shown")
    again = copier(tmp_path / "2", source, server, "shown", "--once")
    assert again.run() == 0, again.text
    assert progress(server) == ("ended", count, 0)
    refused = copier(tmp_path / "3", source, server, "none", "--topics", "shown")
    assert refused.run() == CANNOT, refused.text
    failed = jobs(server)[0]
    assert (failed["job"], failed["state"]) == ("g-none", "failed")
    assert "--append" in failed["processes"][0]["reason"]


def jobs(server: PidleaseServer) -> list[dict[str, Any]]:
    """What the server's console shows."""
    with urlopen(f"http://{server.http_address}/v1/jobs", timeout=WAIT_S) as answer:
        return json.load(answer)["jobs"]  # type: ignore[no-any-return]


def progress(server: PidleaseServer) -> tuple[str, int, int | None]:
    """State, records without duplicates, and lag of the job that was the last to report."""
    for job in jobs(server):
        return job["state"], job["records"] - job["duplicates"], job["lag"]
    return "", 0, None


def scraped(port: int) -> list[Sample]:
    """What Prometheus would get."""
    with urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=WAIT_S) as answer:
        page = answer.read().decode()
    return [each for family in text_string_to_metric_families(page) for each in family.samples]


def lags(port: int) -> list[float]:
    """Of the partitions."""
    return [each.value for each in scraped(port) if each.name == "pidlease_copy_lag"]
