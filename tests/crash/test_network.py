"""Connections that break in the middle of requests and of answers; answers that get lost."""

from pathlib import Path

import pytest

from tests.crash.lives import SETTINGS, Retries, finish, loads_for, server_in, verify, wait_for
from tests.crash.relay import Relay, Weather
from tests.crash.seeds import SOAK, new_random
from tests.servers.waiting import WAIT_S

TOPIC = "network"
PARTITIONS = 4
KINDS = ("cut request", "cut answer", "lose answer")
#: Of each kind.
FAULTS = 300 if SOAK else 12


@pytest.mark.timeout(3600 if SOAK else 900)
def test_a_network_that_loses_things(tmp_path: Path) -> None:
    random = new_random("network")
    weather = Weather(random, faults_every=12)
    with server_in(tmp_path) as server, Relay(server.kafka_port, weather) as relay:
        server.restart(
            {
                **SETTINGS,
                "default_partitions": str(PARTITIONS),
                "kafka_advertise": relay.bootstrap,
            }
        )
        retries = Retries(server)
        retries.new_life()
        loads = loads_for(relay.bootstrap, TOPIC, PARTITIONS, random)
        for load in loads:
            load.start()
        done = weather.done
        for kind in KINDS:
            while (before := done[kind]) < FAULTS:  # each within its time: all together take longer
                wait_for(lambda: done[kind] > before, kind, lambda: None)  # noqa: B023 - used here
        weather.faults_every = 0
        for load in loads:
            load.finish(WAIT_S)
        retries.look()
        stored = finish(server, TOPIC, PARTITIONS, loads)
    print(f"{dict(done)}; {len(stored)} records, {retries.total:.0f} duplicates caught")
    # What was lost on its way back stands in the log; so each of them brought a retry of that.
    assert retries.total >= done["lose answer"] + done["cut answer"]
    verify(server.data_dir)
