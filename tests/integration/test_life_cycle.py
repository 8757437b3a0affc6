"""Starting and stopping the real process."""

from pathlib import Path

from confluent_kafka import Producer

from tests.servers.pidlease import PidleaseServer


def test_told_to_stop_while_it_recovers(tmp_path: Path) -> None:
    """It goes at once, and the next start finds everything."""
    server = PidleaseServer(tmp_path)
    server.process.forks = False
    with server:
        producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
        for n in range(100):
            producer.produce("t", str(n).encode(), partition=0)
        assert producer.flush(20) == 0
        server.kill9()
        # Every fsync takes long: it is still at its start when it is told to stop.
        server.settings["faults"] = "slow=1.5 before fsync_folder * 1"
        server.launch()
        server.process.wait_until(lambda: "faults are on" in server.log_text(), 20)
        assert server.stop(20) == 0
        assert "serving" not in server.log_text().rpartition("faults are on")[2]
        server.settings.pop("faults")
        server.restart()
        assert server.metric("pidlease_producers") == 1
