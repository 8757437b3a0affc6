"""What a server that is at work tells Prometheus: all of it known, and nothing without bound."""

from pathlib import Path

from confluent_kafka import Consumer, Producer
from prometheus_client.parser import text_string_to_metric_families

from pidlease.observability import metric_catalogue as metrics
from tests.http_api.appending import RAW, path_of
from tests.http_api.appending import producer as producer_headers
from tests.http_api.lives import ask
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

#: Those that a server on the embedded log tells without being a copier, a client or Spark.
#: Metrics of several active servers.
SEVERAL = (
    "pidlease_partitions_owned", "pidlease_partitions_without_owner", "pidlease_servers",
    "pidlease_partitions_taken_over", "pidlease_partitions_handed_over",
    "pidlease_takeover_seconds", "pidlease_servers_answering", "pidlease_silent_servers_moved",
    "pidlease_takeover_offsets", "pidlease_followed_partitions", "pidlease_follower_lag_seconds",
    "pidlease_partitions_fetched", "pidlease_divides_slots",
)  # fmt: skip
#: Those of servers with logins or ACLs.
SECURED = (
    "pidlease_quota_throttles", "pidlease_quota_throttled_seconds", "pidlease_acls_age_seconds",
    "pidlease_logins", "pidlease_denied", "pidlease_audit_lines_lost",
)  # fmt: skip
ELSEWHERE = ("pidlease_client_", "pidlease_copy_", "pidlease_spark_", *SEVERAL, *SECURED)


def work(server: PidleaseServer) -> None:
    """A little of everything."""
    producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
    for number in range(100):
        producer.produce("t", b"%d" % number)
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer({
        "bootstrap.servers": server.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"
    })  # fmt: skip
    consumer.subscribe(["t"])
    read = 0
    while read < 100:
        read += len(consumer.consume(100, 1))
    consumer.close()
    for epoch, sequence in ((1, 0), (1, 0), (1, 7), (0, 0)):
        ask(server, "POST", path_of(), b"x", {**RAW, **producer_headers("p", epoch, sequence)})


def test_what_is_told_is_in_the_catalogue(tmp_path: Path) -> None:
    """Names, kinds and labels; and what may be missing is missing for a reason."""
    with PidleaseServer(tmp_path, settings={"snapshot_batches": "1"}) as server:
        work(server)
        server.process.wait_until(lambda: server.metric("pidlease_snapshots_total") > 0, WAIT_S)
        text = server.get("/metrics")[1]
        families = {each.name: each for each in text_string_to_metric_families(text)}
        ours = {name for name in families if name.startswith("pidlease_")}
        assert ours <= metrics.CATALOGUE.keys()
        for name in ours:
            definition, family = metrics.CATALOGUE[name], families[name]
            assert family.type == definition.kind
            for sample in family.samples:
                assert sample.labels.keys() - {"le"} == set(definition.labels), sample
        missing = {
            name
            for name, each in metrics.CATALOGUE.items()
            if name not in ours and not name.startswith(ELSEWHERE)
        }
        assert not missing
        assert families["process_resident_memory_bytes"].samples[0].value > 1 << 20


def test_verdicts_by_door(tmp_path: Path) -> None:
    """The same outcome of the same topic, told apart."""
    with PidleaseServer(tmp_path) as server:
        work(server)

        def judged(**labels: str) -> float:
            return server.metric("pidlease_batches_judged_total", topic="t", **labels)

        for outcome in ("appended", "duplicate", "gap", "fenced"):
            assert judged(door="http", policy="epoch", outcome=outcome) == 1, outcome
        assert judged(door="kafka", policy="kafka", outcome="appended") >= 1
        assert judged(door="kafka", policy="epoch") == judged(door="http", policy="kafka") == 0
        assert server.metric("pidlease_read_records_total", topic="t") >= 100
        pushed = server.metric("pidlease_pushed_batches_total")
        assert pushed == server.metric("pidlease_persisted_batches_total") > 1
        refused = [line for line in server.log_text().splitlines() if "was refused" in line]
        assert len(refused) == 2
        assert all("topic=t" in line and "generation=" in line for line in refused)
