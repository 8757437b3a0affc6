"""A topic of the source that is deleted and made again under the copier: an error, no gap."""

from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.copier.sides import CopyProcess, make_topic, more_arrived, records_of
from tests.servers.pidlease import PidleaseServer, not_started
from tests.servers.waiting import WAIT_S, until

#: The later topic has more records than the former one, so that the offset to go on from is there.
FORMER, LATER = 500, 2_000


def fill(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(WAIT_S) == 0


def test_a_topic_made_anew_is_another_one(tmp_path: Path) -> None:
    """Once the copy went on in it from where it was, and its first records were never copied."""
    with (
        PidleaseServer(tmp_path / "source") as source,
        not_started(tmp_path / "target") as target,
    ):
        target.start()
        make_topic(source.bootstrap, "t", 1)
        fill(source.bootstrap, "t", FORMER)
        words = ("--topics", "t", "--group", "g", "--give-up-seconds", "60")
        copier = CopyProcess(tmp_path / "1", source.bootstrap, target, *words).start()
        more_arrived(target, FORMER - int(records_of(target)))
        with copier.stopped():
            admin = AdminClient({"bootstrap.servers": source.bootstrap})
            admin.delete_topics(["t"])["t"].result(WAIT_S)
            until(lambda: "t" not in admin.list_topics(timeout=WAIT_S).topics, "t to be gone")
            make_topic(source.bootstrap, "t", 1)
            fill(source.bootstrap, "t", LATER)
        assert copier.process.wait_exit(WAIT_S) == 2, copier.text
        assert "t of the source was deleted and made anew" in copier.text, copier.text
