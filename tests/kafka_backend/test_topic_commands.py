"""`pidlease topics`, `produce` and `consume` with Kafka as the log."""

from tests.integration.test_cli_produce_consume import consumed, run
from tests.integration.test_cli_topics import check_a_life, topics
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka


@needs_kafka
def test_on_kafka(server: PidleaseServer) -> None:
    check_a_life(server, "of-commands")
    refused = topics(server, "create", "of-commands", "pidlease.initial=zero")
    assert refused.exit_code == 1
    assert "pidlease.initial" in refused.stderr, "Kafka does not know it"
    assert topics(server, "describe", "of-commands").exit_code == 1


@needs_kafka
def test_produce_and_consume(server: PidleaseServer) -> None:
    assert topics(server, "create", "of-lines", "--partitions", "3").exit_code == 0
    lines = b"".join(b"%d:%d\n" % (number % 5, number) for number in range(1000))
    done = run(server, "produce", "of-lines", "--key-separator", ":", stdin=lines)
    assert done.exit_code == 0, done.stderr
    expected = sorted(lines.decode().splitlines())
    assert sorted(consumed(server, "of-lines", "--key-separator", ":")) == expected
    assert len(consumed(server, "of-lines", "--json", "--max", "10")) == 10
