"""The operators' routes of a server with 10,000 partitions and a million producers."""

import asyncio
import http.client
import time
from pathlib import Path
from typing import Final

import pytest
from fastapi import FastAPI

from pidlease.core.pid import Policy, make_pid
from pidlease.engine.outcome_history import SAMPLES_KEPT, OutcomeHistory
from pidlease.observability.loop_lag import LoopLag
from pidlease.storage.topics.topic_store import Topic
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.http.console_answers import ConsoleSources
from proxy.http.http_listener import add_http_api
from tests.benchmarks.scale.full_server import as_in_a_server, fill, start
from tests.crash.seeds import SOAK
from tests.http_api.appending import listening

TOPICS, PARTITIONS_EACH, PRODUCERS = 1_000, 10, 1_000_000
#: What the issue of the console asks for.
ANSWER_SECONDS_MAX: Final = 0.2
REQUESTS: Final = 10
_PID: Final = make_pid(Policy.KAFKA, 1001 + PRODUCERS // 2)


@pytest.mark.skipif(not SOAK, reason="load, and a bound in seconds: make soak")
@pytest.mark.timeout(1800)
async def test_each_route_answers_soon_and_holds_up_nothing(tmp_path: Path) -> None:
    as_in_a_server()
    engine, pool = await start(tmp_path)
    for number in range(TOPICS):
        await engine.create_topic(Topic.new(f"topic-{number:04}", PARTITIONS_EACH))
    fill(engine, PRODUCERS, 1)
    engine.ready = True
    history = OutcomeHistory(lambda: engine, LoopLag(1))
    for n in range(SAMPLES_KEPT + 1):
        history.sample(n)
    app = FastAPI()
    add_http_api(app, lambda: engine, lambda: None, console=ConsoleSources(history))
    failed = []
    async with listening(app) as port:
        for path in (
            "/v1/outcomes", "/v1/history", "/v1/partitions", "/v1/partitions?limit=500",
            "/v1/partitions?search=nothing", "/v1/partitions?state=stopped",
            "/v1/partitions?after=topic-0999-3", "/v1/leases", "/v1/leases?limit=500",
            "/v1/leases?search=nothing", "/v1/leases?after=900000", "/v1/refusals",
            f"/v1/producers/{_PID}", f"/v1/producers/{_PID}/events",
            "/v1/producers?limit=100", f"/v1/producers?pid={_PID}",
            "/v1/producers?topic=topic-0500&limit=100", "/v1/producers?name=nothing",
            "/v1/topics/topic-0001/partitions/0/offset?timestamp_ms=0",
        ):  # fmt: skip
            async with LoopLag(0.001) as lag:
                seconds = await asyncio.to_thread(_ask, port, path)
            usual, longest = sorted(seconds)[REQUESTS // 2], max(seconds)
            print(f"{path}: {usual * 1000:.1f} ms, at most {longest * 1000:.1f};"
                  f" the loop at most {lag.longest * 1000:.1f} ms late")  # fmt: skip
            if usual > ANSWER_SECONDS_MAX:
                failed.append(path)
    began = time.monotonic()
    history.sample(10**6)
    print(f"a sample of the history: {(time.monotonic() - began) * 1000:.2f} ms")
    await engine.stop()
    pool.close()
    assert failed == []


def _ask(port: int, path: str) -> list[float]:
    """Send a request again and again; return the seconds of each."""
    found = []
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=60)
    try:
        for _ in range(REQUESTS):
            began = time.monotonic()
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            assert response.status == 200, path
            found.append(time.monotonic() - began)
    finally:
        connection.close()
    return found
