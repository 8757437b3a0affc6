"""Runs the supervisor with workers that serve nothing, and print what happens to them.

python -m tests.integration.scripted_workers '{"1": "serve", "2": "refuse"}'
"""

import json
import os
import signal
import sys
import time

from proxy.configuration.settings import Settings, load_settings
from proxy.log_output import configure_logs
from proxy.service_manager import ServiceManager, ServiceState
from proxy.workers import supervisor
from proxy.workers.supervisor import Supervisor
from proxy.workers.worker_process import WorkerProcess

_PAUSE_S = 0.02


def _say(text: str) -> None:
    # In one write, or the lines of two workers mix where Python's output is not buffered.
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class _Worker:
    """Serves until SIGTERM."""

    def __init__(self, number: int, plan: str) -> None:
        self.number = number
        self.plan = plan
        self.stops = False

    def run(self, manager: ServiceManager) -> int:
        """What it does in its process, by its plan."""
        _say(f"{self.number} is {os.getpid()}")
        if self.plan == "refuse":
            return 2
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGHUP, lambda *_: _say(f"{self.number} reads"))
        manager.report(ServiceState(started=False, text="loading"))
        while not self.stops:
            manager.report(ServiceState(started=self.plan != "load", text=self.plan))
            time.sleep(_PAUSE_S)
        _say(f"{self.number} stops")
        return 0

    def _stop(self, *_: object) -> None:
        self.stops = self.plan != "stay"


def _main() -> int:
    plans = {int(number): plan for number, plan in json.loads(sys.argv[1]).items()}
    settings = load_settings(
        None,
        {
            "log": "kafka", "upstream": "127.0.0.1:1", "zookeeper": "127.0.0.1:1/p", "shared": True,
            "workers": len(plans), "stop_seconds": 0.5,
        },
    )  # fmt: skip
    supervisor._KILL_AFTER_SECONDS = 0.2  # type: ignore[misc] # a test waits for it
    configure_logs(settings)

    def run(_: Settings, number: int, manager: ServiceManager) -> int:
        return _Worker(number, plans[number]).run(manager)

    manager = ServiceManager.from_environment(os.environ, os.getpid())
    workers = [WorkerProcess(number) for number in sorted(plans)]
    return Supervisor(settings, lambda: settings, workers, run, manager).run()


if __name__ == "__main__":
    sys.exit(_main())
