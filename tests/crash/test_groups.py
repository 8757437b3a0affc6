"""Consumer groups of real clients, while the server is killed and members vanish."""

import asyncio
import time
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as LibrdkafkaError

from pidlease.testing.loopback_ports import LOOPBACK
from tests.crash.clients import LibrdkafkaLoad
from tests.crash.consumers import Readings, Watcher, group_of, librdkafka_settings
from tests.crash.lives import HANG_S, SETTINGS, server_in, verify, wait_for
from tests.crash.readback import consume
from tests.crash.seeds import SOAK, new_random
from tests.kafka_listener.client import WireClient
from tests.kafka_listener.member import Member
from tests.servers.pidlease import PidleaseServer

TOPIC = "grouped"
GROUP = "readers"
PARTITIONS = 5
GROUP_SETTINGS = {
    **SETTINGS,
    "default_partitions": str(PARTITIONS),
    "group_initial_rebalance_seconds": "0.1",
    "group_min_session_seconds": "0.2",
}
#: The journal's operations take longer in some lives, so that a kill meets one in the middle.
_DISKS = ("", "slow=0.01 before fsync *groups/offsets 1", "slow=0.005 after write *offsets 1")


@pytest.mark.timeout(7200 if SOAK else 900)
@pytest.mark.parametrize("fsync", ["batch", "never"] if SOAK else ["batch"])
def test_a_group_goes_on_over_kills_and_loses_nothing(tmp_path: Path, fsync: str) -> None:
    kills = 60 if SOAK else 3
    random = new_random(f"groups-{fsync}")
    readings = Readings(PARTITIONS)
    with server_in(tmp_path) as server:
        settings = {**GROUP_SETTINGS, "fsync": fsync}
        server.restart(settings)
        load = LibrdkafkaLoad(server.bootstrap, TOPIC, PARTITIONS, random)
        load.start()
        members = group_of(server.bootstrap, GROUP, TOPIC, readings, random)
        watcher = Watcher(server.bootstrap, GROUP, TOPIC, readings)
        for each in (*members, watcher):
            each.start()
        for number in range(kills):
            _get_on(readings)
            if number % 2 == 0:
                asyncio.run(_vanish_in_a_rebalance(server, random))
                _get_on(readings)
            time.sleep(random.random() * 0.2)
            server.kill9()
            disk = random.choice(_DISKS)
            server.restart({**settings, "faults": disk} if disk else settings)
            watcher.look()
            assert not readings.faults, readings.faults[:5]
        _get_on(readings)
        load.finish(HANG_S)
        given = sum(load.ledger.given.values())
        wait_for(
            lambda: sum(readings.seen.values()) >= given or bool(readings.faults),
            "all to be committed",
            lambda: None,
        )
        for each in (*members, watcher):
            each.finish(HANG_S)
        assert not readings.faults, readings.faults[:5]
        stored = consume(server.bootstrap, TOPIC, PARTITIONS)
        load.ledger.check(stored)
        unread = {each.value for each in stored} - readings.values
        assert not unread, f"{len(unread)} records were committed, and read by nobody"
        print(f"{kills} kills: {len(stored)} records, {readings.commits} commits,"
              f" asked {watcher.answers} times")  # fmt: skip
        assert watcher.answers > kills
        assert server.stop() == 0
        verify(server.data_dir)


def _get_on(readings: Readings) -> None:
    """Wait for some commits more, of every partition."""
    before = dict(readings.committed)
    wait_for(
        lambda: (
            all(readings.committed[number] > before[number] for number in before)
            or bool(readings.faults)
        ),
        f"commits; {before} so far",
        lambda: None,
    )
    assert not readings.faults, readings.faults[:5]


async def _vanish_in_a_rebalance(server: PidleaseServer, random: Random) -> None:
    """A member joins, is told of its generation, and is never heard of again."""
    name = TOPIC.encode()
    subscription = b"\0\0\0\0\0\1" + len(name).to_bytes(2, "big") + name + b"\xff\xff\xff\xff"
    protocols = [{"name": "roundrobin", "metadata": subscription}]
    client = await WireClient.connect(LOOPBACK, server.kafka_port)
    member = Member(client, GROUP, session_ms=400, rebalance_ms=5_000)
    try:
        if random.random() < 0.3:
            await member.begin(protocols=protocols)  # and away, while it waits
            return
        body = await member.join(protocols=protocols)
        assert body.error_code == 0
    finally:
        client.writer.transport.abort()


def test_what_is_not_there(tmp_path: Path) -> None:
    """Commits for unknown partitions, offsets of unknown groups, by a real client."""
    with server_in(tmp_path) as server:
        server.restart({**GROUP_SETTINGS, "auto_create_topics": "false"})
        consumer = Consumer(librdkafka_settings(server.bootstrap, "nobody"))
        try:
            places = [TopicPartition("unknown", 0, 5), TopicPartition("unknown", 9, 5)]
            found = consumer.committed(places, timeout=HANG_S)
            assert [(each.offset, each.error) for each in found] == [(-1001, None)] * 2
            with pytest.raises(KafkaException) as raised:
                consumer.commit(offsets=places, asynchronous=False)
            unknown = LibrdkafkaError.UNKNOWN_TOPIC_OR_PART
            assert raised.value.args[0].code() == unknown
        finally:
            consumer.close()
