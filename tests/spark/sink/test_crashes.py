"""A copy by Spark whose application is killed, and stopped and revived under its successor."""

from pathlib import Path

import pytest

from tests.copier.sides import Filler, check_same, more_arrived, records_of
from tests.crash.seeds import SOAK, new_random
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.spark.application import SparkCopy
from tests.servers.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(3600 if SOAK else 400)]

KILLS = 12 if SOAK else 3
COUNT = 1_000_000 if SOAK else 80_000
FENCED = 3


@pytest.mark.parametrize("where", ["server", "in_front"])
def test_nothing_is_lost_or_doubled(
    where: str, request: pytest.FixtureRequest, tmp_path: Path, kafka_source: KafkaServer
) -> None:
    """Killed in the middle of micro-batches; and one that was stopped finds itself fenced."""
    server: PidleaseServer = request.getfixturevalue(where)
    server.start()
    random = new_random(f"spark {where}")
    topic = f"crash-{where}"
    Filler(kafka_source.bootstrap, topic, COUNT, random).start().finish()
    checkpoint = tmp_path / "checkpoint"
    begun = 0

    def application() -> SparkCopy:
        nonlocal begun
        begun += 1
        return SparkCopy(
            tmp_path / f"spark-{begun}", kafka_source.bootstrap, server, checkpoint,
            "--topics", topic, "--topic", "{topic}.copy", "--available-now",
            "--max-offsets-per-trigger", str(COUNT // 4),
        ).start()  # fmt: skip

    kills = KILLS if where == "server" or SOAK else 1
    for _ in range(kills):
        running = application()
        more_arrived(server, random.randrange(1, COUNT // 8))
        running.kill9()
    first = application()
    more_arrived(server, 1)
    with first.stopped():
        second = application()
        assert second.process.wait_exit(200) == 0, second.text[-3000:]
    assert first.process.wait_exit(100) == FENCED, first.text[-3000:]
    assert "fenced: " in first.text, first.text[-3000:]
    assert records_of(server) >= COUNT * 0.9  # most came behind the last start of the server
    sent = check_same(kafka_source, topic, server, f"{topic}.copy")
    assert sent >= COUNT
    until(lambda: server.alive, "the server to be there")
