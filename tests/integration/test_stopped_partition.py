"""A partition with damaged records returns errors, not what is left of it: each request."""

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from typer.testing import CliRunner

from pidlease.testing.loopback_ports import LOOPBACK
from proxy.__main__ import cli
from tests.http_api.appending import path_of
from tests.http_api.lives import append, ask
from tests.integration.damaged_log import (
    COMMITTED,
    NAME,
    PRODUCER_ID,
    RECORDS,
    Written,
    copied,
    flip,
    lease,
    segments,
    write,
)
from tests.kafka_listener.admin_requests import DELETE_RECORDS, DESCRIBE_PRODUCERS
from tests.kafka_listener.batches import NOW_MS, batch, records_of
from tests.kafka_listener.client import WireClient, fetched, fetched_of
from tests.kafka_listener.messages import FETCH, LIST_OFFSETS
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

STORAGE: Final = int(KafkaError.KAFKA_STORAGE_ERROR)
_DEADLINE_S: Final = WAIT_S


class Damaged(NamedTuple):
    """A server with a stopped partition, t-0."""

    server: PidleaseServer
    written: Written
    offset: int

    def call(self, key: int, version: int, /, **values: object) -> Any:
        async def call() -> Any:
            async with await WireClient.connect(LOOPBACK, self.server.kafka_port) as client:
                return await client.call(key, version, **values)

        return asyncio.run(call())

    def fetch(self, offset: int, **more: Any) -> Any:
        version = more.pop("version", 11)
        body = self.call(FETCH, version, **fetched([("t", 0, offset)], **more))
        return fetched_of(body)[0]

    def listed(self, timestamp: int, partition: int = 0, version: int = 5) -> tuple[int, int]:
        asked = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
        topics = [{"name": "t", "partitions": [asked]}]
        body = self.call(LIST_OFFSETS, version, replica_id=-1, topics=topics)
        row = body.topics[0].partitions[0]
        return int(row.error_code), row.offset


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Written]:
    return {
        "one segment": write(tmp_path_factory.mktemp("one")),
        "many": write(tmp_path_factory.mktemp("many"), segment_bytes="1024"),
    }


@pytest.fixture(
    scope="module",
    params=[("one segment", 90), ("one segment", 0), ("one segment", 290), ("many", 90)],
    ids=["last segment", "first batch", "last batch", "older segment"],
)
def damaged(
    request: pytest.FixtureRequest,
    written: dict[str, Written],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Damaged]:
    name, offset = request.param
    server = copied(written[name], tmp_path_factory.mktemp("damaged"))
    log, _ = flip(server.data_dir, offset)
    assert (log == segments(server.data_dir)[-1]) == (name == "one segment")
    with server:
        assert "partition stopped" in server.log_text()
        yield Damaged(server, written[name], offset)
        server.kill9()


# ---------------------------------------------------------------------- Kafka


def test_the_end_is_an_error(damaged: Damaged) -> None:
    for version in (1, 5, 6):
        assert damaged.listed(-1, version=version)[0] == STORAGE
    assert damaged.listed(-1, partition=1) == (0, 3)
    assert damaged.listed(-2) == ((0, 0) if damaged.offset else (STORAGE, -1))


def test_times_before_the_damage_are_found_and_others_are_errors(damaged: Damaged) -> None:
    stamp = NOW_MS + damaged.offset // 10 * 1000
    if damaged.offset:
        assert damaged.listed(NOW_MS) == (0, 0)
        assert damaged.listed(stamp - 1000) == (0, damaged.offset - 10)
    for at in (stamp, stamp + 1000, NOW_MS + 10**9):
        assert damaged.listed(at)[0] == STORAGE, at


@pytest.mark.parametrize("version", [4, 11])
def test_records_before_the_damage_are_read(damaged: Damaged, version: int) -> None:
    if not damaged.offset:
        return
    read = 0
    while read < damaged.offset:  # a segment at a time
        found = damaged.fetch(read, version=version)
        values = [int(each.value or b"") for each in records_of(found.data)]
        assert (found.code, values[:1]) == (0, [read])
        # The high watermark is no end: it lies beyond what can be read.
        assert found.end > damaged.offset
        read += len(values)
    assert read == damaged.offset


@pytest.mark.parametrize("version", [4, 11])
def test_a_fetch_at_or_after_the_damage_is_an_error(damaged: Damaged, version: int) -> None:
    for offset in (damaged.offset, damaged.offset + 1, RECORDS, RECORDS + 100):
        # It is held back for the wait: a consumer would ask again at once.
        found = damaged.fetch(offset, version=version, wait_ms=100)
        assert (found.code, found.data) == (STORAGE, b""), offset


def test_nothing_is_out_of_range(damaged: Damaged) -> None:
    """A consumer that is told so goes elsewhere, and commits that."""
    assert damaged.fetch(-5).code == STORAGE


def test_one_request_for_both_partitions(damaged: Damaged) -> None:
    body = damaged.call(FETCH, 11, **fetched([("t", 0, damaged.offset), ("t", 1, 0)]))
    found = fetched_of(body)
    assert [(each.code, len(records_of(each.data))) for each in found] == [(STORAGE, 0), (0, 3)]


def test_produce_is_an_error(damaged: Damaged) -> None:
    async def produce() -> list[int]:
        async with await WireClient.connect(LOOPBACK, damaged.server.kafka_port) as client:
            pid = damaged.written.kafka_pid
            data = [batch([b"x"]), batch([b"x"], pid, 0, 150), batch([b"x"] * 10, pid, 0, 140)]
            return [(await client.produce("t", each)).code for each in data]

    assert asyncio.run(produce()) == [STORAGE] * 3


def test_describe_producers_is_an_error(damaged: Damaged) -> None:
    topics = [{"name": "t", "partition_indexes": [0, 1]}]
    body = damaged.call(DESCRIBE_PRODUCERS, 0, topics=topics)
    found = {each.partition_index: each for each in body.topics[0].partitions}
    assert (found[0].error_code, found[0].active_producers) == (STORAGE, ())
    assert "damaged" in found[0].error_message
    assert found[1].error_code == 0


def test_records_are_not_deleted(damaged: Damaged) -> None:
    for before in (-1, 0, 10, RECORDS, RECORDS + 1):
        body = damaged.call(
            DELETE_RECORDS, 2, timeout=timedelta(seconds=5),
            topics=[{"name": "t", "partitions": [{"partition_index": 0, "offset": before}]}],
        )  # fmt: skip
        row = body.topics[0].partitions[0]
        assert (row.error_code, row.low_watermark) == (STORAGE, -1), before
    assert not (damaged.server.data_dir / "logs" / "t-0" / "log-start").exists()


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_group_of_a_real_client_is_not_reset(damaged: Damaged, reset: str) -> None:
    errors: list[str] = []
    config = {
        "bootstrap.servers": damaged.server.bootstrap, "group.id": "g", "log_level": 0,
        "auto.offset.reset": reset, "enable.auto.commit": True, "auto.commit.interval.ms": 100,
        "error_cb": lambda error: errors.append(str(error)), "fetch.error.backoff.ms": 50,
    }  # fmt: skip
    consumer = Consumer(config)
    try:
        consumer.subscribe(["t"])
        seen: list[tuple[int, int]] = []
        told = storage_errors(damaged.server)
        deadline = time.monotonic() + _DEADLINE_S
        readable = range(COMMITTED, damaged.offset)
        # It has asked for what is damaged several times when this is counted.
        while (
            (1, 2) not in seen
            or sum(place == 0 for place, _ in seen) < len(readable)  # some may be in its queue
            or storage_errors(damaged.server) < told + 5
        ) and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                seen.append((message.partition() or 0, message.offset() or 0))
        assert storage_errors(damaged.server) >= told + 5, "it asked for the records"
        assert [offset for place, offset in seen if place == 0] == list(readable)
        assert (1, 2) in seen
        places = [TopicPartition("t", 0)]
        committed = consumer.committed(places, timeout=WAIT_S)[0].offset
        assert committed in (COMMITTED, *(each + 1 for each in readable))
    finally:
        consumer.close()
        # The next parameter reads the same again.
        _commit_back(damaged.server)


def storage_errors(server: PidleaseServer) -> float:
    return server.metric("pidlease_kafka_errors_total", api="Fetch", code="KAFKA_STORAGE_ERROR")


def _committed() -> Iterator[TopicPartition]:
    yield TopicPartition("t", 0, COMMITTED)
    yield TopicPartition("t", 1, 2)


def _commit_back(server: PidleaseServer) -> None:
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "g"})
    try:
        consumer.commit(offsets=[*_committed()], asynchronous=False)
    finally:
        consumer.close()


# ---------------------------------------------------------------------- HTTP


def test_leases_by_name_and_where_a_pid_goes_on(damaged: Damaged) -> None:
    server, pid = damaged.server, damaged.written.named_pid
    for body in ({"name": NAME}, {"pid": pid}, {"name": "another"}, {"assign_name": True},
                 {"name": NAME, "pid": pid, "generation": 1, "renew": True}):  # fmt: skip
        status, answer = lease(server, **body)
        assert status == 503, (body, answer)
        assert "t-0 is stopped" in answer["error"]
        assert answer["field"] == "partition"
    status, answer = lease(server, name=NAME, partition=1)
    assert (status, answer["pid"], answer["sequence_number"]) == (200, pid, 0)


def test_a_refused_lease_raises_no_generation(damaged: Damaged) -> None:
    granted = [lease(damaged.server, name="fresh", partition=1)[1]["generation"]]
    assert lease(damaged.server, name="fresh")[0] == 503
    granted.append(lease(damaged.server, name="fresh", partition=1)[1]["generation"])
    assert granted[1] == granted[0] + 1


def test_several_leases_at_once(damaged: Damaged) -> None:
    asked = [{"topic": "t", "partition": number, "name": NAME} for number in (0, 1)]
    headers = {"content-type": "application/json"}
    body = json.dumps({"leases": asked}).encode()
    status, answer = ask(damaged.server, "POST", "/v1/leases/batch", body, headers)
    assert status == 200
    assert [each["status"] for each in answer["leases"]] == [503, 200]
    assert "t-0 is stopped" in answer["leases"][0]["error"]


def test_producers(damaged: Damaged) -> None:
    status, answer = ask(damaged.server, "GET", "/v1/producers?topic=t&partition=0")
    assert (status, answer["field"]) == (503, "partition")
    assert "t-0 is stopped" in answer["error"]
    for query in ("", "?topic=t", f"?pid={damaged.written.named_pid}", f"?name={NAME}"):
        status, answer = ask(damaged.server, "GET", f"/v1/producers{query}")
        assert status == 200
        assert all(each["partition"] == 1 for each in answer["producers"]), query
        (left_out,) = answer["stopped"]
        assert (left_out["topic"], left_out["partition"]) == ("t", 0)
        assert "damaged" in left_out["reason"]
    _, answer = ask(damaged.server, "GET", "/v1/producers?topic=t&partition=1")
    assert [each["name"] for each in answer["producers"]] == [PRODUCER_ID]
    assert answer["stopped"] == []


def test_http_reads(damaged: Damaged) -> None:
    for offset in (damaged.offset, damaged.offset + 1, RECORDS, RECORDS + 100):
        query = f"?offset={offset}&wait_ms=20000"
        status, answer = ask(damaged.server, "GET", path_of("t", 0) + query, timeout_s=15)
        assert status == 503, (offset, answer)
        assert "t-0 is stopped" in answer["error"]
    read = 0
    while read < damaged.offset:  # a segment at a time
        status, answer = ask(damaged.server, "GET", path_of("t", 0) + f"?offset={read}")
        assert (status, answer["log_end"] > damaged.offset) == (200, True)
        assert answer["next_offset"] == read + len(answer["records"]) > read
        read = answer["next_offset"]
    assert read == damaged.offset


def test_http_appends(damaged: Damaged) -> None:
    headers = {"producer-id": PRODUCER_ID, "producer-epoch": "0", "producer-seq": "0"}
    status, answer = append(damaged.server, b"x", headers)
    assert status == 503
    assert "damaged" in answer["error"]
    assert append(damaged.server, b"x", headers, 1)[0] == 200


# ---------------------------------------------------------------------- who looks after it


def test_readiness_and_status(damaged: Damaged) -> None:
    code, body = damaged.server.get("/readyz")
    ready = json.loads(body)
    assert (code, ready["status"], ready["stopped_count"]) == (200, "ready", 1)
    assert [(each["topic"], each["partition"]) for each in ready["stopped"]] == [("t", 0)]
    assert "damaged" in ready["stopped"][0]["reason"]

    done = CliRunner().invoke(cli, ["status", "--url", damaged.server.http_url, "--json"])
    status = json.loads(done.stdout)
    assert done.exit_code == 1
    rows = {each["partition"]: each for each in status["partitions"]}
    assert (rows[0]["end_offset"], rows[0]["readable_to"]) == (None, damaged.offset)
    assert (rows[1]["end_offset"], rows[1]["readable_to"]) == (3, 3)
    shown = CliRunner().invoke(cli, ["status", "--url", damaged.server.http_url])
    assert "t-0 is stopped" in shown.stdout
    assert "pidlease repair" in shown.stdout
    assert damaged.server.metric("pidlease_partitions_stopped") == 1


def test_it_is_all_the_same_after_another_start(damaged: Damaged, tmp_path: Path) -> None:
    """What the first start made of it, a snapshot too, must not pass for all there was."""
    again = copied(Written(damaged.server.data_dir, 0, 0), tmp_path)
    with again:
        again.stop()
    assert not (again.data_dir / "clean-stop").exists()
    with again:
        found = Damaged(again, damaged.written, damaged.offset)
        assert found.listed(-1)[0] == STORAGE
        assert found.fetch(RECORDS).code == STORAGE
        assert lease(again, name=NAME)[0] == 503
        again.kill9()


# ---------------------------------------------------------------------- damage that stops nothing


def test_damage_before_a_snapshot_is_an_error_for_who_reads_it_and_hides_nothing_else(
    tmp_path: Path,
) -> None:
    """The state of its producers is whole, and so is the end: appends go on."""
    written = write(tmp_path / "a", snapshot_at=200, segment_bytes="1024")
    server = copied(written, tmp_path / "b")
    flip(server.data_dir, 90)
    with server:
        assert "partition stopped" not in server.log_text()
        found = Damaged(server, written, 90)
        assert found.listed(-1) == (0, RECORDS)
        status, answer = lease(server, name=NAME)
        assert (status, answer["sequence_number"]) == (200, RECORDS // 2)
        assert len(records_of(found.fetch(100).data)) >= 10
        # Bytes are handed out as they are, like Kafka does; who reads checks them.
        with pytest.raises(AssertionError):
            records_of(found.fetch(90).data)
        status, answer = ask(server, "GET", path_of("t", 0) + "?offset=90")
        assert status in (422, 500), answer
        assert json.loads(server.get("/readyz")[1]) == {"status": "ready"}
        server.kill9()
