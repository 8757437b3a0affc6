"""Copies by Spark; an application is killed, or stopped and revived under its successor."""

import json
from pathlib import Path

import pytest

from tests.copier.sides import Filler, check_same, more_arrived
from tests.crash.seeds import SOAK, new_random
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.spark.application import SparkApplication, SparkCopy
from tests.servers.waiting import WAIT_S

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(3600 if SOAK else 900)]

KILLS = 12 if SOAK else 3
COUNT = 1_000_000 if SOAK else 40_000
FENCED = 3
#: Spark's own consumer gives up after a minute; an application is stopped for longer.
PATIENT = ("kafka.default.api.timeout.ms", "1200000")


#: Where to, how the query is written, the kills of an application, and whether one is stopped,
#: replaced and revived then.
SCENES = (
    [(where, plain, KILLS, True) for where in ("server", "in_front") for plain in (False, True)]
    if SOAK
    else [("server", False, 1, True)]
)


@pytest.mark.parametrize(("where", "plain", "kills", "revived"), SCENES)
def test_nothing_is_lost_or_doubled(
    where: str, request: pytest.FixtureRequest, tmp_path: Path, kafka_source: KafkaServer,
    *, plain: bool, kills: int, revived: bool,
) -> None:  # fmt: skip
    """An application is killed in micro-batches; one that was stopped is fenced when it goes on."""
    server: PidleaseServer = request.getfixturevalue(where)
    server.start()
    random = new_random(f"spark {where} {plain}")
    topic = f"crash-{where}-{plain}"
    Filler(kafka_source.bootstrap, topic, COUNT, random).start().finish()
    made = 0

    def application() -> SparkApplication:
        nonlocal made
        made += 1
        folder, checkpoint = tmp_path / f"spark-{made}", tmp_path / "checkpoint"
        limit = str(COUNT // 4)
        if not plain:
            return SparkCopy(
                folder, kafka_source.bootstrap, server, checkpoint, "--topics", topic, "--topic",
                "{topic}.copy", "--available-now", "--max-offsets-per-trigger", limit,
                "--source-option", "=".join(PATIENT),
            ).start()  # fmt: skip
        read = {
            "kafka.bootstrap.servers": kafka_source.bootstrap, "subscribe": topic,
            "startingOffsets": "earliest", "includeHeaders": "true", "maxOffsetsPerTrigger": limit,
            PATIENT[0]: PATIENT[1],
        }  # fmt: skip
        written = {
            "kafka.bootstrap.servers": server.bootstrap, "leases": server.http_url,
            "topic": "{topic}.copy", "checkpointLocation": str(checkpoint),
        }  # fmt: skip
        words = (str(folder), json.dumps(read), json.dumps(written))
        return SparkApplication(folder, "tests.spark.sink.plain_stream", *words).start()

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
