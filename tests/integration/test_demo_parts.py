"""The demo's rows, pace, crashes and counter of duplicates, without a server."""

import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deploy.demo import crashes
from deploy.demo.behind import Behind
from deploy.demo.clients import Client
from deploy.demo.crashes import AFTER_FSYNC, BROKER, KILL, Crasher
from deploy.demo.duplicates import DuplicateCounter, duplicates_in
from deploy.demo.leased.coordinator import coordinator
from deploy.demo.leased.verdict import Verdict
from deploy.demo.ledger import Ledger
from deploy.demo.pace import Pace
from deploy.demo.proxy_process import DemoError, Proxy
from deploy.demo.readback import Stored
from deploy.demo.rows import CLIENTS, PARTITIONS, ROWS, TOPICS, Record, deal, load_records
from deploy.demo.screen import Screen
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
    monkeypatch.setattr(time, "monotonic", lambda: now)
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
    monkeypatch.setattr(time, "monotonic", lambda: now)
    left = 10_000
    pace = Pace(40, lambda: 0)
    shares = []
    for tick in range(399):
        now = tick / 10
        shares.append(pace.share(left))
        left -= shares[-1]

    assert set(shares) <= {24, 25, 26}
    assert left <= 26


def test_duplicates_are_counted_over_all_lives() -> None:
    page = (
        "# TYPE pidlease_batches_judged_total counter\n"
        'pidlease_batches_judged_total{policy="kafka",outcome="admitted"} 70\n'
        'pidlease_batches_judged_total{policy="kafka",outcome="duplicate"} 4\n'
        'pidlease_batches_judged_total{policy="none",outcome="duplicate"} 1\n'
    )
    assert duplicates_in(page) == 5
    assert duplicates_in("") == 0

    counter = DuplicateCounter()
    for life, value in ((1, 0), (2, 3), (2, 5), (3, 0), (3, 4)):
        counter.note(life, value)
    assert counter.total == 9
    assert counter.by_life == {1: 0, 2: 5, 3: 4}


class _FakeProxy:
    """Dies at once, always by SIGKILL."""

    def __init__(self, client: "_FakeClient", *, answers_before_death: int) -> None:
        self.life, self.alive = 1, True
        self.started: list[str] = []
        self._client = client
        self._answers = answers_before_death

    def kill_now(self) -> None:
        pass

    async def ended(self) -> int:
        if self._answers:
            self._answers -= 1
            self._client.ledger.unacknowledged.clear()
        return -9

    async def start(self, faults: str) -> float:
        self._client.give()
        self.started.append(faults)
        self.life += 1
        return 0.0

    def log_of_life(self) -> str:
        return "fault: kill after fsync"

    def tail(self) -> str:
        return ""


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
    monkeypatch: pytest.MonkeyPatch, told: list[str], *, answers_before_death: int
) -> tuple[Crasher, _FakeProxy]:
    for name in ("_CALM_S", "_SETTLE_S"):
        monkeypatch.setattr(crashes, name, 0.0)

    async def served(clients: Any) -> None:
        pass

    monkeypatch.setattr(crashes, "served", served)
    client = _FakeClient()
    proxy = _FakeProxy(client, answers_before_death=answers_before_death)
    plan = (KILL, AFTER_FSYNC, KILL)
    return Crasher(cast(Proxy, proxy), [cast(Client, client)], told.append, plan), proxy


async def test_each_life_is_started_with_the_fault_it_is_to_die_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crasher, proxy = _crasher(monkeypatch, [], answers_before_death=0)

    await crasher.run()

    assert [kill.crash for kill in crasher.kills] == [KILL, AFTER_FSYNC, KILL]
    assert [kill.life for kill in crasher.kills] == [1, 2, 3]
    assert proxy.started == [AFTER_FSYNC.fault, "", ""]
    assert crasher.left == 0
    assert not crasher.strays


async def test_a_kill_whose_batches_were_answered_after_all_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    crasher, proxy = _crasher(monkeypatch, told, answers_before_death=1)

    await crasher.run()

    assert [kill.crash for kill in crasher.kills] == [KILL, AFTER_FSYNC, KILL]
    assert [kill.life for kill in crasher.strays] == [1]
    assert proxy.started == ["", AFTER_FSYNC.fault, "", ""]
    assert told[0].startswith("missed: ")


class _FakeBehind:
    """A Kafka that is killed and comes back."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def kill_now(self) -> None:
        self.did.append("killed")

    async def restart(self) -> None:
        self.did.append("restarted")


async def test_a_kill_of_kafka_leaves_the_proxy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    crasher, proxy = _crasher(monkeypatch, [], answers_before_death=0)
    monkeypatch.setattr(crashes, "_BROKER_DOWN_S", 0.0)
    behind = _FakeBehind()
    crasher.plan = (KILL, BROKER, KILL)
    with pytest.raises(DemoError, match="no Kafka behind"):
        await crasher.run()
    crasher.kills.clear()
    crasher.behind = cast(Behind, behind)
    await crasher.run()
    assert [kill.crash for kill in crasher.kills] == [KILL, BROKER, KILL]
    assert behind.did == ["killed", "restarted"]
    assert len({kill.life for kill in crasher.kills}) == 2
    assert proxy.started == [""] * 3


async def test_kills_that_keep_missing_end_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    crasher, _ = _crasher(monkeypatch, [], answers_before_death=99)

    with pytest.raises(DemoError, match="keep missing"):
        await crasher.run()


def verdict(*values: bytes, count: int = 3, **other: Any) -> Verdict:
    stored = [Stored("leased", 0, offset, b"", value) for offset, value in enumerate(values)]
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


async def test_a_zookeeper_that_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maven is there, and reaches nothing: the demo needs nothing but Python."""

    def start(_: ZooKeeperServer) -> None:
        raise RuntimeError("mvn dependency:copy-dependencies failed:\n[ERROR] ...")

    told: list[str] = []
    monkeypatch.setattr(ZooKeeperServer, "start", start)
    monkeypatch.setattr("deploy.demo.leased.coordinator.unavailable_reason", lambda: None)
    screen = cast(Screen, SimpleNamespace(tell=told.append))
    async with coordinator(tmp_path / "zookeeper", screen) as found:
        assert found == ("a file", "")
    (line,) = told
    assert line.startswith("PIDs come from the file sequence: no ZooKeeper here (mvn ")
