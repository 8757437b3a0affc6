"""No answer names a file or folder of the server, whatever went wrong with it; the log does."""

import re
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pidlease.core.log_config import FsyncPolicy
from pidlease.storage.file_faults import Fault, FaultPlan
from pidlease.storage.topics.topic_store import Topic
from proxy.ops.status_response import status_of
from tests.http_api.serving import Http, http
from tests.kafka_listener import harness
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import WireClient, creation, fetched
from tests.kafka_listener.harness import Wanted
from tests.kafka_listener.messages import FETCH

CREATE_TOPICS, INCREMENTAL_ALTER_CONFIGS = 19, 44
#: What is broken, once the server serves.
FULL = "fail-from before write * 1"
STOPPED = "fail-from before write *.log 1; fail-from before truncate *.log 1"
LOST = "fail-from=EIO before fsync * 1"
READ_ONLY = "; ".join(
    f"fail-from=EROFS before {each} * 1"
    for each in ("open", "write", "truncate", "rename", "remove", "make_folder", "fsync_folder")
)
DOUBTFUL = "fail-from=EIO before fsync_folder * 1; fail-from=EIO before rename * 2"


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> FaultPlan:
    """The faults of the server of a test; none at first."""
    found = FaultPlan("fail before write nothing-at-all 1")
    monkeypatch.setattr(harness, "FaultPlan", lambda _: found)
    return found


async def _ask(door: Http, client: WireClient) -> list[str]:
    """All that touches a file, over both protocols: the answers as text."""
    answers = []

    async def send(method: str, path: str, **more: Any) -> None:
        response = await door.client.request(method, path, **more)
        answers.append(f"{response.status_code} {method} {path}: {response.text}")

    record = {"records": [{"value": "a"}]}
    named = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
    for topic in ("t", "damaged"):
        path = f"/v1/topics/{topic}/partitions/0/records"
        for _ in range(2):
            await send("POST", path, json=record)
            await send("POST", path, json=record, headers=named)
            await send("GET", path)
    await send("POST", "/v1/leases", json={"topic": "t", "partition": 0})
    await send("POST", "/v1/leases", json={"topic": "t", "partition": 0, "name": "new"})
    await send("PATCH", "/v1/topics/t/settings", json={"retention.ms": "5000"})
    await send("PATCH", "/v1/topic-defaults", json={"retention.ms": "5000"})
    for path in ("/v1/topics", "/v1/producers", "/v1/topics/t"):
        await send("GET", path)
    for topic in ("t", "damaged"):
        answers += [repr(await client.produce(topic, batch([b"x"]))) for _ in range(2)]
        asked = fetched([(topic, 0, 0)])
        answers.append(repr(await client.call(FETCH, 11, **asked)))
    answers.append(repr(await client.call(CREATE_TOPICS, 5, **creation("third"))))
    answers.append(repr(await _altered(client)))
    engine = door.server.engine
    answers.append(repr(status_of(engine, 0)))
    return answers


async def _altered(client: WireClient) -> Any:
    config = {"name": "retention.ms", "config_operation": 0, "value": "7000"}
    resource = {"resource_type": 2, "resource_name": "t", "configs": [config]}
    return await client.call(
        INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False
    )


@pytest.mark.parametrize(
    "faults", [FULL, STOPPED, LOST, READ_ONLY, DOUBTFUL],
    ids=["full", "stopped", "lost", "read-only", "doubtful"],
)  # fmt: skip
async def test_no_answer_names_a_path(tmp_path: Path, plan: FaultPlan, faults: str) -> None:
    wanted = Wanted(faults="some", fsync=FsyncPolicy.BATCH)
    async with http(tmp_path, wanted) as door, await door.server.connect() as client:
        for name in ("t", "damaged", "gone"):
            await door.server.engine.create_topic(Topic.new(name, 1))
            await client.produce(name, batch([b"before"]))
        (segment,) = (tmp_path / "logs").glob("damaged-0/*.log")
        content = bytearray(segment.read_bytes())
        content[10] ^= 0xFF  # the length of its first batch
        segment.write_bytes(content)
        with capture_logs() as lines:
            planned = [Fault.parse(each) for each in faults.split(";")]
            plan._faults += planned
            try:
                answers = await _ask(door, client)
            finally:
                del plan._faults[1:]  # the server can stop
    assert any(each.seen for each in planned), "no fault fired"
    assert any(each.startswith("503") for each in answers), answers
    leaks = re.compile(rf"{re.escape(str(tmp_path))}|\.log\b|\.json\b|/tmp|logs/|topics/\.")
    found = [each for each in answers if leaks.search(_without_request(each))]
    assert not found, "\n".join(found)
    assert str(tmp_path) in repr(lines), "the log names it"


def _without_request(answer: str) -> str:
    """An answer without the address that was asked for."""
    return re.sub(r"^\d+ [A-Z]+ \S+: ", "", answer)
