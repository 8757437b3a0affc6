"""A supervisor with its workers, as one server that a test kills, or kills parts of."""

import http.client
import json
from pathlib import Path
from typing import Any

from pidlease.testing.loopback_ports import LOOPBACK, adjacent_free_ports
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import until


class SupervisedServer(PidleaseServer):
    """`pidlease serve --workers`; `pid` is the supervisor's.

    Parameters:
        count: of workers, each with an address of its own.
    """

    def __init__(self, directory: Path, count: int, **settings: str) -> None:
        super().__init__(directory, settings={**settings, "shared": "true", "workers": str(count)})
        self.count = count
        self.kafka_port, self.http_port = (adjacent_free_ports(count + 1)[0] for _ in "kh")
        self.bootstrap = self.bootstrap_servers = f"{LOOPBACK}:{self.kafka_port}"
        self.http_address = f"{LOOPBACK}:{self.http_port}"
        self.http_url = self.leases = f"http://{self.http_address}"

    def wait_complete(self, times: int = 1) -> None:
        """Wait until all workers have served, in so many starts."""
        line = "all workers serve"
        until(lambda: self.log_text().count(line) == times, f"{line!r} in the log")

    def worker_pids(self) -> list[int]:
        """The pids of the workers that run."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(each) for each in children.read_text().split()]

    def pid_of(self, number: int) -> int:
        """The pid of a worker, by its own address; 0: it does not serve."""
        rows = self.ask_worker(number, "/v1/servers").get("servers", [])
        return next(
            (int(each["server"].rpartition(":")[2]) for each in rows if each["responds"]), 0
        )

    def ask_worker(self, number: int, path: str) -> dict[str, Any]:
        """The JSON of a worker's own HTTP address; empty: it does not respond."""
        connection = http.client.HTTPConnection(LOOPBACK, self.http_port + number, timeout=5)
        try:
            connection.request("GET", path)
            found: dict[str, Any] = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        else:
            return found
        finally:
            connection.close()
