"""kill -9 at random moments, under two real clients that go on."""

import time
from pathlib import Path
from random import Random

import pytest

from tests.crash.clients import Load
from tests.crash.lives import SETTINGS, Retries, finish, get_on, loads_for, server_in, verify
from tests.crash.relay import Relay, Weather
from tests.crash.seeds import SOAK, new_random
from tests.servers.pidlease import PidleaseServer

TOPIC = "kill9"
PARTITIONS = 4

#: How slow the disk is, in a life: moments between two steps become longer, and easier to hit.
_DISKS = ("", "", "slow=0.004 before fsync *.log 1", "slow=0.002 after write *.log 1")


@pytest.mark.timeout(7200 if SOAK else 900)
@pytest.mark.parametrize(
    ("fsync", "kills"),
    [
        ("batch", 500 if SOAK else 12),
        ("interval", 100 if SOAK else 4),
        ("never", 100 if SOAK else 4),
    ],
)
def test_kill_9_at_random(tmp_path: Path, fsync: str, kills: int) -> None:
    random = new_random(f"kill9-{fsync}")
    weather = Weather(random, delay_s=0.004)
    with server_in(tmp_path) as server, Relay(server.kafka_port, weather) as relay:
        settings = {
            **SETTINGS,
            "fsync": fsync,
            "default_partitions": str(PARTITIONS),
            "kafka_advertise": relay.bootstrap,
        }
        loads = loads_for(relay.bootstrap, TOPIC, PARTITIONS, random)
        retries = Retries(server)
        counted = missed = 0
        while counted < kills:
            disk = random.choice(_DISKS)
            retries.new_life()
            server.restart({**settings, "faults": disk} if disk else settings)
            if len(retries.lives) == 1:
                for load in loads:
                    load.start()
            if _kill(server, relay, loads, retries, random):
                counted += 1
            else:
                missed += 1
            assert missed <= kills + 10, "nothing is ever in flight"
        retries.new_life()
        server.restart(settings)
        stored = finish(server, TOPIC, PARTITIONS, loads)
        print(f"{fsync}: {counted} kills with batches in flight, {missed} without;"
              f" {len(stored)} records, {retries.total:.0f} duplicates caught")  # fmt: skip
        assert retries.total > 0, "no retry of something stored ever reached the server"
        verify(server.data_dir)


def _kill(
    server: PidleaseServer, relay: Relay, loads: list[Load], retries: Retries, random: Random
) -> bool:
    """Let everybody get on, then kill at a random moment; whether batches were in flight."""
    get_on(loads, retries.look)
    time.sleep(random.random() * 0.3)
    retries.look()
    # At the server in one half of the cases, stored and on the way back in the other.
    deadline = time.monotonic() + 2
    at_server = random.random() < 0.5
    while not (relay.at_server if at_server else relay.on_the_way):
        if time.monotonic() > deadline:
            break
        time.sleep(0.0002)
    relay.cut = True
    killed = time.monotonic()
    server.kill9()
    relay.wait_no_connection()
    relay.cut = False
    lost = sum(sent <= killed for sent in relay.lost)
    relay.lost.clear()
    return lost > 0
