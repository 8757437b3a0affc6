"""Appends without a partition: the key chooses it, as for Kafka's clients."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiokafka.partitioner import murmur2

from pidlease.http_api.record_messages import RecordsAnswer
from proxy.http.record_routes import RecordLimits
from tests.http_api.appending import RAW, Door, door, producer
from tests.kafka_listener.harness import Wanted

_PATH = "/v1/topics/{}/records"


async def send(
    here: Door, body: Any, headers: Mapping[str, str | bytes] | None = None, topic: str = "t"
) -> tuple[int, dict[str, Any]]:
    named: Any = dict(headers or {})
    response = await here.client.post(_PATH.format(topic), json=body, headers=named)
    return response.status_code, response.json()


def one(key: object, *values: str) -> dict[str, Any]:
    return {"records": [{"key": key, "value": value} for value in values]}


async def test_a_key_goes_where_kafka_s_clients_send_it(tmp_path: Path) -> None:
    async with door(tmp_path, Wanted(default_partitions=7)) as here:
        found = set()
        for number in range(20):
            key = f"key-{number}"
            status, answer = await send(here, one(key, "x", "y"), topic="seven")
            expected = (murmur2(key.encode()) & 0x7FFFFFFF) % 7
            assert (status, answer["partition"]) == (200, expected)
            found.add(expected)
            page = await here.client.get(f"/v1/topics/seven/partitions/{expected}/records")
            records = RecordsAnswer.model_validate_json(page.content).records
            assert [each.value for each in records][-2:] == [b"x", b"y"]
        assert len(found) > 3


async def test_a_repeated_request_is_stored_once(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        first = await send(here, one("k", "a"), producer("p", 0, 0))
        assert first[0] == 200
        assert await send(here, one("k", "a"), producer("p", 0, 0)) == (
            200, {**first[1], "duplicate": True},
        )  # fmt: skip
        status, answer = await send(here, one("k", "a"), producer("p", 0, 2))
        assert (status, answer["expected_seq"]) == (409, 1)
        lease = await here.lease()
        body = {**one({"base64": "AP8="}, "a"), **lease, "first_sequence": 0}
        assert [(await send(here, body))[1]["duplicate"] for _ in range(2)] == [False, True]


async def test_records_without_a_key_go_anywhere(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        found = {(await send(here, one(None, "x")))[1]["partition"] for _ in range(40)}
        assert found == {0, 1}
        response = await here.client.post(_PATH.format("t"), content=b"x", headers=RAW)
        assert response.status_code == 200
        status, answer = await send(here, one(None, "x"), producer("p", 0, 0))
        assert (status, answer["code"], answer["field"]) == (
            400, "invalid_request", "records.0.key",
        )  # fmt: skip


async def test_what_is_refused(tmp_path: Path) -> None:
    limits = RecordLimits(batch_bytes_max=2000)
    async with door(tmp_path, Wanted(auto_create=False), limits) as here:
        body = {"records": [{"key": key, "value": "x"} for key in "ab"]}
        status, answer = await send(here, body)
        assert (status, answer["field"]) == (400, "records.0.key")
        assert (await send(here, one("k", "x"), topic="u"))[0] == 404
        assert (await send(here, one("k", "x" * 3000)))[0] == 413
        assert (await send(here, {"records": []}))[0] == 400
        assert (await here.client.get(_PATH.format("t"))).status_code == 405
        for number in range(2):
            assert (await here.records(number)).log_end == 0
