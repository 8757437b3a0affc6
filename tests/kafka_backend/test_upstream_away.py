"""Kafka goes away in the middle, dead or silent, and comes back: each record once, in order."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.client.loads import LeasedLoad
from tests.crash.clients import LibrdkafkaLoad, Load
from tests.crash.consumers import LibrdkafkaReader, Readings
from tests.crash.lives import Retries, rounds, wait_for
from tests.crash.seeds import SOAK, new_random
from tests.http_api.appending import RAW, path_of, producer
from tests.http_api.lives import ask
from tests.kafka_backend.loads import HttpLoad
from tests.kafka_backend.test_clients import new_topic
from tests.kafka_backend.test_kills import BATCH_IN_DOUBT, WRITER_IN_DOUBT, get_on, read_back
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka

pytestmark = [
    needs_kafka, pytest.mark.kafka,
    pytest.mark.timeout(3600 if SOAK else 900),
]  # fmt: skip

PARTITIONS = 2
#: At least; and as many as it takes until each kind of doubt has come.
ROUNDS = 20 if SOAK else 1
_SILENT = "no response in time"
_WAIT_S = 300.0
_TIMEOUT_S = 2
#: Kafka takes no shorter one.
_SESSION = {"session.timeout.ms": 6000}


def test_kafka_dies_or_is_silent_and_comes_back(tmp_path: Path) -> None:
    random = new_random("away")
    settings = {"upstream_timeout_seconds": str(_TIMEOUT_S), "log_level": "info"}
    with (
        KafkaServer(tmp_path / "kafka") as kafka,
        in_front_of(kafka, tmp_path / "server", **settings) as server,
    ):
        server.start()
        pid = server.pid
        ours, plain = new_topic(server, PARTITIONS), new_topic(server, PARTITIONS)
        readings = Readings(PARTITIONS, in_order=False)
        loads: list[LibrdkafkaLoad | LeasedLoad | HttpLoad] = [
            # Of a topic without writers' markers: all that is committed was read by somebody.
            LibrdkafkaLoad(server.bootstrap, plain, PARTITIONS, Random(random.random()), "plain"),
            LibrdkafkaLoad(server.bootstrap, ours, PARTITIONS, Random(random.random())),
            LeasedLoad(server, ours, PARTITIONS, Random(random.random()), "strict"),
            HttpLoad(server, ours, PARTITIONS, Random(random.random())),
        ]
        members = [
            LibrdkafkaReader(server.bootstrap, "away", plain, readings, **_SESSION)
            for _ in range(2)
        ]
        retries = Retries(server)
        retries.new_life()
        for each in (*loads, *members):
            each.start()

        def happened() -> bool:
            log = server.log_text()
            return _SILENT in log and BATCH_IN_DOUBT in log and WRITER_IN_DOUBT in log

        for _ in rounds(ROUNDS, happened):
            for silent in random.sample([False, True], 2):
                _get_on(loads, readings, retries)
                time.sleep(random.random() * 0.3)
                with kafka.process.stopped() if silent else _dead(kafka):
                    _meanwhile(server, ours, f"away-{random.random()}", silent=silent)
        _get_on(loads, readings, retries)
        mine = [load for load in loads if load.ledger.name != "plain"]
        stored = read_back(kafka.bootstrap, ours, PARTITIONS, mine, _WAIT_S)
        read_back(kafka.bootstrap, plain, PARTITIONS, loads[:1], _WAIT_S)
        given = set(range(sum(loads[0].ledger.given.values())))
        wait_for(
            lambda: sum(readings.committed.values()) >= len(given) or bool(readings.faults),
            "all to be committed", retries.look,
        )  # fmt: skip
        for member in members:
            member.finish(_WAIT_S)
        assert not readings.faults, readings.faults[:5]
        assert len(readings.values) == len(given)
        log = server.log_text()
        print(f"{len(stored)} + {len(given)} records, {readings.commits} commits,"
              f" {retries.total:.0f} duplicates")  # fmt: skip
        assert (server.pid, server.alive) == (pid, True)
        assert server.stop() == 0
    assert _SILENT in log, "it was never silent for long enough"
    assert BATCH_IN_DOUBT in log, "no batch of Kafka's clients was ever in doubt"
    assert WRITER_IN_DOUBT in log, "no writer was ever in doubt"
    assert "Traceback" not in log


def _get_on(loads: Sequence[Load], readings: Readings, retries: Retries) -> None:
    """Wait until each producer was told of a record, and the group of commits."""
    before = dict(readings.committed)
    get_on(loads, retries, _WAIT_S)
    deadline = time.monotonic() + _WAIT_S
    while any(readings.committed[number] <= at for number, at in before.items()):
        assert time.monotonic() < deadline, f"the group does not get on: {before}"
        assert not readings.faults, readings.faults[:5]
        time.sleep(0.05)


@contextmanager
def _dead(kafka: KafkaServer) -> Iterator[None]:
    kafka.process.kill9()
    yield
    kafka.start()


def _meanwhile(server: PidleaseServer, topic: str, name: str, *, silent: bool) -> None:
    """Kafka is away: what is asked of the server alone is answered, and appends come again."""
    since, refused = time.monotonic(), 0
    while refused < 2 or (silent and time.monotonic() < since + 2 * _TIMEOUT_S):
        assert time.monotonic() < since + _WAIT_S, "appends are not refused"
        asked = time.monotonic()
        whose = {**RAW, **producer(name, 0, 0)}  # nobody whom it knows
        status, told = ask(server, "POST", path_of(topic), b"meanwhile/0/0 ", whose, _WAIT_S)
        print(
            f"{'silent' if silent else 'dead'}: 503 after {time.monotonic() - asked:.1f} s: {told}"
        )
        assert status == 503, told
        assert told["error"], told
        refused += 1
        status, text = server.get("/readyz")
        assert status in (200, 503), text
        assert server.get("/healthz")[0] == 200
        assert server.metric("pidlease_batches_judged_total") > 0
