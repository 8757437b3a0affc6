"""Kafka's own command line tools: which there are, what is asked of them, and how they are run."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.clients.client import java_options
from tests.clients.facts import Used, record
from tests.servers.kafka.install import java_command
from tests.servers.waiting import WAIT_S

_TIMEOUT_S: Final = WAIT_S
#: Its log is not wanted, but for what it warns of.
_WARNINGS: Final = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_TOOLS: Final = "org.apache.kafka.tools"
#: The scripts of a Kafka distribution, and the classes behind them.
_CLASSES: Final = {
    "kafka-acls": f"{_TOOLS}.AclCommand",
    "kafka-broker-api-versions": f"{_TOOLS}.BrokerApiVersionsCommand",
    "kafka-cluster": f"{_TOOLS}.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": f"{_TOOLS}.consumer.ConsoleConsumer",
    "kafka-console-producer": f"{_TOOLS}.ConsoleProducer",
    "kafka-consumer-groups": f"{_TOOLS}.consumer.group.ConsumerGroupCommand",
    "kafka-delete-records": f"{_TOOLS}.DeleteRecordsCommand",
    "kafka-get-offsets": f"{_TOOLS}.GetOffsetShell",
    "kafka-producer-perf-test": f"{_TOOLS}.ProducerPerformance",
    "kafka-topics": f"{_TOOLS}.TopicCommand",
    "kafka-transactions": f"{_TOOLS}.TransactionsCommand",
    # It has no script: Kafka's own system tests run it.
    "transactional-message-copier": f"{_TOOLS}.TransactionalMessageCopier",
}
#: How a tool is told where the server is: in front of its own arguments, unless it is named here.
_SERVER_LAST: Final = {
    "kafka-cluster": ("--bootstrap-server", "{}"),
    "kafka-producer-perf-test": ("--producer-props", "bootstrap.servers={}"),
    "transactional-message-copier": ("--broker-list", "{}"),
}

#: What the tests ask of them.
OPERATIONS: Final[dict[str, tuple[str, ...]]] = {
    "kafka-broker-api-versions": ("all of them",),
    "kafka-cluster": ("cluster-id",),
    "kafka-configs": ("--describe", "--alter"),
    "kafka-console-consumer": ("in a group",),
    "kafka-console-producer": ("idempotent, zstd",),
    "kafka-consumer-groups": (
        "--list",
        "--describe",
        "--describe --state",
        "--describe --members",
        "--reset-offsets",
        "--delete-offsets",
        "--delete",
    ),
    "kafka-delete-records": ("before an offset",),
    "kafka-get-offsets": ("latest", "earliest"),
    "kafka-producer-perf-test": ("100,000 records",),
    "kafka-topics": ("--create", "--list", "--describe", "--alter", "--delete"),
    "kafka-transactions": ("describe-producers",),
}


@dataclass
class Tools:
    """The tools, on one server."""

    bootstrap: str
    folder: Path
    _ran: list[Used] = field(default_factory=list)

    def run(self, tool: str, operation: str, *args: str, stdin: str = "") -> list[str]:
        """Run a tool that must succeed.

        Parameters:
            tool: the script's name in a Kafka distribution.
            operation: which of OPERATIONS this is.
            args: all its arguments but for the server's address.
            stdin: what it is given to read.

        Returns:
            The lines of its standard output that are not empty.
        """
        assert operation in OPERATIONS[tool]
        lines = run_tool(tool, self.bootstrap, self.folder, *args, stdin=stdin)
        self._ran.append(Used(tool, operation))
        return lines

    def keep(self) -> None:
        """What ran was right, too: the last word of a test."""
        for fact in self._ran:
            record(fact)


def run_tool(tool: str, bootstrap: str, folder: Path, *args: str, stdin: str = "") -> list[str]:
    """Run a tool that must succeed.

    Parameters:
        tool: the script's name in a Kafka distribution.
        bootstrap: the server.
        folder: where it runs.
        args: all its arguments but for the server's address.
        stdin: what it is given to read.

    Returns:
        The lines of its standard output that are not empty.
    """
    done = subprocess.run(
        [
            *java_command(_CLASSES[tool], *java_options(), _WARNINGS),
            *_arguments(tool, bootstrap, args),
        ],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
        cwd=folder,
    )
    said = f"{tool} {' '.join(args)} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.returncode == 0, said
    # Some of them end with 0 all the same.
    assert "Error" not in done.stdout, said
    assert "Exception" not in done.stdout + done.stderr, said
    return [line for line in done.stdout.splitlines() if line.strip()]


def _arguments(tool: str, bootstrap: str, args: tuple[str, ...]) -> tuple[str, ...]:
    if tool in _SERVER_LAST:
        return *args, *(word.format(bootstrap) for word in _SERVER_LAST[tool])
    return "--bootstrap-server", bootstrap, *args


def table(lines: list[str], first: str) -> list[dict[str, str]]:
    """The rows that a tool printed below the headings that begin with `first`.

    No cell has a blank in it.
    """
    start = next(number for number, line in enumerate(lines) if line.split()[0] == first)
    headings = lines[start].split()
    return [dict(zip(headings, line.split(), strict=True)) for line in lines[start + 1 :]]
