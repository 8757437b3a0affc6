"""Records of formats 0 and 1, as topics from before Kafka 0.11 have them, in front of Kafka."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Final

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pidlease.copier.copier import Copier
from pidlease.copier.settings import CopySettings
from tests.http_api.lives import ask
from tests.kafka_backend.test_reads_of_others import read, values_of
from tests.kafka_listener.batches import changed
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until
from tests.sim.batches import make_batch

pytestmark = [needs_kafka, pytest.mark.kafka]

TIME_MS: Final = 1_400_000_000_000
GZIP, SNAPPY, LZ4 = 1, 2, 3


def old(magic: int, codec: int, *records: tuple[int, bytes | None, bytes | None]) -> bytes:
    """Messages as a client of that time wrote them, and its broker placed them."""
    first, last = records[0][0], records[-1][0]
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for offset, key, value in records:
        relative = offset - first if codec and magic == 1 else offset
        builder.append(relative, timestamp=TIME_MS + offset, key=key, value=value)
    data = bytearray(builder.build())
    if codec:  # the broker set the offset of the last one
        data[:8] = last.to_bytes(8, "big")
    return bytes(data)


def test_formats_0_and_1_are_read_and_replayed(tmp_path: Path) -> None:
    damaged = bytearray(old(1, 0, (9, None, b"damaged")))
    damaged[-1] ^= 1
    new = make_batch([b"new"])
    log = b"".join((
        old(0, 0, (0, b"k", b"a"), (1, None, b"b")),
        old(0, GZIP, (2, None, b"c"), (3, None, b"d")),
        old(1, SNAPPY, (4, None, b"e"), (5, None, None)),
        old(1, LZ4, (6, b"", b"f"), (7, None, b"g")),
        changed(bytes(new), base_offset=8),
        damaged,
        old(1, 0, (10, None, b"h")),
    ))  # fmt: skip
    with KafkaServer(tmp_path / "kafka") as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for made in admin.create_topics([NewTopic("t", 1), NewTopic("intact", 1)]).values():
            made.result(WAIT_S)
        logs = {topic: kafka.partition_dir(topic) / f"{0:020}.log" for topic in ("t", "intact")}
        until(lambda: all(each.exists() for each in logs.values()), "the logs of the topics")
        # After a clean stop the broker takes its logs as they are.
        kafka.stop()
        logs["t"].write_bytes(log)
        logs["intact"].write_bytes(log[: log.index(bytes(damaged))])
        kafka.start()
        with in_front_of(kafka, tmp_path / "server") as server:
            server.start()
            page = read(server, "intact")
            assert values_of(page) == ["a", "b", "c", "d", "e", None, "f", "g", "new"]
            assert [each["key"] for each in page["records"]][:7] == [
                "k", None, None, None, None, None, "",
            ]  # fmt: skip
            times = [each["timestamp_ms"] for each in page["records"]]
            assert times[:8] == [-1] * 4 + [TIME_MS + offset for offset in (4, 5, 6, 7)]
            assert (page["next_offset"], page["log_end"]) == (9, 9)
            assert values_of(read(server, "intact", "?offset=3&max_bytes=1")) == ["d"]
            path = "/v1/topics/t/partitions/0/records"
            status, problem = ask(server, "GET", f"{path}?offset=9")
            assert (status, problem["next_offset"]) == (422, 10), problem
            assert "format 1" in problem["detail"]
            assert values_of(read(server, "t", "?offset=10")) == ["h"]
            # The replay, a lease and an append: the partition is not stopped.
            body = json.dumps({"records": [{"value": "appended"}]}).encode()
            headers = {"Content-Type": "application/json", "Producer-Id": "p",
                       "Producer-Epoch": "0", "Producer-Seq": "0"}  # fmt: skip
            status, answer = ask(
                server, "POST", "/v1/topics/intact/partitions/0/records", body, headers
            )
            assert status == 200, answer
            settings = CopySettings(
                source=kafka.bootstrap, destination=server.bootstrap, leases=server.http_url,
                group="copy", topics=["intact"], rename="{topic}.copy", once=True,
            )  # fmt: skip
            asyncio.run(Copier(settings).run())
            copied = read(server, "intact.copy")
            whole = read(server, "intact")
            assert [{**each, "offset": 0} for each in copied["records"]] == [
                {**each, "offset": 0} for each in whole["records"]
            ]
            server.kill9()
            server.restart()
            status, answer = ask(
                server, "POST", "/v1/topics/intact/partitions/0/records", body, headers
            )
            assert (status, answer["duplicate"]) == (200, True), answer
