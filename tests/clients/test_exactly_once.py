"""Each client's idempotent producer, with each codec, through kills; read back by another one."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.clients import segments
from tests.clients.child import Child
from tests.clients.client import CODECS, READER, Client, Consuming
from tests.clients.facts import Consumed, Produced, record
from tests.clients.judge import Read, check_exactly_once
from tests.clients.writing import HANG_S, PARTITIONS, write
from tests.crash.readback import check_directory
from tests.crash.seeds import SOAK, new_random
from tests.servers.kafka import unavailable_reason
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

#: For each codec.
COUNT = 100_000 if SOAK else 20_000
#: From outside, and as many more between an append and its answers.
KILLS = 4 if SOAK else 1
#: Several of them, so that most are closed, with their indexes.
_SEGMENT_BYTES = 200_000


@pytest.mark.timeout(7200 if SOAK else 900)  # the first run also fetches and builds the clients
@pytest.mark.parametrize("writer", READER, ids=str)
def test_exactly_once(tmp_path: Path, writer: Client) -> None:
    reader = READER[writer]
    for client in (writer, reader):
        if (missing := client.missing()) is not None:
            pytest.skip(missing)
    topic = group = writer.name
    total = COUNT * len(CODECS)
    with PidleaseServer(tmp_path, settings={"segment_bytes": str(_SEGMENT_BYTES)}) as server:
        written = write(server, writer, topic, COUNT, KILLS, new_random(f"clients-{writer}"))
        assert written.duplicates > 0, "what was stored and not answered never came again"
        read, reader_version = _read_back(server, reader, topic, group, total)
        check_exactly_once(written.acked, read, COUNT)
        server.kill9()
        server.restart()
        _check_committed(server, topic, group, total)
        assert server.stop() == 0
    check_directory(server.data_dir)
    assert (written.version, reader_version) == (writer.version, reader.version)
    record(Consumed(reader.name, reader_version, writer.name))
    if unavailable_reason() is None:
        codecs = segments.check(segments.files_of(server.data_dir, topic), total)
        assert codecs == set(CODECS)
        record(Produced(writer.name, written.version, CODECS))


def _read_back(
    server: PidleaseServer, reader: Client, topic: str, group: str, count: int
) -> tuple[list[Read], str]:
    """What a group consumer of a client reads until it has so many, and its version."""
    call = reader.consumer(Consuming(server.bootstrap, topic, group, count), server.directory)
    with Child.start("consumer", call.command, server.directory, call.env) as child:
        lines = child.finish(HANG_S)
    found = [read for line in lines if (read := reader.read(line)) is not None]
    return found, reader.said_version(lines)


def _check_committed(server: PidleaseServer, topic: str, group: str, count: int) -> None:
    """The group has committed each partition's end, and all ends together are `count`."""
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": group})
    try:
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        ends = [consumer.get_watermark_offsets(place, timeout=WAIT_S)[1] for place in places]
        committed = [place.offset for place in consumer.committed(places, timeout=WAIT_S)]
    finally:
        consumer.close()
    assert committed == ends
    assert sum(ends) == count
