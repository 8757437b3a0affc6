"""Kafka's own tools on a secured server: what `kafka-configs.sh` and `kafka-acls.sh` change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from tests.clients.tools import run_tool
from tests.secure.secured_process import SECRETS, Running, started
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

#: One server for all of them, so one worker.
pytestmark = [needs_kafka, pytest.mark.kafka]
_Run = Callable[..., list[str]]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("tools") / "server"
    with started(folder, "t", settings={"connections_max_reauth_ms": "0"}) as server:
        yield server


@pytest.fixture
def run(running: Running, tmp_path: Path) -> _Run:
    """Run a tool as the super user."""
    config = tmp_path / "root.properties"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    config.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={running.authority.root.certificate}\n"
        f'sasl.jaas.config={module} required username="root" password="{SECRETS["root"]}";\n'
    )

    def with_login(tool: str, *args: str) -> list[str]:
        options = ("--command-config", str(config), *args)
        return run_tool(tool, running.server.bootstrap, tmp_path, *options)

    return with_login


_DEFAULT: Final = ("--entity-type", "users", "--entity-default")


def test_quotas_of_users_and_clients(running: Running, run: _Run) -> None:
    """Set, shown, in force, and removed; as Kafka's documentation has the commands."""
    configs = partial(run, "kafka-configs")
    alice = ("--entity-type", "users", "--entity-name", "alice")
    app = ("--entity-type", "clients", "--entity-name", "app")
    limits = "producer_byte_rate=20000,consumer_byte_rate=2000000"
    done = configs("--alter", "--add-config", limits, *alice)
    assert done == ["Completed updating config for user alice."]
    configs("--alter", "--add-config", "producer_byte_rate=1048576", *alice, *app)
    configs("--alter", "--add-config", "producer_byte_rate=5242880", *_DEFAULT)
    configs("--alter", "--add-config", "consumer_byte_rate=1024",
            "--entity-type", "clients", "--entity-default")  # fmt: skip
    said = configs("--describe", *alice)
    assert any(
        "Quota configs for user-principal 'alice' are" in line
        and "producer_byte_rate=20000.0" in line and "consumer_byte_rate=2000000.0" in line
        for line in said
    ), said  # fmt: skip
    assert any("SCRAM credential configs for user-principal 'alice'" in line for line in said)
    said = configs("--describe", *alice, *app)
    both = "user-principal 'alice', client-id 'app'"
    assert said == [f"Quota configs for {both} are producer_byte_rate=1048576.0"]
    assert configs("--describe", *_DEFAULT) == [
        "Quota configs for the default user-principal are producer_byte_rate=5242880.0"
    ]
    said = configs("--describe", "--entity-type", "clients")
    assert said == ["Quota configs for the default client-id are consumer_byte_rate=1024.0"]

    producer = Producer(running.librdkafka("alice", "SCRAM-SHA-256", **{"client.id": "other"}))
    for _ in range(30):
        producer.produce("t", b"x" * 10_000)
    assert producer.flush(WAIT_S) == 0
    with running.http("root") as root:
        text = root.get("/metrics").text
    counted = 'pidlease_quota_throttled_seconds_total{listener="kafka",quota="producer_byte_rate"}'
    (line,) = (each for each in text.splitlines() if each.startswith(counted))
    assert float(line.split()[-1]) > 1

    configs("--alter", "--delete-config", "producer_byte_rate,consumer_byte_rate", *alice)
    configs("--alter", "--delete-config", "producer_byte_rate", *_DEFAULT)
    said = configs("--describe", *alice)
    assert not any("Quota" in line for line in said), said
    assert configs("--describe", *_DEFAULT) == []


def test_a_quota_that_is_not_served_is_an_error(run: _Run) -> None:
    with pytest.raises(AssertionError, match="set request_rate"):
        run("kafka-configs", "--alter", "--add-config", "request_percentage=50", *_DEFAULT)


def test_users(running: Running, run: _Run) -> None:
    configs = partial(run, "kafka-configs", "--entity-type", "users", "--entity-name", "emma")
    configs("--alter", "--add-config", "SCRAM-SHA-512=[iterations=8192,password=Emma-secret-1]")
    said = configs("--describe")
    assert any("SCRAM-SHA-512=iterations=8192" in line for line in said), said
    configs("--alter", "--delete-config", "SCRAM-SHA-512")
    until(lambda: "emma" not in running.users("list"), "the user to be removed")


def test_acls(running: Running, run: _Run) -> None:
    acls = partial(run, "kafka-acls")
    said = acls("--add", "--allow-principal", "User:fred", "--operation", "Write",
                "--topic", "by-", "--resource-pattern-type", "prefixed")  # fmt: skip
    assert any("operation=WRITE" in line and "User:fred" in line for line in said), said
    acls("--add", "--deny-principal", "User:fred", "--operation", "All", "--topic", "by-fred-not")
    acls("--add", "--allow-principal", "User:fred", "--producer", "--topic", "whole",
         "--transactional-id", "fred-1")  # fmt: skip
    acls("--add", "--allow-principal", "User:fred", "--consumer", "--topic", "whole",
         "--group", "readers")  # fmt: skip
    listed = "\n".join(acls("--list", "--principal", "User:fred"))
    for resource in (
        "resourceType=TOPIC, name=by-, patternType=PREFIXED",
        "resourceType=TOPIC, name=by-fred-not, patternType=LITERAL",
        "resourceType=TRANSACTIONAL_ID, name=fred-1", "resourceType=GROUP, name=readers",
    ):  # fmt: skip
        assert resource in listed
    assert "permissionType=DENY" in listed
    with running.http("root") as root:
        text = (running.data / "security" / "acls").read_text()
        assert '"User:fred"' in text
        assert root.get("/v1/status").status_code == 200
    acls("--remove", "--force", "--allow-principal", "User:fred", "--operation", "Write",
         "--topic", "by-", "--resource-pattern-type", "prefixed")  # fmt: skip
    assert "patternType=PREFIXED" not in "\n".join(acls("--list", "--principal", "User:fred"))
