"""Retention under producers and a consumer, and a server that is killed: with snapshots in time,
and without any, when nothing may go."""

import time
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.crash.lives import HANG_S, SETTINGS, Retries, loads_for, server_in, verify, wait_for
from tests.crash.readback import check_pids
from tests.crash.seeds import SOAK, new_random
from tests.crash.tail import TailReader
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import until

TOPIC = "retention"
PARTITIONS = 2
KILLS = 40 if SOAK else 4
#: What the consumer may be behind, and more.
KEPT_BYTES = 300_000

_COMMON = {
    **SETTINGS,
    "fsync": "never",
    "default_partitions": str(PARTITIONS),
    "retention_bytes": str(KEPT_BYTES),
    "retention_check_seconds": "0.1",
}
_SNAPSHOTS = {
    "in time": {"snapshot_batches": "50"},
    "none": {"snapshot_batches": "1000000000", "snapshot_seconds": "100000"},
}


class Ends:
    """Where partitions begin and end, as consumers are told."""

    def __init__(self, server: PidleaseServer) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": server.bootstrap, "group.id": "ends", "log_level": 0}
        )

    def all(self) -> list[tuple[int, int]]:
        """Once the server answers; librdkafka takes up to a second to find it again."""
        give_up = time.monotonic() + HANG_S
        while True:
            try:
                return [self._of(number) for number in range(PARTITIONS)]
            except KafkaException:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.05)

    def _of(self, number: int) -> tuple[int, int]:
        place = TopicPartition(TOPIC, number)
        return self._consumer.get_watermark_offsets(place, timeout=HANG_S)


@pytest.mark.timeout(3600 if SOAK else 900)
@pytest.mark.parametrize("snapshots", _SNAPSHOTS)
def test_retention_under_load(tmp_path: Path, snapshots: str) -> None:
    random = new_random(f"retention, snapshots {snapshots}")
    settings = _COMMON | _SNAPSHOTS[snapshots]
    with server_in(tmp_path) as server:
        retries = Retries(server)
        retries.new_life()
        server.restart(settings)
        loads = loads_for(server.bootstrap, TOPIC, PARTITIONS, random)
        for load in loads:
            load.start()

        def written() -> int:
            return sum(load.ledger.acknowledged_count for load in loads)

        wait_for(lambda: written() > 0, "the topic", retries.look)
        tail = TailReader(server.bootstrap, TOPIC, PARTITIONS)
        ends = Ends(server)
        # Each life writes as much as is kept, so that each has something to remove.
        for _ in range(KILLS):
            begun = [end for _, end in ends.all()]
            wait_for(
                lambda before=begun: all(  # type: ignore[misc]
                    end - was > KEPT_BYTES // 200
                    for (_, end), was in zip(ends.all(), before, strict=True)
                ),
                "more records",
                retries.look,
            )
            time.sleep(random.random() * 0.3)
            server.kill9()
            retries.new_life()
            server.restart(settings)
        for load in loads:
            load.finish(HANG_S)
        places = ends.all()
        wait_for(
            lambda: (
                bool(tail.faults) or all(tail.end_of(n) >= end for n, (_, end) in enumerate(places))
            ),
            "the consumer",
            retries.look,
        )
        tail.finish(HANG_S)
        assert tail.faults == []
        for load in loads:
            load.ledger.check(tail.stored)
        starts = [start for start, _ in places]
        if snapshots == "none":
            assert starts == [0] * PARTITIONS, "no snapshot covers what was removed"
        else:
            assert all(starts), "nothing was removed"
        _check_what_is_left(server, tail, starts)
        until(lambda: not _removed_and_open(server), "the close of removed segments")
        assert server.stop() == 0
        if snapshots == "none":
            check_pids(server.data_dir)
        verify(server.data_dir)
        print(f"snapshots {snapshots}: {written()} records, the logs begin at {starts};"
              f" {retries.total:.0f} duplicates caught")  # fmt: skip


def _removed_and_open(server: PidleaseServer) -> list[str]:
    """The segments that the server still has open, so that they still take disk space."""
    found = []
    for link in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(link.readlink()))
    return [each for each in found if each.endswith(".log (deleted)")]


def _check_what_is_left(server: PidleaseServer, tail: TailReader, starts: list[int]) -> None:
    """Up to its end a partition holds what the consumer was given before; more may have gone."""
    settings = {"group.id": "left", "auto.offset.reset": "earliest", "log_level": 0}
    again = Consumer({"bootstrap.servers": server.bootstrap, **settings})
    again.assign([TopicPartition(TOPIC, number, start) for number, start in enumerate(starts)])
    left = {number: tail.end_of(number) for number in range(PARTITIONS)}
    give_up = time.monotonic() + HANG_S
    while left:
        assert time.monotonic() < give_up, f"not read up to {left}"
        for message in again.consume(2000, 0.2):
            partition, offset = message.partition(), message.offset()
            assert message.error() is None
            assert partition is not None
            assert offset is not None
            assert message.value() == tail.value(partition, offset)
            if offset + 1 == left[partition]:
                del left[partition]
    again.close()
