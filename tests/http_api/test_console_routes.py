"""What operators look at, as JSON: counts, partitions, producers and events, leases, refusals."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from pidlease.engine.engine import Engine, EngineConfig
from pidlease.engine.outcome_history import OutcomeHistory
from pidlease.engine.recent_events import NO_PID, RecentEvents
from pidlease.http_api.console_messages import ROWS_MAX
from pidlease.observability.loop_lag import LoopLag
from pidlease.storage.topics.topic_store import Topic
from proxy.http import console_answers
from proxy.http.console_answers import Broker, ConsoleSources
from proxy.http.refusal_actions import ACTIONS, docs_base, runbook_of
from tests.http_api.appending import RAW, path_of, producer, values
from tests.http_api.serving import Http, http
from tests.http_api.test_idempotency_key import OTHERS
from tests.kafka_listener.harness import Wanted

_SHORT: Final = Wanted(engine=EngineConfig(lease_ms=60_000, ring_capacity=5))


async def topic(door: Http, name: str = "t", partitions: int = 1) -> None:
    await door.server.engine.create_topic(Topic.new(name, partitions))


async def append(
    door: Http, name: str, epoch: int, seq: int, *content: str, partition: int = 0
) -> int:
    """Append as a producer with its own id; return the status."""
    response = await door.client.post(
        path_of("t", partition),
        content=json.dumps(values(*(content or ("a",)))),
        headers=[
            (b"content-type", b"application/json"),
            *(
                (key.encode(), str(each).encode())
                for key, each in producer(name, epoch, seq).items()
            ),
        ],
    )
    return response.status_code


async def leased_append(door: Http, lease: dict[str, Any], first: int, count: int = 1) -> int:
    """Append under a leased PID; return the status."""
    status, _ = await door.post(
        path_of(),
        {
            "records": [{"value": str(number)} for number in range(count)],
            "pid": lease["pid"], "generation": lease["generation"],
            "first_sequence": first, "last_sequence": first + count - 1,
        },
    )  # fmt: skip
    return status


async def got(door: Http, path: str, **query: object) -> dict[str, Any]:
    status, answer = await door.get(path, **query)
    assert status == 200, answer
    return answer


# ---------------------------------------------------------------------- counts


async def test_outcomes_by_policy_and_topic(tmp_path: Path) -> None:
    sources = ConsoleSources(brokers=lambda: [Broker(7, "kafka:9092", connected=True)])
    async with http(tmp_path, console=sources) as door:
        await topic(door)
        assert [await append(door, "p", 0, seq) for seq in (0, 0, 5)] == [200, 200, 409]
        found = await got(door, "/v1/outcomes")
    rows = {(row["policy"], row["outcome"]): row["batches"] for row in found["outcomes"]}
    assert rows == {("epoch", "appended"): 1, ("epoch", "duplicate"): 1, ("epoch", "gap"): 1}
    assert (found["records"], found["batches"], found["partitions"]) == (1, 1, 1)
    (of_topic,) = found["by_topic"]
    assert (of_topic["topic"], of_topic["records"], of_topic["duplicates"], of_topic["gaps"]) == (
        "t", 1, 1, 1,
    )  # fmt: skip
    assert of_topic["refused"] == of_topic["fenced"] == 0
    assert found["brokers"] == [{"broker": 7, "address": "kafka:9092", "connected": True}]


async def test_history_has_what_happened_between_samples(tmp_path: Path) -> None:
    engines: list[Engine] = []
    history = OutcomeHistory(lambda: engines[0] if engines else None, LoopLag(1), kept=3)
    history.sample(1)  # no engine yet
    async with http(tmp_path, console=ConsoleSources(history)) as door:
        await topic(door)
        assert (await got(door, "/v1/history"))["samples"] == []
        engines.append(door.server.engine)
        history.sample(1000)
        await append(door, "p", 0, 0, "a", "b")
        history.sample(2000)
        history.sample(3000)
        found = await got(door, "/v1/history")
        assert [(each["at_ms"], each["records"]) for each in found["samples"]] == [
            (2000, 2), (3000, 0),
        ]  # fmt: skip
        page = await got(door, "/v1/history", limit=1)
        assert (len(page["samples"]), page["more"]) == (1, True)
        later = await got(door, "/v1/history", after_ms=2000)
        assert [each["at_ms"] for each in later["samples"]] == [3000]
        for at_ms in range(4000, 9000, 1000):
            history.sample(at_ms)
        found = await got(door, "/v1/history")
        assert [each["at_ms"] for each in found["samples"]] == [6000, 7000, 8000]


# ---------------------------------------------------------------------- partitions


async def test_partitions_in_pages(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        for name, partitions in (("b", 2), ("a-1", 3), ("A", 1), ("c", 1)):
            await topic(door, name, partitions)
        found: list[str] = []
        after = ""
        while True:
            page = await got(door, "/v1/partitions", limit=2, after=after)
            found += [f"{row['topic']}-{row['partition']}" for row in page["partitions"]]
            if page["next"] is None:
                break
            after = page["next"]
        assert found == ["A-0", "a-1-0", "a-1-1", "a-1-2", "b-0", "b-1", "c-0"]
        for search, count in (("a", 4), ("A-1", 3), ("nothing", 0)):
            rows = (await got(door, "/v1/partitions", search=search))["partitions"]
            assert len(rows) == count
        # A topic that was deleted meanwhile.
        rows = (await got(door, "/v1/partitions", after="b-7"))["partitions"]
        assert [row["topic"] for row in rows] == ["c"]


async def test_a_partition_tells_its_state(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await topic(door)
        await append(door, "p", 0, 0, "a", "b")
        (row,) = (await got(door, "/v1/partitions", state="serving"))["partitions"]
        assert row.pop("size_bytes") > 0
        assert row == {
            "topic": "t", "partition": 0, "state": "serving", "reason": "",
            "owner": "this server", "writer": "", "log_start": 0, "log_end": 2, "producers": 1,
            "in_flight": 0,
        }  # fmt: skip
        partition = door.server.engine.partition("t", 0)
        assert partition is not None
        partition.log.stop("the disk is on fire")
        assert (await got(door, "/v1/partitions", state="serving"))["partitions"] == []
        (row,) = (await got(door, "/v1/partitions", state="stopped"))["partitions"]
        assert (row["state"], row["reason"]) == ("stopped", "the disk is on fire")


async def test_partitions_change_while_they_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with http(tmp_path) as door:
        for number in range(5):
            await topic(door, f"t{number}", 2)
        engine = door.server.engine
        partitions = console_answers._partitions

        def forget_one(current: Engine, name: str) -> Any:
            if name == "t1":
                engine._table.hide(engine.topics["t2"])
            return partitions(current, name)

        monkeypatch.setattr(console_answers, "_partitions", forget_one)
        rows = (await got(door, "/v1/partitions"))["partitions"]
        assert [row["topic"] for row in rows] == [f"t{n}" for n in (0, 0, 1, 1, 3, 3, 4, 4)]


# ---------------------------------------------------------------------- producers


async def test_a_named_producer_with_its_timeline(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await topic(door)
        first = await door.lease(name="load")
        for number in range(7):
            assert await leased_append(door, first, number) == 200
        assert await leased_append(door, first, 6) == 200
        assert await leased_append(door, first, 9) == 409
        second = await door.lease(name="load")
        assert await leased_append(door, first, 7) == 409
        found = await got(door, f"/v1/producers/{first['pid']}")
        assert (found["name"], found["policy"], found["fence"]) == (
            "load", "strict", second["generation"],
        )  # fmt: skip
        assert not found["replaced"]
        assert found["ends_ms"] > found["granted_ms"]
        (row,) = found["partitions"]
        assert (row["generation"], row["last_sequence"], row["last_offset"]) == (
            first["generation"], 6, 6,
        )  # fmt: skip
        assert [batch["offset"] for batch in row["batches"]] == [2, 3, 4, 5, 6]

        events = (await got(door, f"/v1/producers/{first['pid']}/events"))["events"]
        assert [each["kind"] for each in events] == [
            "fenced", "granted", "gap", "duplicate", "granted", "leased",
        ]  # fmt: skip
        assert events[0]["known_generation"] == second["generation"]
        assert (events[2]["first_sequence"], events[2]["expected"]) == (9, 7)
        assert {each["name"] for each in events} == {"load"}
        numbers = [each["number"] for each in events]
        assert numbers == sorted(numbers, reverse=True)
        page = await got(door, f"/v1/producers/{first['pid']}/events", limit=2)
        assert [each["number"] for each in page["events"]] == numbers[:2]
        rest = await got(door, f"/v1/producers/{first['pid']}/events", before=page["next"])
        assert [each["number"] for each in rest["events"]] == numbers[2:]
        assert rest["next"] is None


async def test_a_name_with_another_pid(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await topic(door)
        first = await door.lease(name="load")
        renewed = await door.lease(
            name="load", pid=first["pid"], generation=first["generation"], renew=True
        )
        assert renewed["pid"] != first["pid"]
        old = await got(door, f"/v1/producers/{first['pid']}")
        assert (old["replaced"], old["fence"]) == (True, None)
        new = await got(door, f"/v1/producers/{renewed['pid']}")
        assert (new["former"], new["fence"]) == (first["pid"], renewed["generation"])
        events = (await got(door, f"/v1/producers/{first['pid']}/events"))["events"]
        assert (events[0]["kind"], events[0]["former"]) == ("granted", first["pid"])
        await door.server.engine.naming.release("load")
        events = (await got(door, f"/v1/producers/{renewed['pid']}/events"))["events"]
        assert events[0]["kind"] == "released"


async def test_a_producer_with_its_own_id(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await topic(door, partitions=3)
        for partition in (2, 0, 1):
            assert await append(door, "p", 0, 0, partition=partition) == 200
        assert await append(door, "p", 0, 3, partition=1) == 409
        found = await got(door, "/v1/producers/-1", name="p", limit=2)
        assert (found["pid"], found["name"], found["policy"]) == (-1, "p", "epoch")
        assert [row["partition"] for row in found["partitions"]] == [0, 1]
        rest = await got(door, "/v1/producers/-1", name="p", after=found["next"])
        assert [row["partition"] for row in rest["partitions"]] == [2]
        assert rest["next"] is None
        (event,) = (await got(door, "/v1/producers/-1/events", name="p"))["events"]
        assert (event["pid"], event["name"], event["kind"]) == (-1, "p", "gap")
        assert (await door.get("/v1/producers/-1", name="nobody"))[0] == 404
        assert (await door.get("/v1/producers/12345"))[0] == 410


async def test_the_end_of_a_lease_is_an_event(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await topic(door)
        lease = await door.lease()
        door.server.let_leases_end()
        assert (await door.get(f"/v1/producers/{lease['pid']}"))[0] == 410
        events = (await got(door, f"/v1/producers/{lease['pid']}/events"))["events"]
        assert [each["kind"] for each in events] == ["ended", "leased"]


# ---------------------------------------------------------------------- refusals


async def test_refusals_in_groups(tmp_path: Path) -> None:
    async with http(tmp_path, _SHORT) as door:
        await topic(door)
        assert await append(door, "p", 1, 0) == 200
        for seq in (5, 6, 7):
            assert await append(door, "p", 1, seq) == 409
        assert await append(door, "p", 0, 1) == 409
        assert await append(door, "p", 1, 0) == 200  # a duplicate is no refusal
        found = await got(door, "/v1/refusals")
        groups = [(each["kind"], each["count"]) for each in found["groups"]]
        assert groups == [("gap", 3), ("fenced", 1)]
        assert all(each["action"] for each in found["groups"])
        assert [each["kind"] for each in found["refusals"]] == ["fenced", "gap", "gap", "gap"]
        assert [each["first_sequence"] for each in found["refusals"]] == [1, 7, 6, 5]
        only = await got(door, "/v1/refusals", kind="gap", topic="t", limit=2)
        assert [each["first_sequence"] for each in only["refusals"]] == [7, 6]
        rest = await got(door, "/v1/refusals", kind="gap", before=only["next"])
        assert [each["first_sequence"] for each in rest["refusals"]] == [5]
        assert (await got(door, "/v1/refusals", topic="other"))["groups"] == []


async def test_a_reused_key_is_a_refusal(tmp_path: Path) -> None:
    """Once an overlap, or a duplicate, of a producer with the mark of keys before its name."""
    async with http(tmp_path) as door:
        await topic(door)
        keyed = {**RAW, "idempotency-key": "order-1"}
        statuses = [
            (await door.client.post(path_of(), content=each, headers=keyed)).status_code
            for each in (b"a", b"a", *OTHERS)  # their digests are below and above
        ]
        assert statuses == [200, 200, *[422] * len(OTHERS)]
        found = await got(door, "/v1/refusals")
        outcomes = (await got(door, "/v1/outcomes"))["outcomes"]
    (group,) = found["groups"]
    assert (group["kind"], group["count"]) == ("key_reused", len(OTHERS))
    assert "new key for each request" in group["action"]
    for row in found["refusals"]:
        assert (row["pid"], row["name"], row["idempotency_key"]) == (-1, "", "order-1")
        assert "another body" in row["reason"]
        numbers = "generation", "first_sequence", "last_sequence", "expected", "known_generation"
        assert {row[each] for each in numbers} == {None}
    assert {row["outcome"]: row["batches"] for row in outcomes} == {
        "appended": 1, "duplicate": 1, "key_reused": len(OTHERS),
    }  # fmt: skip


async def test_refused_leases_are_refusals(tmp_path: Path) -> None:
    async with http(tmp_path, _SHORT) as door:
        await topic(door)
        for _ in range(5):
            await door.lease()
        assert (await door.post("/v1/leases", {"topic": "t", "partition": 0}))[0] == 503
        (group,) = (await got(door, "/v1/refusals"))["groups"]
        assert (group["kind"], group["count"]) == ("no_pid", 1)


def test_each_kind_of_refusal_has_an_action_and_a_page() -> None:
    from pidlease.engine.append_outcome import Status

    stored = {Status.APPENDED, Status.DUPLICATE}
    assert ACTIONS.keys() == {each.value for each in Status if each not in stored} | {NO_PID}
    docs = Path(__file__).parents[2] / "docs"
    assert docs_base().startswith("https://")
    for kind, action in ACTIONS.items():
        page, _, anchor = action.page.partition("/#")
        text = (docs / f"{page.rstrip('/')}.md").read_text()
        headings = [
            line.lstrip("# ").lower().replace(",", "").replace(" ", "-")
            for line in text.splitlines()
            if line.startswith("#")
        ]
        assert not anchor or anchor in headings, kind
        assert runbook_of(kind) == docs_base() + action.page


def test_events_are_bounded() -> None:
    recent = RecentEvents(kept=10)
    for number in range(100):
        recent.leased(number, 0)
        recent.no_pid("x" * 10_000, 0)
        recent.ended(number, "", 0)
    assert [len(each) for each in (recent.grants, recent.refusals, recent.endings)] == [10] * 3
    assert max(len(each.reason) for each in recent.refusals) <= 500


# ---------------------------------------------------------------------- leases


async def test_the_lease_table_in_pages(tmp_path: Path) -> None:
    async with http(tmp_path, _SHORT) as door:
        await topic(door)
        pids = [(await door.lease())["pid"] for _ in range(3)]
        pids.append((await door.lease(name="load-orders"))["pid"])
        assert await append(door, "Own", 0, 0) == 200
        found = await got(door, "/v1/leases")
        assert (found["used"], found["capacity"], found["names"]) == (5, 5, 1)
        assert found["granted"] == {"strict": 4}
        assert [each["pid"] for each in found["leases"]] == [*pids, -1]
        assert [each["name"] for each in found["leases"]][3:] == ["load-orders", "Own"]
        assert found["next"] is None
        listed, after = [], 0
        while after is not None:
            page = await got(door, "/v1/leases", limit=2, after=after)
            listed += [each["pid"] for each in page["leases"]]
            after = page["next"]
        assert listed == [*pids, -1]
        for query, count in (
            ({"named": True}, 2), ({"search": "ORD"}, 1), ({"search": "own"}, 1),
            ({"search": "nothing"}, 0), ({"search": "", "named": False}, 5),
        ):  # fmt: skip
            assert len((await got(door, "/v1/leases", **query))["leases"]) == count


async def test_a_search_of_leases_is_bounded_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_answers, "_SEARCHED_MAX", 40)
    monkeypatch.setattr(console_answers, "_SEARCHED_AT_ONCE", 10)
    async with http(tmp_path) as door:
        await topic(door)
        for number in range(95):
            await door.lease(name="last" if number == 94 else f"n{number}")
        found, requests, after = [], 0, 0
        while after is not None:
            page = await got(door, "/v1/leases", search="last", after=after)
            found += page["leases"]
            after, requests = page["next"], requests + 1
        assert ([each["name"] for each in found], requests) == (["last"], 3)


# ---------------------------------------------------------------------- offsets by time


async def test_an_offset_by_time(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await topic(door)
        for second in (1, 2, 3):
            record = {"value": "a", "timestamp_ms": second * 1000}
            assert (await door.post(path_of(), {"records": [record]}))[0] == 200
        path = "/v1/topics/t/partitions/0/offset"
        assert await got(door, path, timestamp_ms=1500) == {"offset": 1, "timestamp_ms": 2000}
        assert await got(door, path, timestamp_ms=3000) == {"offset": 2, "timestamp_ms": 3000}
        assert await got(door, path, timestamp_ms=9000) == {"offset": None, "timestamp_ms": None}
        assert (await door.get("/v1/topics/t/partitions/9/offset", timestamp_ms=0))[0] == 404
        assert (await door.get("/v1/topics/x/partitions/0/offset", timestamp_ms=0))[0] == 404


# ---------------------------------------------------------------------- refused requests


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/v1/history", {"limit": 0}),
        ("/v1/history", {"after_ms": "1_0"}),
        ("/v1/partitions", {"limit": ROWS_MAX + 1}),
        ("/v1/partitions", {"after": "no cursor"}),
        ("/v1/partitions", {"after": "t-99999999999"}),
        ("/v1/partitions", {"state": "fine"}),
        ("/v1/partitions", {"search": "x" * 257}),
        ("/v1/producers/x", {}),
        ("/v1/producers/-2", {}),
        ("/v1/producers/1/events", {"before": 0}),
        ("/v1/refusals", {"limit": "+1"}),
        ("/v1/leases", {"after": -1}),
        ("/v1/leases", {"named": "perhaps"}),
        ("/v1/topics/t/partitions/0/offset", {}),
        ("/v1/topics/t/partitions/0/offset", {"timestamp_ms": -1}),
    ],
)
async def test_invalid_requests(tmp_path: Path, path: str, query: dict[str, object]) -> None:
    async with http(tmp_path) as door:
        status, answer = await door.get(path, **query)
        assert (status, answer["code"]) == (400, "invalid_request")


async def test_other_methods_and_a_server_that_is_not_ready(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        paths = ("history", "outcomes", "partitions", "refusals", "leases", "producers/1",
                 "producers/1/events", "topics/t/partitions/0/offset")  # fmt: skip
        for path in paths:
            response = await door.client.put(f"/v1/{path}")
            assert response.status_code == 405
            assert "GET" in response.headers["allow"]
        door.server.engine.ready = False
        for path in paths:
            assert (await door.get(f"/v1/{path}", timestamp_ms=1))[0] == 503
