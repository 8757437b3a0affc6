"""`pidlease topics` with Kafka as the log."""

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
