"""A copy by Spark; its application is killed, or stopped and revived under its successor."""

from pathlib import Path

import pytest

from tests.copier.sides import Filler, check_same, more_arrived
from tests.crash.seeds import SOAK, new_random
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.spark.application import SparkCopy
from tests.servers.waiting import WAIT_S

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(3600 if SOAK else 900)]

KILLS = 12 if SOAK else 3
COUNT = 1_000_000 if SOAK else 40_000
FENCED = 3


#: The kills of an application, and whether one is stopped, replaced and revived then.
SCENES = {"server": (KILLS, True), "in_front": (KILLS, True)} if SOAK else {"server": (1, True)}


@pytest.mark.parametrize("where", SCENES)
def test_nothing_is_lost_or_doubled(
    where: str, request: pytest.FixtureRequest, tmp_path: Path, kafka_source: KafkaServer
) -> None:
    """An application is killed in micro-batches; one that was stopped is fenced when it goes on."""
    server: PidleaseServer = request.getfixturevalue(where)
    server.start()
    random = new_random(f"spark {where}")
    topic = f"crash-{where}"
    Filler(kafka_source.bootstrap, topic, COUNT, random).start().finish()
    applications: list[SparkCopy] = []

    def application() -> SparkCopy:
        applications.append(
            SparkCopy(
                tmp_path / f"spark-{len(applications)}", kafka_source.bootstrap, server,
                tmp_path / "checkpoint", "--topics", topic, "--topic", "{topic}.copy",
                "--available-now", "--max-offsets-per-trigger", str(COUNT // 4),
            )
        )  # fmt: skip
        return applications[-1].start()

    kills, revived = SCENES[where]
    for _ in range(kills):
        running = application()
        more_arrived(server, random.randrange(1, COUNT // 8))
        running.kill9()
    first = application()
    more_arrived(server, 1)
    if revived:
        with first.stopped():
            second = application()
            assert second.process.wait_exit(WAIT_S) == 0, second.text[-3000:]
        assert first.process.wait_exit(WAIT_S) == FENCED, first.text[-3000:]
        assert "fenced: " in first.text, first.text[-3000:]
    else:
        assert first.process.wait_exit(WAIT_S) == 0, first.text[-3000:]
    assert check_same(kafka_source, topic, server, f"{topic}.copy") >= COUNT
