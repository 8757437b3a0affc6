"""Streams on a real server: beside Kafka clients, after kills, in races."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient

from pidlease.testing.loopback_ports import LOOPBACK
from tests.crash.readback import consume
from tests.crash.seeds import SOAK
from tests.http_api.lives import ask
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S, until
from tests.streams.stream_client import (
    CLOSE,
    JSON_TYPE,
    TEXT,
    ZERO,
    Reply,
    numbered,
    read_all,
    read_json,
    send,
)

_library: Any = kafka_admin


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PidleaseServer]:
    settings = {"stream_poll_seconds": "1", "batch_bytes_max": "65536"}
    with PidleaseServer(tmp_path_factory.mktemp("streams"), settings=settings) as server:
        yield server


def kill(server: PidleaseServer) -> None:
    server.kill9()
    server.restart()


def produce(server: PidleaseServer, topic: str, *values: bytes | None) -> list[KafkaError | None]:
    """Send records with keys and headers, compressed; return their errors."""
    errors: list[KafkaError | None] = []
    producer = Producer(
        {"bootstrap.servers": server.bootstrap, "compression.type": "lz4", "linger.ms": 50}
    )
    for value in values:
        producer.produce(
            topic, value, key=b"key", headers={"h": b"v"},
            on_delivery=lambda error, _: errors.append(error),
        )  # fmt: skip
    assert producer.flush(WAIT_S) == 0
    return errors


# ------------------------------------------------------------------ Kafka clients


def test_kafka_clients_read_and_write_the_same_records(server: PidleaseServer) -> None:
    send(server, "PUT", "shop/orders", '[{"n":1}, [2]]', JSON_TYPE)
    assert send(server, "POST", "shop/orders", "3.00", JSON_TYPE | numbered(0)).status == 200
    assert produce(server, "shop__orders", b'{"n": 4}', b"no JSON", b"\xff") == [None] * 3
    assert send(server, "POST", "shop/orders", "5", JSON_TYPE | numbered(1)).status == 200
    reply = send(server, "GET", "shop/orders")
    assert reply.body == b'[{"n":1},[2],3.00,{"n": 4},"no JSON","\xef\xbf\xbd",5]'
    stored = [each.value for each in consume(server.bootstrap, "shop__orders", 1)]
    assert stored[:4] == [b'{"n":1}', b"[2]", b"3.00", b'{"n": 4}']
    assert stored[-1] == b"5"
    assert produce(server, "shop__orders", None) == [None]
    assert read_json(server, f"shop/orders?offset={reply.next_offset}") == [None]


def test_a_closed_stream_is_closed_to_kafka_clients(server: PidleaseServer) -> None:
    send(server, "PUT", "ended", "a", TEXT)
    assert send(server, "POST", "ended", "b", TEXT | CLOSE).is_closed
    for _ in range(2):
        (error,) = produce(server, "ended", b"c")
        assert error is not None
        assert error.code() == KafkaError.POLICY_VIOLATION
        kill(server)
    assert read_all(server, "ended") == b"ab"


def test_a_topic_becomes_a_stream_by_its_setting(server: PidleaseServer) -> None:
    settings = {"pidlease.stream.type": "text/plain"}
    body = json.dumps({"name": "plain", "partitions": 1}).encode()
    assert ask(server, "POST", "/v1/topics", body, JSON_TYPE)[0] == 201
    assert produce(server, "plain", b"x") == [None]
    assert send(server, "GET", "plain").code == "unknown_stream"
    assert send(server, "PUT", "plain", b"", TEXT).code == "stream_conflict"
    changed = ask(server, "PATCH", "/v1/topics/plain/settings", json.dumps(settings).encode(),
                  JSON_TYPE)  # fmt: skip
    assert changed[0] == 200, changed
    assert read_all(server, "plain") == b"x"
    settings = {"pidlease.stream.type": "no type"}
    answer = ask(server, "PATCH", "/v1/topics/plain/settings", json.dumps(settings).encode(),
                 JSON_TYPE)  # fmt: skip
    assert (answer[0], answer[1]["field"]) == (400, "pidlease.stream.type")


def test_a_stream_made_of_an_empty_topic_keeps_its_records(server: PidleaseServer) -> None:
    """As a consumer makes the topic that subscribes before the stream is there."""
    shorter = {"name": "early", "partitions": 1, "settings": {"retention.ms": "60000"}}
    assert ask(server, "POST", "/v1/topics", json.dumps(shorter).encode(), JSON_TYPE)[0] == 201
    assert send(server, "PUT", "early", b"", TEXT).status == 201
    settings = ask(server, "GET", "/v1/topics/early", b"", {})[1]["settings"]
    kept = [settings[f"retention.{each}"]["value"] for each in ("ms", "bytes")]
    assert kept == ["-1", "-1"]
    assert settings["pidlease.stream.type"]["value"] == "text/plain"
    assert "pidlease.stream.ttl" not in settings


@pytest.mark.parametrize("path", ["__ds", "__ds/subscriptions/one"])
def test_the_paths_of_subscriptions_are_no_streams(server: PidleaseServer, path: str) -> None:
    for method in ("PUT", "POST", "GET", "DELETE"):
        reply = send(server, method, path, b"", TEXT)
        assert reply.status == 400
        assert reply.code == "invalid_stream", reply
    assert send(server, "PUT", "__ds2/x", "a", TEXT).status == 201
    assert send(server, "DELETE", "__ds2/x").status == 204


def test_blanks_after_a_producer_id_are_none_of_it(server: PidleaseServer) -> None:
    """A retry by another way may have them (RFC 9110, section 5.5)."""
    send(server, "PUT", "till", b"", TEXT)
    first = TEXT | numbered(0)
    assert send(server, "POST", "till", "once", first).status == 200
    again = {name: f"{value} \t" for name, value in first.items()}
    assert send(server, "POST", "till", "once", again).status == 204
    records = "/v1/topics/till/partitions/0/records"
    again["Content-Type"] = "application/octet-stream \t"
    status, answer = ask(server, "POST", records, b"twice", again)
    assert (status, answer.get("duplicate")) == (200, True), answer
    assert read_all(server, "till") == b"once"


# ------------------------------------------------------------------ kills


def test_what_is_acknowledged_outlives_a_kill(server: PidleaseServer) -> None:
    made = {"Stream-TTL": "1000", "Content-Type": "text/plain; charset=utf-8"}
    send(server, "PUT", "kept", "a", made)
    assert send(server, "POST", "kept", "b", TEXT | {"Stream-Seq": "07"}).status == 204
    assert send(server, "POST", "kept", "c", TEXT | numbered(0)).status == 200
    send(server, "PUT", "fork", b"", {"Stream-Forked-From": "/v1/stream/kept"})
    before = send(server, "HEAD", "kept")
    kill(server)
    after = send(server, "HEAD", "kept")
    names = ("Content-Type", "Stream-TTL", "Stream-Next-Offset")
    assert [after.headers[each] for each in names] == [before.headers[each] for each in names]
    refused = send(server, "POST", "kept", "x", TEXT | {"Stream-Seq": "06"})
    assert refused.code == "stream_seq_conflict"
    again = send(server, "POST", "kept", "c", TEXT | numbered(0))
    assert (again.status, again.headers["Producer-Seq"]) == (204, "0")
    closed = send(server, "POST", "kept", b"", CLOSE | numbered(1))
    assert (closed.status, closed.next_offset) == (204, before.next_offset)
    assert send(server, "DELETE", "kept").status == 204
    kill(server)
    assert send(server, "HEAD", "kept").status == 410
    assert send(server, "PUT", "kept", b"", TEXT).code == "stream_conflict"
    assert read_all(server, "fork") == b"abc"
    assert not send(server, "GET", "fork").is_closed
    assert send(server, "DELETE", "fork").status == 204
    until(lambda: send(server, "HEAD", "kept").status == 404, "the source to go")


@pytest.mark.parametrize("body", [b"", b"end"])
def test_a_close_outlives_a_kill(server: PidleaseServer, body: bytes) -> None:
    path = f"closed/{len(body)}"
    send(server, "PUT", path, "a", TEXT)
    tail = send(server, "POST", path, body, TEXT | CLOSE | numbered(0)).next_offset
    for _ in range(2):
        head = send(server, "HEAD", path)
        assert (head.is_closed, head.next_offset) == (True, tail)
        refused = send(server, "POST", path, "x", TEXT)
        assert (refused.status, refused.is_closed, refused.next_offset) == (409, True, tail)
        again = send(server, "POST", path, body, TEXT | CLOSE | numbered(0))
        assert (again.status, again.is_closed, again.next_offset) == (204, True, tail)
        assert send(server, "POST", path, "x", TEXT | numbered(1)).code == "stream_closed"
        assert send(server, "POST", path, b"", CLOSE).status == 204
        assert read_all(server, path) == b"a" + body
        kill(server)


#: Of all steps on files, in `make test` each so many.
_STRIDE = 1 if SOAK else 9


@pytest.mark.timeout(1800 if SOAK else 120)
@pytest.mark.parametrize("when", ["before", "after"] if SOAK else ["after"])
def test_a_kill_at_any_step_on_files(tmp_path: Path, when: str) -> None:
    """The server dies at one step on the streams' files after the other; the client repeats."""
    count = deaths = 0
    with PidleaseServer(tmp_path) as server:
        while True:
            count += _STRIDE
            name = f"s{count}"
            settings = {"faults": f"kill {when} * *{name}x* {count}"}
            server.stop()
            server.restart({**settings})
            died = _live_through(server, name)
            deaths += died
            if not died:
                break
    assert deaths > (20 if SOAK else 1)


def _live_through(server: PidleaseServer, name: str) -> bool:
    """Use streams; return whether the server died."""
    died = False

    def sure(method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
        nonlocal died
        given = {key.replace("_", "-"): value for key, value in headers.items()}
        try:
            return send(server, method, path, body, TEXT | given)
        except (OSError, http.client.HTTPException):
            died = True
            until(lambda: not server.alive, "the server's death")
            server.restart({})
            return send(server, method, path, body, TEXT | given)

    producer = {"Producer_Id": "p", "Producer_Epoch": "0"}
    one, two = f"{name}x/one", f"{name}x/two"
    assert sure("PUT", one, b"a").status in (200, 201)
    for seq, value in enumerate((b"b", b"c")):
        assert sure("POST", one, value, **producer, Producer_Seq=str(seq)).status in (200, 204)
    source = f"/v1/stream/{one}"
    fork = {"Stream_Forked_From": source, "Stream_Fork_Offset": ZERO, "Stream_Fork_Sub_Offset": "1"}
    assert sure("PUT", two, b"z", **fork).status in (200, 201)
    last = sure("POST", one, b"d", **producer, Producer_Seq="2", Stream_Closed="true")
    assert last.is_closed
    assert read_all(server, one) == b"abcd"
    assert read_all(server, two) == b"az"
    assert sure("DELETE", one).status in (204, 410)
    assert sure("DELETE", two).status in (204, 404)
    until(lambda: send(server, "HEAD", one).status == 404, "the source to go")
    assert send(server, "HEAD", two).status == 404
    return died


def test_a_fork_is_one_of_the_topic_that_was_its_source(server: PidleaseServer) -> None:
    """Once a fork showed the records of a later stream that had its source's name."""
    assert send(server, "PUT", "origin", "old", TEXT).status == 201
    fork = {"Stream-Forked-From": "/v1/stream/origin"}
    assert send(server, "PUT", "descendant", b"", fork).status == 201
    assert read_all(server, "descendant") == b"old"
    assert ask(server, "DELETE", "/v1/topics/origin")[0] == 204
    assert send(server, "PUT", "origin", "new", TEXT).status == 201
    assert send(server, "GET", "descendant?offset=-1").status == 404
    assert send(server, "DELETE", "origin").status == 204
    assert send(server, "PUT", "origin", "newer", TEXT).status == 201


def test_kafkas_tools_leave_a_fork_alone(server: PidleaseServer) -> None:
    """Settings that say whose records a stream has are not for clients."""
    assert send(server, "PUT", "above", "1", TEXT).status == 201
    fork = {"Stream-Forked-From": "/v1/stream/above"}
    assert send(server, "PUT", "below", b"", fork).status == 201
    admin = AdminClient({"bootstrap.servers": server.bootstrap})

    def change(name: str, value: str, operation: object) -> None:
        entry = _library.ConfigEntry(name, value, incremental_operation=operation)
        resource = _library.ConfigResource(
            _library.ResourceType.TOPIC, "below", incremental_configs=[entry]
        )
        for each in admin.incremental_alter_configs([resource]).values():
            each.result(WAIT_S)

    for name, operation in (
        ("pidlease.stream.source", _library.AlterConfigOpType.SET),
        ("pidlease.stream.source", _library.AlterConfigOpType.DELETE),
        ("pidlease.stream.deleted", _library.AlterConfigOpType.SET),
        ("pidlease.stream.ttl", _library.AlterConfigOpType.SET),
    ):
        with pytest.raises(KafkaException) as refused:
            change(name, "1", operation)
        assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    change("pidlease.policies", "none,epoch", _library.AlterConfigOpType.SET)
    new = _library.NewTopic("beside", 1, config={"pidlease.stream.source": "above"})
    with pytest.raises(KafkaException):
        admin.create_topics([new])["beside"].result(WAIT_S)
    # The old request names all settings anew.
    old = _library.ConfigResource(
        _library.ResourceType.TOPIC, "below", {"pidlease.stream.type": "text/plain"}
    )
    with pytest.deprecated_call():
        admin.alter_configs([old])[old].result(WAIT_S)
    assert read_all(server, "below") == b"1"


def test_a_stream_runs_no_script_in_a_browser(server: PidleaseServer) -> None:
    """It would act for the user who opens it, with the login that the browser keeps."""
    html = {"Content-Type": "text/html"}
    assert send(server, "PUT", "page", "<script>1</script>", html).status == 201
    policy = send(server, "GET", "page?offset=-1").headers["Content-Security-Policy"]
    assert policy == "sandbox; default-src 'none'"


# ------------------------------------------------------------------ races, and what is bounded


def test_a_stream_without_its_first_record_does_not_exist(server: PidleaseServer) -> None:
    """As a kill between the two steps of a creation leaves it."""
    settings = {"pidlease.stream.type": "text/plain", "pidlease.stream.initial": "1"}
    for name in ("half", "left"):
        body = json.dumps({"name": name, "partitions": 1, "settings": settings}).encode()
        assert ask(server, "POST", "/v1/topics", body, JSON_TYPE)[0] == 201
    assert send(server, "GET", "half").status == 404
    assert send(server, "POST", "half", "x", TEXT).status == 404
    assert send(server, "PUT", "half", "first", TEXT).status == 201
    assert read_all(server, "half") == b"first"
    until(lambda: ask(server, "GET", "/v1/topics/left")[0] == 404, "the rest to be removed")


@pytest.mark.parametrize("size", [0, 100])
def test_a_stream_that_cannot_be_read_is_kept(tmp_path: Path, size: int) -> None:
    """Once a server removed it at its start, as one without its first record."""
    with PidleaseServer(tmp_path) as server:
        for name in ("kept", "expires"):
            assert send(server, "PUT", name, "abc", TEXT).status == 201
        assert send(server, "POST", "kept", "d" * 200, TEXT).status == 204
        server.kill9()
        (segment,) = (server.data_dir / "logs" / "kept-0").glob("*.log")
        content = segment.read_bytes()
        segment.write_bytes(bytes(size) + content[size:] if size else b"")
        server.restart()
        gone = {"Stream-Expires-At": "2020-01-01T00:00:00Z"}
        assert send(server, "PUT", "over", b"", TEXT | gone).status == 201
        topics = "/v1/topics/{}"
        until(lambda: ask(server, "GET", topics.format("over"))[0] == 404, "what is over to go")
        time.sleep(1.5)  # it was old enough to be removed after a second
        for method in ("GET", "HEAD", "POST"):
            assert send(server, method, "kept", b"x" * (method == "POST"), TEXT).status == 503
        assert send(server, "PUT", "kept", "[1]", JSON_TYPE).status == 503
        assert ask(server, "GET", topics.format("kept"))[0] == 200
        assert segment.exists()
        assert read_all(server, "expires") == b"abc"


def test_a_stream_without_records_is_kept(tmp_path: Path) -> None:
    """Created with a record, which was removed by DeleteRecords."""
    with PidleaseServer(tmp_path) as server:
        assert send(server, "PUT", "kept", "abc", TEXT).status == 201
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        for removed in admin.delete_records([TopicPartition("kept", 0, -1)]).values():
            assert removed.result(WAIT_S).low_watermark == 1
        kill(server)
        gone = {"Stream-Expires-At": "2020-01-01T00:00:00Z"}
        assert send(server, "HEAD", "kept").status == 200
        assert send(server, "PUT", "over", b"", TEXT | gone).status == 201
        until(lambda: ask(server, "GET", "/v1/topics/over")[0] == 404, "what is over to go")
        time.sleep(1.5)  # it was old enough to be removed after a second
        assert send(server, "POST", "kept", "d", TEXT).status == 204
        assert send(server, "GET", f"kept?offset={ZERO[:-1]}1").body == b"d"


def test_appends_race_a_close(server: PidleaseServer) -> None:
    send(server, "PUT", "race", b"", JSON_TYPE)
    begin = threading.Barrier(17)

    def append(number: int) -> Reply:
        begin.wait()
        if number == 16:
            return send(server, "POST", "race", b"", CLOSE)
        return send(server, "POST", "race", str(number), JSON_TYPE | numbered(0, name=str(number)))

    with ThreadPoolExecutor(17) as threads:
        replies = list(threads.map(append, range(17)))
    assert replies[16].status == 204
    stored = {number for number in range(16) if replies[number].status == 200}
    refused = {number for number in range(16) if replies[number].status == 409}
    assert stored | refused == set(range(16))
    assert all(replies[number].is_closed for number in refused)
    assert sorted(read_json(server, "race")) == sorted(stored)


def test_creations_race(server: PidleaseServer) -> None:
    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda _: send(server, "PUT", "born", "a", TEXT), range(8)))
    assert sorted(reply.status for reply in replies) == [200] * 7 + [201]
    assert read_all(server, "born") == b"a"


def test_bodies_and_headers_are_bounded(server: PidleaseServer) -> None:
    send(server, "PUT", "small", b"", TEXT)
    assert send(server, "POST", "small", b"x" * 70_000, TEXT).code == "body_too_large"
    assert send(server, "POST", "small", "x", TEXT | {"Stream-Seq": "9" * 300}).status == 400
    assert send(server, "PUT", "x" * 300, b"", TEXT).code == "invalid_stream"
    assert send(server, "GET", f"small?offset={ZERO[:-1]}7").code == "invalid_stream"
    assert send(server, "GET", "small?live=maybe&offset=-1").code == "invalid_stream"
    send(server, "PUT", "array", b"", JSON_TYPE)
    many = json.dumps([1] * 10_001)
    assert send(server, "POST", "array", many, JSON_TYPE).code == "body_too_large"
    deep = "[" * 30_000 + "]" * 30_000
    assert send(server, "POST", "array", deep, JSON_TYPE).code == "invalid_json"
    assert send(server, "POST", "array", "[NaN]", JSON_TYPE).code == "invalid_json"
    assert read_json(server, "array") == []


def test_pages_are_bounded(server: PidleaseServer) -> None:
    send(server, "PUT", "long", b"", TEXT)
    parts = [bytes([65 + number % 26]) * 60_000 for number in range(40)]
    for seq, part in enumerate(parts):
        assert send(server, "POST", "long", part, TEXT | numbered(seq)).status == 200
    page = send(server, "GET", "long")
    assert len(page.body) < 1 << 21
    assert page.headers["Stream-Up-To-Date"] is None
    assert "max-age" in page.headers["Cache-Control"]
    assert read_all(server, "long") == b"".join(parts)


def test_a_stop_ends_live_readers(tmp_path: Path) -> None:
    settings = {"stream_poll_seconds": "30"}
    with PidleaseServer(tmp_path, settings=settings) as server:
        send(server, "PUT", "live", b"", TEXT)
        with (
            socket.create_connection((LOOPBACK, server.http_port), 20) as events,
            ThreadPoolExecutor(1) as threads,
        ):
            request = b"GET /v1/stream/live?offset=-1&live=sse HTTP/1.1\r\nHost: x\r\n\r\n"
            events.sendall(request)
            content = b""
            while b"upToDate" not in content:
                content += events.recv(4096)
            poll = threads.submit(send, server, "GET", f"live?offset={ZERO}&live=long-poll")
            time.sleep(0.1)
            began = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began < 20
            assert poll.result().status == 204
            while content := events.recv(4096):
                assert b"event" not in content


def test_an_expired_stream_is_removed_without_a_request(server: PidleaseServer) -> None:
    send(server, "PUT", "brief", "x", TEXT | {"Stream-TTL": "1"})
    until(lambda: ask(server, "GET", "/v1/topics/brief")[0] == 404, "the topic to go")


@pytest.mark.parametrize("path", ["%FF", "%FE", "a%C3"])
def test_a_path_that_is_no_utf8_is_no_streams(server: PidleaseServer, path: str) -> None:
    """Once all these were one and the same stream."""
    reply = send(server, "PUT", path, "x", TEXT)
    assert reply.status == 400
    assert b"is no UTF-8" in reply.body
    assert send(server, "GET", path).status == 400
