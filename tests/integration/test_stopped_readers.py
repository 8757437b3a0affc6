"""Copiers and Spark's readers of a partition with damaged records: an error, not a short end."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pidlease.copier.cluster_reader import FetchedChunk
from pidlease.copier.errors import CopyError
from pidlease.copier.source_fetcher import SourceFetcher
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.cluster import Cluster
from pidlease.kafka.client.settings import UpstreamConfig, addresses_of
from pidlease.spark.errors import ReadError
from pidlease.spark.reader.kafka_batches import ClusterLog, kafka_batches
from pidlease.spark.reader.log_directory import LogDirectory, segment_batches
from pidlease.spark.reader.log_parts import KafkaPart, LogDamage
from proxy.__main__ import cli
from tests.integration.damaged_log import RECORDS, copied, flip, write
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

CUT = 90
_DEADLINE_S = WAIT_S


@pytest.fixture(
    scope="module", params=["1073741824", "1024"], ids=["last segment", "older segment"]
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PidleaseServer]:
    written = write(tmp_path_factory.mktemp("written"), segment_bytes=request.param)
    found = copied(written, tmp_path_factory.mktemp("damaged"))
    flip(found.data_dir, CUT)
    with found:
        yield found
        found.kill9()


def test_a_copy_of_what_there_is_ends_with_the_reason(
    server: PidleaseServer, tmp_path: Path
) -> None:
    with PidleaseServer(tmp_path) as target:
        options = {
            "--from": server.bootstrap, "--to": target.bootstrap, "--topics": "t",
            "--leases": target.http_url, "--group": "copy", "--give-up-seconds": "1",
        }  # fmt: skip
        words = [word for pair in options.items() for word in pair]
        done = CliRunner().invoke(cli, ["copy", *words, "--once"])
    assert done.exit_code == 2, done.output
    assert "KAFKA_STORAGE_ERROR" in done.stderr


class Reader:
    """Reads t-0 from an offset on."""

    place = TopicPartition("t", 0)
    topic_id = ""

    def __init__(self, offset: int) -> None:
        self.wants = offset
        self.errors: list[CopyError] = []
        self.ended = asyncio.Event()

    def came(self, offset: int, chunk: FetchedChunk) -> None:
        self.wants = max(chunk.next_offset, offset)

    def out_of_range(self) -> None:
        raise AssertionError("it was told that the log ends before")

    def failed(self, error: CopyError) -> None:
        self.errors.append(error)
        self.wants = -1
        self.ended.set()


def test_a_copier_at_work_reads_up_to_the_damage_and_gives_up(server: PidleaseServer) -> None:
    async def read(offset: int) -> tuple[int, list[CopyError]]:
        cluster = Cluster(UpstreamConfig(addresses_of(server.bootstrap)))
        await cluster.start()
        fetcher, reader = SourceFetcher(cluster, 100, give_up_s=1), Reader(offset)
        fetcher.add(reader)
        task = asyncio.create_task(fetcher.run())
        reached = offset
        try:
            async with asyncio.timeout(_DEADLINE_S):
                while not reader.ended.is_set():
                    reached = max(reached, reader.wants)
                    await asyncio.sleep(0.01)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await cluster.close()
        return reached, reader.errors

    for offset in (0, CUT, 200):
        reached, errors = asyncio.run(read(offset))
        assert reached == max(offset, CUT)
        assert "t-0 of the source: KAFKA_STORAGE_ERROR" in str(errors[0])


def test_spark_by_the_server_ends_with_the_reason(server: PidleaseServer) -> None:
    log = ClusterLog(server.bootstrap, (), 1)
    try:
        with pytest.raises(ReadError, match="KAFKA_STORAGE_ERROR"):
            log.ranges([TopicPartition("t", 0)])
        assert list(log.ranges([TopicPartition("t", 1)]).values()) == [(0, 3)]
    finally:
        log.close()
    part = KafkaPart(server.bootstrap, "t", 0, 0, RECORDS, (), 1)
    read: list[int] = []
    with pytest.raises(ReadError, match="KAFKA_STORAGE_ERROR"):
        read.extend(each.header.last_offset for each in kafka_batches(part))
    assert read[-1] == CUT - 1


@pytest.mark.parametrize("durable", [False, True])
def test_spark_by_the_data_directory_meets_the_damage(
    server: PidleaseServer, *, durable: bool
) -> None:
    directory = LogDirectory(str(server.data_dir), durable=durable)
    there = directory.offset_range("t", 0)
    assert (there.start, there.end > CUT) == (0, True)
    found = list(segment_batches(directory.part(TopicPartition("t", 0), *there)))
    assert next(each.offset for each in found if isinstance(each, LogDamage)) == CUT
