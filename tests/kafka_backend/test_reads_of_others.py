"""HTTP reads in front of Kafka: what others wrote, as a consumer sees it that reads committed."""

from __future__ import annotations

import http.client
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from pidlease.testing.loopback_ports import LOOPBACK
from tests.http_api.lives import ask
from tests.kafka_backend.test_clients import new_topic
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until
from tests.streams.stream_client import TEXT, send

pytestmark = [needs_kafka, pytest.mark.kafka]

#: A read that is not woken ends after so long, and the test fails.
_LONG_MS: Final = 30_000


def write(bootstrap: str, topic: str, *values: str, transaction: str = "") -> Producer:
    """Write to partition 0, and wait until Kafka has it; a transaction stays open."""
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap}
    if transaction:
        settings |= {"transactional.id": f"{topic}-{transaction}"}
    producer = Producer(settings)
    if transaction:
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
    errors: list[Any] = []
    for value in values:
        producer.produce(topic, value.encode(), partition=0,
                         on_delivery=lambda error, _: errors.append(error))  # fmt: skip
    assert producer.flush(WAIT_S) == 0
    assert errors == [None] * len(values)
    return producer


def read(server: PidleaseServer, topic: str, query: str = "") -> dict[str, Any]:
    status, page = ask(server, "GET", f"/v1/topics/{topic}/partitions/0/records{query}",
                       timeout_s=WAIT_S)  # fmt: skip
    assert status == 200, page
    return page


def values_of(page: dict[str, Any]) -> list[str]:
    return [each["value"] for each in page["records"]]


def listed_end(server: PidleaseServer, topic: str) -> int:
    status, found = ask(server, "GET", f"/v1/topics/{topic}/partitions")
    assert status == 200, found
    return int(found["partitions"][0]["log_end"])


@pytest.mark.parametrize("through", ["kafka", "pidlease"])
def test_records_of_others_are_read_at_once(
    kafka: KafkaServer, server: PidleaseServer, through: str
) -> None:
    topic = new_topic(server)
    bootstrap = kafka.bootstrap if through == "kafka" else server.bootstrap
    assert read(server, topic)["log_end"] == 0
    write(bootstrap, topic, "a", "b")
    page = read(server, topic, "?offset=0")
    assert values_of(page) == ["a", "b"]
    assert (page["next_offset"], page["log_end"]) == (2, 2)
    assert listed_end(server, topic) == 2
    write(bootstrap, topic, "c")
    assert values_of(read(server, topic, "?offset=2")) == ["c"]
    status, problem = ask(server, "GET", f"/v1/topics/{topic}/partitions/0/records?offset=9")
    assert (status, problem["log_end"]) == (416, 3)


@pytest.mark.parametrize("through", ["kafka", "pidlease"])
def test_a_transaction_is_read_when_it_is_committed(
    kafka: KafkaServer, server: PidleaseServer, through: str
) -> None:
    topic = new_topic(server)
    bootstrap = kafka.bootstrap if through == "kafka" else server.bootstrap
    write(bootstrap, topic, "aborted", transaction="a").abort_transaction(WAIT_S)
    write(bootstrap, topic, "plain")
    until(lambda: listed_end(server, topic) == 3, "the marker of the abort")
    opened = write(bootstrap, topic, "open", transaction="b")
    write(bootstrap, topic, "after")
    page = read(server, topic, "?offset=0")
    assert values_of(page) == ["plain"]
    assert (page["next_offset"], page["log_end"]) == (3, 3)
    assert listed_end(server, topic) == 3
    past = read(server, topic, "?offset=4")
    assert (past["records"], past["next_offset"], past["log_end"]) == ([], 4, 3)
    with ThreadPoolExecutor(2) as threads:
        waits = [
            threads.submit(read, server, topic, f"?offset={offset}&wait_ms={_LONG_MS}")
            for offset in (3, 4)
        ]
        opened.commit_transaction(WAIT_S)
        assert values_of(waits[0].result(WAIT_S)) == ["open", "after"]
        assert values_of(waits[1].result(WAIT_S)) == ["after"]
    assert values_of(read(server, topic, "?offset=0")) == ["plain", "open", "after"]


def test_a_waiting_read_is_woken_by_what_others_write(
    kafka: KafkaServer, server: PidleaseServer
) -> None:
    topic = new_topic(server)
    with ThreadPoolExecutor(1) as thread:
        for number in range(5):
            waits = thread.submit(read, server, topic, f"?offset={number}&wait_ms={_LONG_MS}")
            write(kafka.bootstrap, topic, str(number))
            page = waits.result(WAIT_S)
            assert (values_of(page), page["next_offset"]) == ([str(number)], number + 1)
        waits = thread.submit(read, server, topic, f"?offset=5&wait_ms={_LONG_MS}")
        write(kafka.bootstrap, topic, "aborted", transaction="a").abort_transaction(WAIT_S)
        write(kafka.bootstrap, topic, "last")
        assert values_of(waits.result(WAIT_S)) == ["last"]


def test_an_offset_is_found_among_committed_records(
    kafka: KafkaServer, server: PidleaseServer
) -> None:
    topic = new_topic(server)
    path = f"/v1/topics/{topic}/partitions/0/offset?timestamp_ms=0"
    opened = write(kafka.bootstrap, topic, "open", transaction="a")
    assert ask(server, "GET", path)[1]["offset"] is None
    opened.commit_transaction(WAIT_S)
    until(lambda: ask(server, "GET", path)[1]["offset"] == 0, "the marker of the commit")


def events_of(server: PidleaseServer, name: str, found: list[str], came: threading.Event) -> None:
    """Collect the values of an event stream until one is `end`."""
    connection = http.client.HTTPConnection(LOOPBACK, server.http_port, timeout=WAIT_S)
    try:
        connection.request("GET", f"/v1/stream/{name}?offset=-1&live=sse")
        response = connection.getresponse()
        came.set()
        while line := response.readline():
            if line.startswith(b"data:") and not line.startswith(b"data:{"):
                found.append(line[5:].strip().decode())
                if found[-1].endswith("end"):
                    return
    finally:
        connection.close()


@pytest.mark.parametrize("through", ["kafka", "pidlease"])
def test_a_stream_has_what_others_wrote(
    kafka: KafkaServer, server: PidleaseServer, through: str
) -> None:
    name = f"s{uuid.uuid4().hex[:8]}"
    bootstrap = kafka.bootstrap if through == "kafka" else server.bootstrap
    assert send(server, "PUT", name, b"", TEXT).status == 201
    found: list[str] = []
    began = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        events = threads.submit(events_of, server, name, found, began)
        assert began.wait(WAIT_S)
        waits = threads.submit(send, server, "GET", f"{name}?offset=now&live=long-poll")
        write(bootstrap, name, "a")
        until(lambda: found == ["a"], "the first event")
        if (reply := waits.result(WAIT_S)).status == 200:  # it came before the value did
            assert reply.body == b"a"
        # pidlease admits no transaction to a stream.
        write(kafka.bootstrap, name, "aborted", transaction="a").abort_transaction(WAIT_S)
        until(lambda: send(server, "HEAD", name).next_offset.endswith("3"), "the abort's marker")
        reply = send(server, "GET", name)
        assert (reply.body, reply.headers["Stream-Up-To-Date"]) == (b"a", "true")
        opened = write(kafka.bootstrap, name, "b", transaction="b")
        posted = send(server, "POST", name, "end", TEXT)
        assert posted.status == 204
        assert send(server, "GET", name).body == b"a"
        tail = send(server, "HEAD", name).next_offset
        assert send(server, "GET", f"{name}?offset=now").next_offset == tail
        assert send(server, "PUT", name, b"", TEXT).next_offset == tail
        past = send(server, "GET", f"{name}?offset={posted.next_offset}")
        assert (past.status, past.body) == (200, b""), past
        assert send(server, "GET", f"{name}?offset={tail}").body == b""
        waits = threads.submit(send, server, "GET", f"{name}?offset={tail}&live=long-poll")
        opened.commit_transaction(WAIT_S)
        assert waits.result(WAIT_S).body == b"bend"
        events.result(WAIT_S)
        assert "".join(found) == "abend"
        reply = send(server, "GET", name)
        assert (reply.body, reply.headers["Stream-Up-To-Date"]) == (b"abend", "true")


def test_without_kafka_a_read_is_an_error(tmp_path: Path) -> None:
    settings = {"upstream_timeout_seconds": "1"}
    with (
        KafkaServer(tmp_path / "kafka") as kafka,
        in_front_of(kafka, tmp_path / "server", **settings) as server,
    ):
        server.start()
        topic, name = new_topic(server), "stream"
        assert send(server, "PUT", name, b"", TEXT).status == 201
        write(kafka.bootstrap, topic, "a")
        assert values_of(read(server, topic)) == ["a"]
        kafka.process.kill9()
        path = f"/v1/topics/{topic}/partitions/0/records"
        with ThreadPoolExecutor() as threads:
            reads = [
                threads.submit(ask, server, "GET", f"{path}{query}", timeout_s=WAIT_S)
                for query in ("", "?offset=0", "?offset=1", "?offset=1&wait_ms=1")
            ]
            of_stream = [
                threads.submit(send, server, method, f"{name}{query}")
                for method, query in (("HEAD", ""), ("GET", ""), ("GET", "?offset=now"))
            ]
            for each in reads:
                status, problem = each.result(WAIT_S)
                assert (status, problem["code"]) == (503, "log_unreadable"), problem
            assert [each.result(WAIT_S).status for each in of_stream] == [503] * 3
