"""Appends over HTTP: what is stored, what a retry is told, and what happens when it goes wrong."""

import asyncio
import base64
import json
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pidlease.core.log_config import FsyncPolicy
from pidlease.core.pid import Policy
from pidlease.engine.engine import EngineConfig
from pidlease.http_api.record_messages import RECORDS_MAX
from pidlease.kafka.records.identity_header import Identity
from pidlease.kafka.records.writer_batch import WRITER_PID
from proxy.http import request_memory as records_room
from proxy.http.record_routes import RecordLimits
from proxy.http.request_batch import BatchMaker
from tests.http_api.appending import JSON, RAW, Answer, Door, door, path_of, producer, values
from tests.kafka_listener.batches import batches_of, identified, records_of
from tests.kafka_listener.harness import Wanted


def kept(offset: int | None, *, duplicate: bool = False) -> Answer:
    return 200, {"offset": offset, "duplicate": duplicate}


async def something_in_flight(here: Door) -> None:
    async with asyncio.timeout(20):
        while not here.partition.in_flight:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)


async def test_a_record_goes_in_as_it_was_sent(tmp_path: Path) -> None:
    odd = bytes(range(256))
    coded = {"base64": base64.b64encode(odd).decode()}
    record = {
        "key": "schlüssel",
        "value": coded,
        "headers": [{"key": "ä", "value": "b"}, {"key": "ä"}, {"key": "", "value": coded}],
        "timestamp_ms": 12345,
    }
    rest: list[dict[str, Any]] = [
        {"value": None},
        {"value": ""},
        {"key": "", "value": {"base64": ""}},
        {"value": "\u0000\U0001f600", "timestamp_ms": 0},
    ]
    async with door(tmp_path) as here:
        before_ms = here.server.clock()
        assert await here.append({"records": [record, *rest]}) == kept(0)
        async with await here.server.connect() as client:
            first, *others = records_of((await client.fetch("t", 0)).data)
        assert (first.key, first.value, first.timestamp) == ("schlüssel".encode(), odd, 12345)
        assert first.headers == (("ä", b"b"), ("ä", None), ("", odd))
        assert [(each.key, each.value) for each in others] == [
            (None, None),
            (None, b""),
            (b"", b""),
            (None, "\u0000\U0001f600".encode()),
        ]
        assert all(each.headers == () for each in others)
        assert before_ms <= others[0].timestamp <= here.server.clock()
        assert others[3].timestamp == 0
        assert here.partition.producers == {}, "a plain append has no producer"


async def test_a_raw_body_is_one_value(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        for offset, content in enumerate((b"", b"\xff\x00", b'{"records": []}', b"x" * 300_000)):
            assert await here.raw(content) == kept(offset)
            (found,) = (await here.records(offset=offset)).records
            assert (found.key, found.value) == (None, content)


async def test_a_charset_changes_nothing(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        headers = {"content-type": "Application/JSON; charset=utf-8"}
        assert await here.raw(b'{"records": [{"value": "\xc3\xa4"}]}', headers) == kept(0)
        (found,) = (await here.records()).records
        assert found.value == "ä".encode()


# ---------------------------------------------------------------------- policy epoch


async def test_a_producer_with_epoch_and_seq(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        assert await here.append(values("a", "b", "c"), producer("p", 1, 0)) == kept(0)
        assert await here.append(values("d"), producer("p", 1, 1)) == kept(3)
        assert await here.append(values("d"), producer("p", 1, 1)) == kept(3, duplicate=True)
        assert await here.append(values("a"), producer("p", 1, 0)) == kept(0, duplicate=True)
        status, answer = await here.raw(b"x", producer("p", 1, 4))
        assert (status, answer["error"], answer["expected_seq"]) == (
            409,
            "producer_seq_conflict",
            2,
        )
        status, answer = await here.raw(b"x", producer("p", 2, 2))
        assert (status, answer["expected_seq"]) == (409, 0), "a new epoch begins at 0"
        status, answer = await here.raw(b"x", producer("p", 0, 2))
        assert (status, answer["error"], answer["current_epoch"]) == (409, "producer_fenced", 1)
        assert answer["field"] == "Producer-Epoch"
        assert await here.raw(b"e", producer("p", 7, 0)) == kept(4)
        status, answer = await here.raw(b"x", producer("p", 1, 2))
        assert (status, answer["current_epoch"]) == (409, 7)
        assert await here.raw(b"f", producer("q", 0, 0)) == kept(5), "another producer"
        assert await here.append(values("g"), producer("p", 0, 0), partition=1) == kept(0)
        found = await here.records()
        assert [each.value for each in found.records] == [b"a", b"b", b"c", b"d", b"e", b"f"]
        assert all(each.headers == [] for each in found.records)


async def test_it_counts_requests_not_records(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        for seq in range(20):
            content = values(*(f"{seq}/{n}" for n in range(seq % 3 + 1)))
            assert (await here.append(content, producer("p", 0, seq)))[0] == 200
        assert await here.append(values("0/0"), producer("p", 0, 0)) == kept(None, duplicate=True)
        assert (await here.records()).log_end == sum(seq % 3 + 1 for seq in range(20))


async def test_a_batch_stands_under_the_writer(tmp_path: Path) -> None:
    """And the log says by itself who sent it: a replay knows what is known now."""
    async with door(tmp_path) as here:
        await here.append(values("a", "b"), producer("pé", 3, 0))
        lease = await here.lease()
        await here.append({**values("c"), **lease, "first_sequence": 0, "last_sequence": 9})
        found = [each.identity for each in here.partition.log.read_batches(0)]
        assert found == [
            Identity(-1, "pé", 3, 0, 0),
            Identity(lease["pid"], "", lease["generation"], 0, 9),
        ]
        headers = [each.header.producer_id for each in here.partition.log.read_batches(0)]
        assert headers == [WRITER_PID, WRITER_PID]
        async with await here.server.connect() as client:
            told = records_of((await client.fetch("t", 0)).data)
        assert [len(each.headers) for each in told] == [1, 0, 1]


async def test_an_epoch_producer_is_forgotten_after_a_lease_of_silence(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        for seq in range(3):
            await here.raw(b"x", producer("p", 5, seq))
        here.server.let_leases_end()
        status, answer = await here.raw(b"x", producer("p", 5, 3))
        assert (status, answer["expected_seq"]) == (409, 0)
        assert await here.raw(b"x", producer("p", 0, 0)) == kept(3)


# ---------------------------------------------------------------------- policy strict


async def test_a_leased_pid_writes_here_and_by_the_kafka_door(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        lease = await here.lease()
        body = {**values("a", "b"), **lease, "first_sequence": 0}
        assert await here.append(body) == kept(0)
        assert await here.append(body) == kept(0, duplicate=True)
        async with await here.server.connect() as client:
            identity = Identity(lease["pid"], "", lease["generation"], 2, 4)
            assert (await client.produce("t", identified([b"c", b"d", b"e"], identity))).code == 0
        status, answer = await here.append({**values("f"), **lease, "first_sequence": 6})
        assert (status, answer["expected_seq"], answer["field"]) == (409, 5, "first_sequence")
        status, answer = await here.append({**values("e", "f"), **lease, "first_sequence": 4})
        assert (status, answer["expected_seq"]) == (409, 5)
        assert "send the rest" in answer["message"]
        chained = {**values("f"), **lease, "first_sequence": 5, "last_sequence": 99}
        assert await here.append(chained) == kept(5), "fewer records than numbers"
        response = await here.client.post("/v1/leases", json={**_place(), "pid": lease["pid"]})
        again = response.json()
        assert again["sequence_number"] == 100
        later = {"pid": lease["pid"], "generation": again["generation"], "first_sequence": 100}
        assert await here.append({**values("g"), **later}) == kept(6)
        status, answer = await here.append({**values("h"), **lease, "first_sequence": 101})
        assert (status, answer["error"]) == (409, "producer_fenced")
        assert answer["current_epoch"] == again["generation"]
        assert answer["field"] == "generation"


def _place() -> dict[str, Any]:
    return {"topic": "t", "partition": 0}


# ---------------------------------------------------------------------- retries


async def test_a_mere_retry_is_not_told_as_odd(tmp_path: Path) -> None:
    """The time is put in by the door: so a retry has other bytes, and nobody is to blame."""
    async with door(tmp_path) as here:
        counts = here.server.engine.counts
        lease = await here.lease()
        leased = {**values("a"), **lease, "first_sequence": 0}
        for _ in range(3):
            await here.append(values("a"), producer("p", 0, 0))
            await here.append(leased)
            await asyncio.sleep(0.002)
        assert counts.differing == 0
        timed = {"records": [{"value": "a", "timestamp_ms": 1}]}
        await here.append(timed, producer("q", 0, 0))
        await here.append(timed, producer("q", 0, 0))
        assert counts.differing == 0
        timed["records"][0]["value"] = "b"
        assert await here.append(timed, producer("q", 0, 0)) == kept(2, duplicate=True)
        assert counts.differing == 1
        # What stands in the log counts as it stands: nothing of the above reached a later epoch.
        await here.append(values("a"), producer("p", 1, 0))
        (known,) = here.partition.producer(here.server.engine.names.take("p")).batches  # type: ignore[union-attr]
        (stored,) = [each.header.crc for each in here.partition.log.read_batches(3)]
        assert known.crc == stored


async def test_retries_while_the_first_is_in_flight(tmp_path: Path) -> None:
    async with door(
        tmp_path, Wanted(fsync=FsyncPolicy.BATCH, faults="slow=0.2 before write *.log 1")
    ) as here:
        sent = [asyncio.create_task(here.raw(b"a", producer("p", 0, 0)))]
        await something_in_flight(here)
        await asyncio.sleep(0.003)
        sent += [asyncio.create_task(here.raw(b"a", producer("p", 0, 0))) for _ in range(5)]
        answers = await asyncio.gather(*sent)
        assert answers == [kept(0), *([kept(0, duplicate=True)] * 5)]
        assert (await here.records()).log_end == 1
        assert here.server.engine.counts.differing == 0
        assert here.server.engine.counts.joined > 0


async def test_many_retry_at_once(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    async with door(tmp_path) as here:
        due = {f"p{n}": [f"p{n}/{seq}" for seq in range(20)] for n in range(5)}

        async def send(name: str) -> None:
            for seq, content in enumerate(due[name]):
                tries = [
                    here.raw(content.encode(), producer(name, 0, seq))
                    for _ in range(chance.randrange(1, 4))
                ]
                answers = await asyncio.gather(*tries)
                assert {status for status, _ in answers} == {200}
                assert len({answer["offset"] for _, answer in answers}) == 1
                assert sum(not answer["duplicate"] for _, answer in answers) == 1

        await asyncio.gather(*(send(name) for name in due))
        found = [each.value or b"" for each in (await here.records()).records]
        for name, content in due.items():
            assert [x.decode() for x in found if x.startswith(name.encode() + b"/")] == content
        assert len(found) == 100


# ---------------------------------------------------------------------- what does not work out


async def test_a_failed_append_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    async with door(
        tmp_path, Wanted(fsync=FsyncPolicy.BATCH, faults="fail before write *.log 2")
    ) as here:
        assert await here.raw(b"a", producer("p", 0, 0)) == kept(0)
        sent = [asyncio.create_task(here.raw(b"b", producer("p", 0, 1)))]
        await asyncio.sleep(0)
        sent.append(asyncio.create_task(here.raw(b"c", producer("p", 0, 2))))
        answers = await asyncio.gather(*sent)
        assert [status for status, _ in answers] == [503, 503], answers
        assert all("expected_seq" not in answer for _, answer in answers), "no needless gap"
        assert await here.raw(b"b", producer("p", 0, 1)) == kept(1)
        assert await here.raw(b"c", producer("p", 0, 2)) == kept(2)
        assert [each.value for each in (await here.records()).records] == [b"a", b"b", b"c"]


async def test_a_refusal_for_now_says_when_to_come_again(tmp_path: Path) -> None:
    async with door(tmp_path, Wanted(engine=EngineConfig(ring_capacity=1))) as here:
        assert (await here.raw(b"a", producer("p", 0, 0)))[0] == 200
        headers: Any = {**RAW, **producer("q", 0, 0)}
        response = await here.client.post(path_of(), content=b"a", headers=headers)
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        assert "slots" in response.json()["error"]
        assert len(here.server.engine.names) == 1
        assert (await here.raw(b"b"))[0] == 200, "plain appends need no slot"
        here.server.engine.ready = False
        for method in ("POST", "GET"):
            response = await here.client.request(method, path_of(), content=b"a", headers=RAW)
            assert response.status_code == 503
            assert "retry-after" in response.headers


async def test_what_a_topic_does_not_take(tmp_path: Path) -> None:
    overrides = {"pidlease.policies": "kafka,strict"}
    async with door(tmp_path, overrides=overrides) as here:
        status, answer = await here.raw(b"a", producer("p", 0, 0))
        assert (status, answer["field"]) == (403, "Producer-Id")
        assert len(here.server.engine.names) == 0
        assert (await here.raw(b"a"))[0] == 403
        lease = await here.lease()
        assert (await here.append({**values("a"), **lease, "first_sequence": 0}))[0] == 200


async def test_with_deduplication_off_all_is_stored_and_known(tmp_path: Path) -> None:
    overrides = {"pidlease.deduplication": "off"}
    async with door(tmp_path, overrides=overrides) as here:
        for offset in range(3):
            assert await here.raw(b"a", producer("p", 0, 0)) == kept(offset)


async def test_with_judging_off_all_is_stored_and_can_be_read_by_a_start(tmp_path: Path) -> None:
    wanted = Wanted(engine=EngineConfig(judging=False))
    async with door(tmp_path, wanted) as here:
        for offset, seq in enumerate((0, 0, 7, 3)):
            assert await here.raw(b"a", producer("p", 0, seq)) == kept(offset)
    async with door(tmp_path) as here:
        assert (await here.records()).log_end == 4
        pid = here.server.engine.names.find("p")
        assert pid is not None
        assert here.partition.producer(pid) is not None


async def test_a_topic_that_is_deleted_under_a_request(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        begun = asyncio.Event()

        async def body() -> Any:
            yield b"a"
            begun.set()
            await here.server.engine.delete_topic("t")
            yield b"b"

        response = await here.client.post(path_of(), content=body(), headers=RAW)
        assert response.status_code == 404
        assert response.json()["field"] == "topic"


# ---------------------------------------------------------------------- bounds


async def test_what_is_in_flight_is_bounded(tmp_path: Path) -> None:
    limits = RecordLimits(memory_bytes_max=300_000)
    wanted = Wanted(fsync=FsyncPolicy.BATCH, faults="slow=0.1 before write *.log 1")
    async with door(tmp_path, wanted, limits) as here:
        content = b"x" * 50_000
        slow = asyncio.create_task(here.raw(content))
        await something_in_flight(here)
        more = [asyncio.create_task(here.raw(content, producer(f"p{n}", 0, 0))) for n in range(6)]
        answers = await asyncio.gather(*more)
        refused = [answer for status, answer in answers if status == 503]
        assert 3 <= len(refused) <= 5, "a body, and its batch, count"
        assert "in flight" in refused[0]["error"]
        assert await slow == kept(0)
        for n in range(6):
            assert (await here.raw(content, producer(f"p{n}", 0, 0)))[0] == 200
        assert (await here.records()).log_end == 7


async def test_one_is_let_in_whatever_its_size(tmp_path: Path) -> None:
    async with door(tmp_path, limits=RecordLimits(memory_bytes_max=1)) as here:
        for offset in range(3):
            assert await here.raw(b"x" * 100_000) == kept(offset)


async def test_a_body_that_stops_coming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_room, "IDLE_SECONDS", 0.05)
    async with door(tmp_path) as here:

        async def body() -> Any:
            yield b"a"
            await asyncio.sleep(60)

        async with asyncio.timeout(20):
            response = await here.client.post(path_of(), content=body(), headers=RAW)
        assert (response.status_code, response.json()["field"]) == (408, "body")
        assert (await here.records()).log_end == 0


async def test_a_large_body_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made into a batch in a thread, one at a time."""
    at_once = most = 0
    places = set()
    main = threading.current_thread()
    build = BatchMaker._build

    def watched(*given: Any) -> bytearray:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        places.add(threading.current_thread())
        try:
            return build(*given)
        finally:
            at_once -= 1

    monkeypatch.setattr(BatchMaker, "_build", watched)
    body = {"records": [{"value": "x" * 50, "key": str(n)} for n in range(RECORDS_MAX)]}
    content = json.dumps(body).encode()
    assert len(content) < 1 << 20
    async with door(tmp_path) as here:
        answers = await asyncio.gather(*(here.raw(content, JSON) for _ in range(4)))
        assert [answer["offset"] for _, answer in answers] == [n * RECORDS_MAX for n in range(4)]
        assert most == 1
        assert main not in places
        await here.append(values("small"))
        assert main in places
        data = bytes((await here.partition.log.read(0, 1)).data)
        assert len(batches_of(data)) == 1, "all or none: one batch"


async def test_who_goes_away_is_not_waited_for_but_stored(tmp_path: Path) -> None:
    async with door(
        tmp_path, Wanted(fsync=FsyncPolicy.BATCH, faults="slow=0.1 before write *.log 1")
    ) as here:
        task = asyncio.create_task(here.raw(b"a", producer("p", 0, 0)))
        await something_in_flight(here)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with capture_logs() as told:
            assert await here.raw(b"a", producer("p", 0, 0)) == kept(0, duplicate=True)
        assert told == []
        assert await here.raw(b"b", producer("p", 0, 1)) == kept(1)


async def test_the_policy_of_what_is_stored(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        await here.raw(b"a")
        await here.raw(b"a", producer("p", 0, 0))
        lease = await here.lease()
        await here.append({**values("a"), **lease, "first_sequence": 0})
        appended = here.partition.counts.appended
        assert [appended[each] for each in (0, Policy.EPOCH, Policy.STRICT)] == [1, 1, 1]


_INT64 = (-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    "times",
    [[-1], [-1, 5, -1], [5, -1], [-1, -1, 2**62], [2**53, -5, -1], [-5, -7], [0, 2**62, -(2**62)],
     *([each] for each in _INT64)],
)  # fmt: skip
async def test_what_is_read_can_be_written(tmp_path: Path, times: list[int]) -> None:
    """Kafka's clients may give any time, or none."""
    async with door(tmp_path) as here:
        written = {"records": [{"value": "a", "timestamp_ms": each} for each in times]}
        for _ in range(2):
            assert (await here.append(written))[0] == 200
            _, page = await here.read(offset=0)
            assert [each["timestamp_ms"] for each in page["records"][-len(times) :]] == times
            records = [{**each} for each in page["records"][: len(times)]]
            for each in records:
                del each["offset"]
            written = {"records": records}


async def test_times_that_are_too_far_apart(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        for first, second in (_INT64, _INT64[::-1], (-1, 2**63 - 1)):
            records = [{"value": "a", "timestamp_ms": each} for each in (first, second)]
            status, answer = await here.append({"records": records})
            assert (status, answer["field"]) == (400, "records.1.timestamp_ms"), answer
