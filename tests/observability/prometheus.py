"""A real Prometheus as a child process, on loopback, asked over its HTTP API."""

import json
import os
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlencode

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.observability.install import tool
from tests.servers.process import ServerProcess
from tests.servers.waiting import WAIT_S

_TIMEOUT_S: Final = 10.0
_START_S: Final = WAIT_S
#: How often it scrapes and evaluates rules.
INTERVAL: Final = "1s"


class PrometheusApi:
    """What a Prometheus answers over HTTP.

    Parameters:
        address: its HOST:PORT.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """The series of an expression as of now, with their values.

        Raises:
            RuntimeError: Prometheus does not take it.
        """
        found = self._get("query", query=expression)
        if found["resultType"] == "scalar":
            return [({}, float(found["result"][1]))]
        return [(each["metric"], float(each["value"][1])) for each in found["result"]]

    def firing(self) -> list[dict[str, Any]]:
        """The alerts that fire: labels and annotations."""
        alerts: list[dict[str, Any]] = self._get("alerts")["alerts"]
        return [each for each in alerts if each["state"] == "firing"]

    def rules(self) -> list[dict[str, Any]]:
        """All rules, and whether they could be evaluated."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, what: str, **parameters: str) -> Any:
        url = f"http://{self.address}/api/v1/{what}?{urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{parameters}: {error.read().decode()}") from error


class Prometheus(PrometheusApi):
    """Scrapes each second, from its start to its end.

    Parameters:
        folder: for its configuration and data.
        targets: HOST:PORTs, by the name of their job.
        rules: the text of a file of rules, if there are to be any.
    """

    def __init__(
        self, folder: Path, targets: Mapping[str, Sequence[str]], rules: str | None = None
    ) -> None:
        self._folder = folder
        self._program = tool("prometheus")
        (port,) = free_ports(1)
        super().__init__(f"{LOOPBACK}:{port}")
        self._config: dict[str, Any] = {
            "global": {
                "scrape_interval": INTERVAL,
                "scrape_timeout": INTERVAL,
                "evaluation_interval": INTERVAL,
            },
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": list(each)}]}
                for job, each in targets.items()
            ],
        }
        self._rules = rules
        self.process = ServerProcess("Prometheus", folder / "prometheus.log", folder)

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._rules is not None:
            (self._folder / "rules.yml").write_text(self._rules)
            self._config["rule_files"] = ["rules.yml"]
        # JSON is YAML, too.
        (self._folder / "prometheus.yml").write_text(json.dumps(self._config))
        command = [
            str(self._program), "--config.file=prometheus.yml", "--storage.tsdb.path=data",
            f"--web.listen-address={self.address}", "--log.level=warn",
        ]  # fmt: skip
        self.process.start(command, os.environ)
        try:
            self.process.wait_until(self._answers, _START_S)
        except BaseException:
            self.process.kill9()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill9()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=1) as response:
                return bool(response.status == 200)
        except OSError:
            return False
