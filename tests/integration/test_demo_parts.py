"""The demo's rows, pace, crashes and counter of duplicates, without a server."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from deploy.demo import DemoError, clients, crashes
from deploy.demo.clients import Client, Pace
from deploy.demo.crashes import AFTER_FSYNC, BROKER, KILL, Crasher
from deploy.demo.leased import Verdict
from deploy.demo.ledger import Ledger
from deploy.demo.rows import CLIENTS, PARTITIONS, ROWS, TOPICS, Record, deal, load_records
from deploy.demo.upstream import Upstream, coordinator
from tests.crash.lives import Retries
from tests.crash.readback import Stored
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.zookeeper import ZooKeeperServer


def test_the_three_data_sets_are_dealt_out_whole() -> None:
    records = load_records()

    everything = [record for mine in records.values() for record in mine]
    assert len(everything) == ROWS
    assert len({record.key for record in everything}) == ROWS
    assert Counter(record.topic for record in everything) == {
        "airports": 3376,
        "seattle-temps": 8759,
        "sf-temps": 8759,
    }
    places = {(record.client, record.topic, record.partition) for record in everything}
    assert len(places) == len(CLIENTS) * len(TOPICS) * PARTITIONS
    assert all(record.value.startswith(b"{") for record in everything)


def test_the_topics_begin_and_end_together() -> None:
    rows = {"airports": [b"{}"] * 40, "sf-temps": [b"{}"] * 400}

    for mine in deal(rows).values():
        assert [record.number for record in mine] == list(range(220))
        assert {record.topic for record in mine[:30]} == set(rows)
        assert {record.topic for record in mine[-30:]} == set(rows)


def test_rows_never_run_out_before_the_last_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(clients, "time", SimpleNamespace(monotonic=lambda: now))
    left, crashes_left = 10_000, 2
    pace = Pace(40, lambda: crashes_left)

    while now < 90:
        left -= pace.share(left)
        now += 0.1
    assert left > 0

    crashes_left = 0
    assert pace.share(left) == left


def test_rows_go_out_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(clients, "time", SimpleNamespace(monotonic=lambda: now))
    left = 10_000
    pace = Pace(40, lambda: 0)
    shares = []
    for tick in range(399):
        now = tick / 10
        shares.append(pace.share(left))
        left -= shares[-1]

    assert set(shares) <= {24, 25, 26}
    assert left <= 26


class _CountingServer:
    """Says at each look how many duplicates it has caught in this life."""

    def __init__(self, *figures: float) -> None:
        self._figures = iter(figures)

    def metric(self, name: str, **labels: str) -> float:
        assert (name, labels) == ("pidlease_batches_judged_total", {"outcome": "duplicate"})
        return next(self._figures)


def test_duplicates_are_counted_over_all_lives() -> None:
    lives = Retries(cast(PidleaseServer, _CountingServer(0, 3, 5, 0, 4)))
    for looks in (1, 2, 2):
        lives.new_life()
        for _ in range(looks):
            lives.look()
    assert lives.total == 9
    assert lives.lives == [0, 5, 4]


class _FakeServer:
    """Dies by SIGKILL: when it is killed, or at once where it has a fault plan."""

    def __init__(self, client: "_FakeClient", *, answers_before_death: int) -> None:
        self.settings = {"fsync": "batch"}
        self.started: list[str] = []
        self.log = ""
        self.stops = 0
        self._client = client
        self._answers = answers_before_death

    @property
    def process(self) -> "_FakeServer":
        return self

    @property
    def alive(self) -> bool:
        return not self.settings.get("faults")

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.stops += 1
        yield
        self._client.give()

    def kill9(self) -> None:
        pass

    def wait_exit(self) -> int:
        if not self.alive:
            self.log += "fault: kill after fsync"
        return -9

    def restart(self, settings: dict[str, str]) -> None:
        assert settings["fsync"] == "batch"
        self.settings = settings
        self._client.give()
        self.started.append(settings.get("faults", ""))

    def log_text(self) -> str:
        return self.log

    def tail(self) -> str:
        return ""

    def sleep(self, seconds: float) -> None:
        """While the clients settle, they read the responses that were still sent."""
        if seconds == crashes._SETTLE_S and self._answers:
            self._answers -= 1
            self._client.ledger.unacknowledged.clear()


class _FakeClient:
    """Is served at every look, and always has something in flight."""

    def __init__(self) -> None:
        self.ledger = Ledger("librdkafka")
        self.give()

    def give(self) -> None:
        self.ledger.give(Record("librdkafka", "airports", 0, len(self.ledger.sent), b"{}"))

    def batches_in_flight(self) -> int:
        return 1


def _crasher(
    monkeypatch: pytest.MonkeyPatch,
    lines: list[str],
    *,
    answers_before_death: int,
    plan: tuple[crashes.Crash, ...] = (KILL, AFTER_FSYNC, KILL),
) -> tuple[Crasher, _FakeServer]:
    client = _FakeClient()
    server = _FakeServer(client, answers_before_death=answers_before_death)
    if plan[0].fault:
        server.settings["faults"] = plan[0].fault
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=server.sleep)
    monkeypatch.setattr(crashes, "time", clock)
    monkeypatch.setattr(crashes, "get_on", lambda *_, **__: None)
    lives = Retries(cast(PidleaseServer, server))
    lives.new_life()
    return Crasher(lives, lines.append, plan, clients=[cast(Client, client)]), server


def test_each_life_is_started_with_the_fault_it_is_to_die_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crasher, server = _crasher(monkeypatch, [], answers_before_death=0)

    crasher.run()

    assert [kill.crash for kill in crasher.kills] == [KILL, AFTER_FSYNC, KILL]
    assert [kill.life for kill in crasher.kills] == [1, 2, 3]
    assert server.started == [AFTER_FSYNC.fault, "", ""]
    assert crasher.left == 0
    assert not crasher.strays


def test_a_server_whose_batches_were_answered_after_all_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crasher, server = _crasher(monkeypatch, [], answers_before_death=1)

    crasher.run()

    assert [kill.life for kill in crasher.kills] == [1, 2, 3]
    assert server.stops == 3
    assert not crasher.strays


def test_a_crash_whose_batches_were_answered_after_all_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    plan = (AFTER_FSYNC, KILL)
    crasher, server = _crasher(monkeypatch, lines, answers_before_death=1, plan=plan)

    crasher.run()

    assert [kill.crash for kill in crasher.kills] == [AFTER_FSYNC, KILL]
    assert [kill.life for kill in crasher.strays] == [1]
    assert server.started == [AFTER_FSYNC.fault, "", ""]
    assert lines[0].startswith("missed: ")


def test_a_server_that_died_elsewhere_is_no_crash_at_its_fault_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crasher, _ = _crasher(monkeypatch, [], answers_before_death=0)
    monkeypatch.setattr(_FakeServer, "log_text", lambda _: "")

    with pytest.raises(DemoError, match="it died, but not there"):
        crasher.run()


def test_a_kill_of_kafka_leaves_the_proxy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    crasher, server = _crasher(monkeypatch, [], answers_before_death=0)
    did: list[str] = []
    broker = _FakeServer(_FakeClient(), answers_before_death=0)
    monkeypatch.setattr(broker, "kill9", lambda: did.append("killed"))
    kafka = SimpleNamespace(process=broker, start=lambda: did.append("restarted"))
    crasher.plan = (KILL, BROKER, KILL)
    with pytest.raises(DemoError, match="no upstream Kafka"):
        crasher.run()
    crasher.kills.clear()
    crasher.upstream = Upstream(cast(KafkaServer, kafka), {}, "Kafka")
    crasher.run()
    assert [kill.crash for kill in crasher.kills] == [KILL, BROKER, KILL]
    assert did == ["killed", "restarted"]
    assert len({kill.life for kill in crasher.kills}) == 2
    assert server.started == [""] * 3


def test_kills_that_keep_missing_end_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    crasher, _ = _crasher(monkeypatch, [], answers_before_death=99, plan=(AFTER_FSYNC,))

    with pytest.raises(DemoError, match="keep missing"):
        crasher.run()


def verdict(*values: bytes, count: int = 3, **other: Any) -> Verdict:
    stored = [Stored("leased", 0, offset, value) for offset, value in enumerate(values)]
    given: dict[str, Any] = {
        "source": "a file",
        "counts": [count],
        "stored": stored,
        "lives": 3,
        "producer_kills": 2,
        "proxy_kills": 1,
        "pids": frozenset([7]),
        "resumed": [0, 2],
        "zombie": "fenced",
        "fenced": True,
    }
    return Verdict(**{**given, **other})


ALL = (b"0/0", b"0/1", b"0/2")


def test_the_second_part_s_verdict() -> None:
    good = verdict(*ALL)
    assert good.problems() == []
    assert "sent 3, stored 3" in good.summary()
    assert "lost 0, doubled 0, out of order 0" in good.summary()


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (verdict(b"0/0", b"0/2"), "1 lost"),
        (verdict(*ALL, b"0/1"), "1 doubled"),
        (verdict(b"0/1", b"0/0", b"0/2"), "1 out of order"),
        (verdict(*ALL, fenced=False, zombie="done"), "not fenced: done"),
        (verdict(*ALL, pids=frozenset([7, 8])), "2 PIDs"),
        (verdict(*ALL, resumed=[0, 0]), "proved nothing"),
    ],
)
def test_the_second_part_s_verdict_can_fail(bad: Verdict, text: str) -> None:
    assert len(bad.problems()) == 1
    assert text in bad.problems()[0]


def test_a_line_says_what_a_table_shows() -> None:
    console = Console(file=StringIO(), width=120)
    assert verdict(*ALL).conclude(console) == 0
    assert isinstance(console.file, StringIO)
    line, border, head, *_, summary = console.file.getvalue().splitlines()
    assert line == "The records of one name over all its processes, and what the log has of them"
    assert border.startswith("┏")
    assert "out of order" in head
    assert summary == verdict(*ALL).summary()


def test_a_zookeeper_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maven is there, and reaches nothing: the demo needs nothing but Python."""

    def start(_: ZooKeeperServer) -> None:
        raise RuntimeError("mvn dependency:copy-dependencies failed:\n[ERROR] ...")

    lines: list[str] = []
    monkeypatch.setattr(ZooKeeperServer, "start", start)
    monkeypatch.setattr("deploy.demo.upstream.unavailable_reason", lambda: None)
    with coordinator(tmp_path / "zookeeper", lines.append) as found:
        assert found == ("a file", "")
    (line,) = lines
    assert line.startswith("PIDs come from the file sequence: no ZooKeeper here (mvn ")
