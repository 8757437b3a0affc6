"""`pidlease topics` against a real server."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from proxy.__main__ import cli
from tests.servers.pidlease import PidleaseServer


def topics(server: PidleaseServer, *words: str) -> Result:
    """Run the command in this process: its own start costs more than all the rest."""
    env = {"PIDLEASE_SERVERS": server.bootstrap, "PIDLEASE_URL": server.http_url}
    return CliRunner().invoke(cli, ["topics", *words], env=env)


def described(server: PidleaseServer, topic: str) -> Any:
    result = topics(server, "describe", topic, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def check_a_life(server: PidleaseServer, topic: str) -> None:
    """A topic from its creation to its end; the same for both backends."""
    made = topics(server, "create", topic, "retention.ms=86400000", "--partitions", "3")
    assert (made.exit_code, made.stdout, made.stderr) == (0, f"created {topic}\n", "")
    again = topics(server, "create", topic)
    assert (again.exit_code, again.stdout) == (1, "")
    assert "exists" in again.stderr
    assert described(server, topic)["partitions"] == 3
    assert topic in topics(server, "list").stdout

    assert topics(server, "alter", topic, "pidlease.initial=zero").exit_code == 0
    found = described(server, topic)
    assert found["settings"]["pidlease.initial"] == {"value": "zero", "source": "topic"}
    changed = topics(server, "alter", topic, "pidlease.deduplication=off",
                     "--unset", "pidlease.initial")  # fmt: skip
    assert changed.exit_code == 0, changed.stderr
    grown = topics(server, "alter", topic, "--partitions", "5")
    assert (grown.exit_code, grown.stdout) == (0, f"{topic} has 5 partitions\n"), grown.stderr
    found = described(server, topic)
    assert found["partitions"] == 5
    assert found["settings"]["pidlease.deduplication"] == {"value": "off", "source": "topic"}
    assert found["settings"]["pidlease.initial"]["source"] == "default"
    fewer = topics(server, "alter", topic, "--partitions", "2")
    assert (fewer.exit_code, fewer.stderr.count("\n")) == (1, 1)
    assert described(server, topic)["partitions"] == 5

    gone = topics(server, "delete", topic)
    assert (gone.exit_code, gone.stdout) == (0, f"deleted {topic}\n"), gone.stderr
    assert topics(server, "describe", topic).exit_code == 1
    twice = topics(server, "delete", topic)
    assert (twice.exit_code, twice.stderr) == (1, f"pidlease: {topic}: there is no such topic\n")


def test_on_the_embedded_log(tmp_path: Path) -> None:
    with PidleaseServer(tmp_path) as server:
        check_a_life(server, "orders")
        made = topics(server, "create", "its-own", "pidlease.initial=zero", "retention.ms=86400000")
        assert made.exit_code == 0
        found = described(server, "its-own")
        assert found["partitions"] == 1
        for name, value in (("pidlease.initial", "zero"), ("retention.ms", "86400000")):
            assert found["settings"][name] == {"value": value, "source": "topic"}
        (row,) = found["offsets"]
        assert row == {"partition": 0, "log_start": 0, "log_end": 0, "reason": ""}
        for words, reason in (
            (["create", "x", "colour=red"], "colour is not known"),
            (["create", "x", "--replication-factor", "3"], "there is one broker"),
            (["create", "x", "--partitions", "0"], "0 partitions"),
            (["alter", "none", "--partitions", "2"], "there is no such topic"),
        ):
            result = topics(server, *words)
            assert (result.exit_code, result.stdout) == (1, ""), words
            assert reason in result.stderr
        for name in ("a/b", "", ".."):
            assert topics(server, "create", name).exit_code == 2
            assert topics(server, "delete", name).exit_code == 2


def test_without_a_server() -> None:
    servers = f"{LOOPBACK}:{free_ports(1)[0]}"
    for words in (["create", "x"], ["delete", "x"], ["alter", "x", "--partitions", "2"]):
        result = CliRunner().invoke(cli, ["topics", *words, "--servers", servers])
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"pidlease: no Kafka listener answers at {servers};")
        assert result.stderr.count("\n") == 1
