"""Checkpoints that are not saved, or not heard to be, and one that is older than the copy."""

import asyncio
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from confluent_kafka import Producer

from tests.copier.sides import (
    PARTITIONS,
    CopyProcess,
    Filler,
    check_same,
    more_arrived,
    records_of,
)
from tests.crash.relay import Middle, Side, read_frame, until_one_ends
from tests.crash.seeds import new_random
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

pytestmark = [needs_kafka, pytest.mark.kafka, pytest.mark.timeout(900)]

_GROUP = "g"
_OFFSET_COMMIT = 8
_KEY = struct.Struct(">h")
_LENGTH_BYTES = 4
_LISTENER = "RELAYED"
#: This share of the commits does not reach the source.
_LOST = 0.5
#: How long one that does is worked on there.
_AT_SOURCE_S = 0.05


class Eater(Middle):
    """Between copiers and the source: of OffsetCommit it lets no answer pass, if it is told so.

    Attributes:
        eats: whether it does.
        loses: the share of them that does not get to the source.
        lost: requests that did not get to the source,
        unheard: and those that did.
    """

    def __init__(self, target_port: int, random: Random) -> None:
        super().__init__(target_port)
        self.eats = False
        self.loses = _LOST
        self.lost = self.unheard = 0
        self._random = random

    async def serve(self, client: Side, server: Side) -> None:
        """See `Middle`."""
        silent = asyncio.Event()
        await until_one_ends(
            self._up(client[0], server[1], silent), _down(server[0], client[1], silent)
        )

    async def _up(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silent: asyncio.Event
    ) -> None:
        """Requests; a commit may be the last on its connection."""
        while True:
            frame = await read_frame(reader)
            commit = _KEY.unpack_from(frame, _LENGTH_BYTES)[0] == _OFFSET_COMMIT
            if commit and self.eats and self._random.random() < self.loses:
                self.lost += 1
                return
            if commit and self.eats:
                silent.set()
            writer.write(frame)
            await writer.drain()
            if silent.is_set():
                await asyncio.sleep(_AT_SOURCE_S)
                self.unheard += 1
                return


async def _down(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silent: asyncio.Event
) -> None:
    """Answers, as long as any pass."""
    while True:
        frame = await read_frame(reader)
        if not silent.is_set():
            writer.write(frame)
            await writer.drain()


@pytest.fixture
def eater(tmp_path: Path) -> Iterator[tuple[KafkaServer, Eater]]:
    """A source, and the way to it."""
    kafka = KafkaServer(tmp_path / "kafka", listeners={_LISTENER: "PLAINTEXT"})
    port = int(kafka.listeners[_LISTENER].rpartition(":")[2])
    with Eater(port, new_random("eater")) as between:
        kafka.advertised[_LISTENER] = between.bootstrap
        with kafka:
            yield kafka, between


def copier(folder: Path, source: str, server: PidleaseServer, *options: str) -> CopyProcess:
    """A copier that saves often."""
    return CopyProcess(
        folder, source, server, "--topics", "rows", "--rename", "{topic}.copy", "--group", _GROUP,
        "--session-seconds", "6", "--commit-seconds", "0.2", *options,
    )  # fmt: skip


def test_commits_that_fail_after_appends(
    eater: tuple[KafkaServer, Eater], server: PidleaseServer, tmp_path: Path
) -> None:
    """It copies on; and who comes after it begins where the last one that was heard of says."""
    source, between = eater
    server.start()
    filler = Filler(source.bootstrap, "rows", 20_000, new_random("commits"), 1500).start()
    first = copier(tmp_path / "1", between.bootstrap, server).start()
    second = copier(tmp_path / "2", between.bootstrap, server)
    try:
        more_arrived(server, 1000)
        between.eats = True
        until(lambda: between.lost >= 2 and between.unheard >= 2, "commits that fail")
        between.loses = 1.0  # what is appended from here on is saved by no commit of the first
        more_arrived(server, 1000)
        assert first.process.alive, first.text[-3000:]
        first.process.kill9()
        second.start()
        until(lambda: "are this copier's" in second.text, "a takeover")
        lost = between.lost
        until(lambda: between.lost >= lost + 2, "commits of the second that fail")
        between.eats = False
        more_arrived(server, 1000)
        filler.finish()
        assert second.process.stop(WAIT_S) == 0, second.text[-3000:]
    finally:
        first.process.kill9()
        second.process.kill9()
    assert suppressed(second.text) > 0, second.text
    last = copier(tmp_path / "3", source.bootstrap, server, "--once")
    assert last.run() == 0, last.text
    assert check_same(source, "rows", server, "rows.copy") == filler.sent
    print(f"{between.lost} commits lost, {between.unheard} unheard")


def suppressed(text: str) -> int:
    """How many records a copier found that were there before it."""
    (found,) = re.findall(r"([\d,]+) had been there before", text)
    return int(found.replace(",", ""))


async def test_a_checkpoint_that_is_older_than_the_copy(
    source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    """Somebody put the group's offsets back: everything behind them comes again, as duplicates."""
    server.start()
    random = new_random("older")
    filler = Filler(source.bootstrap, "rows", 4000, random).start()
    filler.finish()
    assert copier(tmp_path / "1", source.bootstrap, server, "--once").run() == 0
    saved = await committed(source)
    assert len(saved) == PARTITIONS
    fill_more(source, "rows", 3000)
    assert copier(tmp_path / "2", source.bootstrap, server, "--once").run() == 0
    before = records_of(server)
    await commit(source, saved)
    again = copier(tmp_path / "3", source.bootstrap, server, "--once")
    assert again.run() == 0, again.text
    assert suppressed(again.text) == 3000
    assert records_of(server) == before
    assert check_same(source, "rows", server, "rows.copy") == filler.sent + 3000


def fill_more(source: KafkaServer, topic: str, count: int) -> None:
    """A few records more."""
    producer = Producer({"bootstrap.servers": source.bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert not producer.flush(WAIT_S)


async def committed(source: KafkaServer) -> dict[TopicPartition, OffsetAndMetadata]:
    """What the group has saved. (Confluent's client cuts long metadata off.)"""
    admin = AIOKafkaAdminClient(bootstrap_servers=source.bootstrap)
    await admin.start()
    try:
        found: dict[TopicPartition, OffsetAndMetadata] = await admin.list_consumer_group_offsets(
            _GROUP
        )
        return found
    finally:
        await admin.close()


async def commit(source: KafkaServer, saved: dict[TopicPartition, OffsetAndMetadata]) -> None:
    """Save that, in a group that nobody is in."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=source.bootstrap, group_id=_GROUP, enable_auto_commit=False
    )
    await consumer.start()
    try:
        consumer.assign(list(saved))
        await consumer.commit({place: tuple(each) for place, each in saved.items()})
    finally:
        await consumer.stop()
