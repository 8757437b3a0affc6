"""Clean stops under the demo's clients: nothing is lost or doubled by them."""

import time
from pathlib import Path

from deploy.demo.audit import audit
from deploy.demo.clients import AiokafkaClient, Client, LibrdkafkaClient, Pace
from deploy.demo.rows import CLIENTS, load_records
from deploy.demo.story import SETTINGS, make_topics, read_topics
from tests.crash.lives import get_on
from tests.servers.pidlease import not_started
from tests.servers.waiting import WAIT_S, until

STOPS = 3


def test_stops_under_the_clients_of_the_demo(tmp_path: Path) -> None:
    """SIGTERM with batches in flight, three times; each ends by itself, with a snapshot."""
    left = STOPS
    records = load_records()
    with not_started(tmp_path, **SETTINGS) as server:
        server.start()
        make_topics(server.bootstrap)
        pace = Pace(12, lambda: left)
        librdkafka, aiokafka = (pace.bursts(records[client]) for client in CLIENTS)
        clients: list[Client] = [
            LibrdkafkaClient(server.bootstrap, librdkafka),
            AiokafkaClient(server.bootstrap, aiokafka),
        ]
        for client in clients:
            client.start()
        while left:
            get_on(clients)
            time.sleep(1)
            begins = len(server.log_text())
            until(lambda: any(each.batches_in_flight() for each in clients), "a batch", 0.001)
            assert server.stop() == 0
            assert "snapshot" in server.log_text()[begins:].rpartition("stopping")[2]
            server.start()
            left -= 1
        for client in clients:
            client.join(WAIT_S)
        stored = read_topics(server.bootstrap)
        assert server.stop() == 0
    found = audit([client.ledger for client in clients], stored)
    assert found.total.sent == found.total.stored == sum(map(len, records.values()))
    assert (found.total.lost, found.total.doubled, found.foreign, found.misplaced) == (0, 0, 0, 0)
