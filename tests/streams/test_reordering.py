"""Appends that overtook another on the network wait for it, on streams and on topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from pidlease.engine.early_appends import EARLY_MAX
from tests.http_api.appending import RAW, path_of
from tests.http_api.lives import ask, make_topic, read_back
from tests.servers.pidlease import PidleaseServer
from tests.streams.stream_client import TEXT, numbered, read_all, send

_WAIT_MS = 3000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PidleaseServer]:
    settings = {"http_reorder_ms": str(_WAIT_MS)}
    with PidleaseServer(tmp_path_factory.mktemp("reordering"), settings=settings) as server:
        make_topic(server)
        yield server


Append = Callable[[int, str], int]


class _Gaps(NamedTuple):
    """The gaps that operators see: counted as appends over HTTP and Kafka, listed, and logged."""

    http: float
    kafka: float
    listed: int
    logged: int


def _gaps(server: PidleaseServer) -> _Gaps:
    by_http, by_kafka = (
        server.metric("pidlease_batches_judged_total", outcome="gap", door=door)
        for door in ("http", "kafka")
    )
    _, found = ask(server, "GET", "/v1/refusals?kind=gap&limit=500")
    logged = (server.directory / "pidlease.log").read_text().count("a batch was refused: gap")
    return _Gaps(by_http, by_kafka, len(found["refusals"]), logged)


@pytest.fixture(params=["topic", "stream"])
def append(request: pytest.FixtureRequest, server: PidleaseServer) -> Append:
    """Appends a request of a producer by its number and its id; returns the status."""
    if request.param == "stream":
        send(server, "PUT", "s", b"", TEXT)
        return lambda seq, name: (
            send(server, "POST", "s", f"{seq},", TEXT | numbered(seq, name=name)).status
        )
    return lambda seq, name: ask(
        server, "POST", path_of(), f"{seq},".encode(), RAW | numbered(seq, name=name)
    )[0]


def test_requests_in_any_order_are_stored_in_order(
    server: PidleaseServer, append: Append, request: pytest.FixtureRequest
) -> None:
    name = request.node.name
    before, gaps = len(_stored(server, request)), _gaps(server)
    with ThreadPoolExecutor(20) as threads:
        waiting = []
        for seq in reversed(range(20)):
            waiting.append(threads.submit(append, seq, name))
            time.sleep(0.01)
        assert [each.result() for each in waiting] == [200] * 20
    assert _stored(server, request)[before:] == "".join(f"{seq}," for seq in range(20))
    assert append(7, name) in (200, 204)
    assert _stored(server, request)[before:] == "".join(f"{seq}," for seq in range(20))
    assert _gaps(server) == gaps, "no client got a refusal"


def test_a_gap_that_stays_is_refused(server: PidleaseServer, append: Append) -> None:
    before = _gaps(server)
    began = time.monotonic()
    assert append(1, "alone") == 409
    # Timers of uvloop may be some ms early.
    assert time.monotonic() - began > _WAIT_MS / 1000 * 0.9
    gaps = _gaps(server)
    assert gaps[:3] == (before.http + 1, before.kafka, before.listed + 1)
    assert append(0, "alone") == 200
    assert append(1, "alone") == 200


def test_so_many_wait_and_no_more(server: PidleaseServer, append: Append) -> None:
    before = _gaps(server)
    with ThreadPoolExecutor(EARLY_MAX + 1) as threads:
        seqs = range(1, EARLY_MAX + 2)
        waiting = [threads.submit(append, seq, "many") for seq in seqs]
        refused = sum(each.result() == 409 for each in waiting)
    assert refused == EARLY_MAX + 1
    assert append(0, "many") == 200
    gaps = _gaps(server)
    assert gaps[:3] == (before.http + refused, before.kafka, before.listed + refused)


def _stored(server: PidleaseServer, request: pytest.FixtureRequest) -> str:
    if "stream" in request.node.name:
        return read_all(server, "s").decode()
    return "".join(read_back(server))
