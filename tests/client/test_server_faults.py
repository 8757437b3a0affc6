"""The client against a real server that is killed, behind a network that loses things."""

import asyncio
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pidlease.client import LeasedProducer, OutcomeUnknownError, ProducerError
from tests.client.loads import LeasedLoad, loads_for
from tests.crash.ledger import identity
from tests.crash.lives import HANG_S, SETTINGS, Retries, server_in, wait_for
from tests.crash.readback import Stored, check_directory, consume
from tests.crash.relay import Relay, Weather
from tests.crash.seeds import SOAK, new_random
from tests.crash.test_kill9 import _kill
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

TOPIC = "leased"
PARTITIONS = 3
KINDS = ("cut request", "cut answer", "lose answer")
_LIVES_MAX = 100

pytestmark = pytest.mark.timeout(7200 if SOAK else 900)


def settings_for(relay: Relay, **others: str) -> dict[str, str]:
    """As short as they can be, so that everything happens often."""
    return {
        **SETTINGS,
        "default_partitions": str(PARTITIONS),
        "kafka_advertise": relay.bootstrap,
        **others,
    }


def read_back(server: PidleaseServer, loads: list[LeasedLoad]) -> list[Stored]:
    """All that is stored, held against what the producers were told."""
    stored = consume(server.bootstrap, TOPIC, PARTITIONS)
    for load in loads:
        load.ledger.check(stored)
        if "name" in load.options:
            load.check_numbers()
    assert server.stop() == 0
    check_directory(server.data_dir)
    return stored


@pytest.mark.parametrize("fsync", ["batch", "never"])
def test_kill_9_of_the_server(tmp_path: Path, fsync: str) -> None:
    random = new_random(f"client-kill9-{fsync}")
    kills = (200 if SOAK else 8) if fsync == "batch" else (100 if SOAK else 3)
    with (
        server_in(tmp_path) as server,
        Relay(server.kafka_port, Weather(random, delay_s=0.004)) as relay,
    ):
        settings = settings_for(relay, fsync=fsync)
        retries = Retries(server)
        loads = loads_for(server, relay.bootstrap, TOPIC, PARTITIONS, random)
        counted = missed = 0
        while counted < kills:
            retries.new_life()
            server.restart(settings)
            if len(retries.lives) == 1:
                for load in loads:
                    load.start()
            if _kill(server, relay, list(loads), retries, random):
                counted += 1
            else:
                missed += 1
            assert missed <= kills + 10, "nothing is ever in flight"
        retries.new_life()
        server.restart(settings)
        for load in loads:
            load.finish(HANG_S)
        stored = read_back(server, loads)
    duplicates = {load.ledger.name: load.metrics.duplicates for load in loads}
    print(f"{counted} kills with batches in flight, {missed} without; {len(stored)} records,"
          f" duplicates {duplicates}")  # fmt: skip
    assert sum(duplicates.values()) > 0, "no retry of something stored ever reached the server"
    assert all(load.metrics.reconnects >= kills for load in loads)


@pytest.mark.parametrize("lease_seconds", ["86400", "4"])
def test_a_network_that_loses_things(tmp_path: Path, lease_seconds: str) -> None:
    """With short leases PIDs are replaced all the while."""
    random = new_random(f"client-network-{lease_seconds}")
    weather = Weather(random, faults_every=10)
    faults, switches = (300, 10) if SOAK else (12, 3)
    with server_in(tmp_path) as server, Relay(server.kafka_port, weather) as relay:
        server.restart(settings_for(relay, lease_seconds=lease_seconds))
        loads = loads_for(server, relay.bootstrap, TOPIC, PARTITIONS, random)
        for load in loads:
            load.options["renew_before"] = 0.5
            load.start()
        for kind in KINDS:
            wait_for(lambda kind=kind: _enough(loads, weather.done[kind] >= faults), kind, _look)  # type: ignore[misc]
        if lease_seconds == "4":
            for load in loads:
                wait_for(lambda load=load: _enough(loads, load.metrics.switches >= switches),  # type: ignore[misc]
                         f"switches of {load.ledger.name}", _look)  # fmt: skip
        weather.faults_every = 0
        for load in loads:
            load.finish(WAIT_S)
        stored = read_back(server, loads)
    for load in loads:
        pids = {each.pid for sent in load.sent.values() for each in sent}
        print(f"{load.ledger.name}: {len(pids)} PIDs, {load.metrics}")
        assert load.metrics.duplicates > 0
        assert (len(pids) > 1) == (lease_seconds == "4")
    print(f"{dict(weather.done)}; {len(stored)} records")


def _enough(loads: list[LeasedLoad], reached: bool) -> bool:
    failures = [failure for load in loads for failure in load.ledger.failures]
    assert not failures, failures[:3]
    return reached


def _look() -> None:
    """Nothing is looked at meanwhile."""


def test_a_name_is_taken_over_again_and_again(tmp_path: Path) -> None:
    random = new_random("client-takeover")
    weather = Weather(random, faults_every=25, delay_s=0.003)
    lives = 40 if SOAK else 8
    with server_in(tmp_path) as server, Relay(server.kafka_port, weather) as relay:
        server.restart(settings_for(relay))
        loads: list[LeasedLoad] = []
        for life in range(lives):
            load = LeasedLoad(
                server, TOPIC, PARTITIONS, Random(random.random()), f"life{life}", name="one",
                bootstrap_servers=relay.bootstrap,
                policy="strict",
            )  # fmt: skip
            load.start()
            loads.append(load)
            wait_for(lambda load=load: load.ledger.acknowledged_count > 50, f"life {life}", _look)  # type: ignore[misc]
            time.sleep(random.random() * 0.1)
        loads[-1].finish(HANG_S)
        fenced = sum(len(load.ledger.failures) for load in loads)
        for load in loads[:-1]:
            load.ending.set()
            load._thread.join(HANG_S)
            assert load.ledger.failures
            assert all("FencedError" in each for each in load.ledger.failures), load.ledger.failures
            load.ledger.failures.clear()
        stored = consume(server.bootstrap, TOPIC, PARTITIONS)
        for load in loads:
            load.ledger.check(stored)
        for partition in range(PARTITIONS):
            _check_takeover(loads, partition, stored)
        assert server.stop() == 0
        check_directory(server.data_dir)
    print(f"{dict(weather.done)}; {len(stored)} records, {fenced} fenced")
    assert fenced >= lives - 1


def _check_takeover(loads: list[LeasedLoad], partition: int, stored: list[Stored]) -> None:
    """Nothing of a life stands behind the next one's; each went on at the very next number."""
    lives = [identity(each.value)[0] for each in stored if each.partition == partition]
    order = [load.ledger.name for load in loads]
    assert lives == sorted(lives, key=order.index)
    for load in loads:
        sent = load.sent[partition]
        if sent:
            assert sent[0].sequence == lives.index(load.ledger.name)
            numbers = [each.sequence for each in sent]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


class LosingWeather(Weather):
    """Loses every answer, if it is to."""

    losing = False

    def fault(self, *kinds: str) -> str:
        """See `Weather`."""
        if not self.losing or "lose answer" not in kinds:
            return ""
        self.done["lose answer"] += 1
        return "lose answer"


@pytest.mark.parametrize("policy", ["strict", "monotonic"])
def test_a_delivery_timeout_and_who_goes_on_by_its_name(tmp_path: Path, policy: str) -> None:
    """No answer comes back in time; the next one learns from its leases what was stored."""
    random = new_random(f"client-timeout-{policy}")
    weather = LosingWeather(random)
    with server_in(tmp_path) as server, Relay(server.kafka_port, weather) as relay:
        server.restart(settings_for(relay))
        options: dict[str, Any] = {
            "bootstrap_servers": relay.bootstrap,
            "leases": server.http_url,
            "name": "one",
            "policy": policy,
            "max_batch_size": 1000,
            "retry_backoff_ms": 10,
            "retry_backoff_max_ms": 50,
            "delivery_timeout_ms": 400,
        }
        told = [[0, 0] for _ in range(PARTITIONS)]
        unknown: list[int] = []
        # On a busy machine, a life may end before its first batch is sent.
        while sum(count > 0 for count in unknown) < (30 if SOAK else 4):
            assert len(unknown) < _LIVES_MAX, unknown
            unknown.append(asyncio.run(_one_life(options, weather, random, told)))
        weather.losing = False
        calm = {**options, "delivery_timeout_ms": 1000 * WAIT_S}
        unknown.append(asyncio.run(_one_life(calm, None, random, told)))
        stored = consume(server.bootstrap, TOPIC, PARTITIONS)
        for partition, (_, given) in enumerate(told):
            numbers = [int(each.value) for each in stored if each.partition == partition]
            assert numbers == list(range(given))
        assert server.stop() == 0
        check_directory(server.data_dir)
    print(f"{len(stored)} records, unknown {unknown}, {dict(weather.done)}")
    assert unknown[-1] == 0


async def _one_life(
    options: dict[str, Any], weather: LosingWeather | None, random: Random, told: list[list[int]]
) -> int:
    """Send until no answer comes any more; how many outcomes were unknown.

    `told` is what the application knows by itself: records acknowledged, and given, by partition.
    """
    producer = LeasedProducer(**options)
    await producer.start()
    futures: list[tuple[int, int, asyncio.Future[Any]]] = []
    try:
        for partition in range(PARTITIONS):
            if weather is not None:
                weather.losing = False
            await producer.lease(TOPIC, partition)
            stored = producer.last_sequence_id(TOPIC, partition) + 1
            # What was acknowledged is there, and nothing that was never given.
            assert told[partition][0] <= stored <= told[partition][1]
            told[partition] = [stored, stored]
        limit = 2000 if weather is not None else 200
        for _ in range(limit):
            partition = random.randrange(PARTITIONS)
            number = told[partition][1]
            future = await producer.send(TOPIC, b"%d" % number, partition=partition)
            told[partition][1] += 1
            futures.append((partition, number, future))
            if random.random() < 0.05:
                await asyncio.sleep(0.002)
            if weather is not None and random.random() < 0.01:
                weather.losing = True
        await producer.flush()
    except ProducerError:
        assert weather is not None
    # Those of partitions that were not yet overdue have their answers some time later.
    await producer.stop()
    errors = [each.exception() for _, _, each in futures]
    for (partition, number, _), error in zip(futures, errors, strict=True):
        if error is None:
            told[partition][0] = max(told[partition][0], number + 1)
    return sum(isinstance(error, OutcomeUnknownError) for error in errors)
