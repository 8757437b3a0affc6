"""The PID sequence in a real ZooKeeper: nothing is handed out twice, whatever fails."""

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from kazoo.client import KazooClient

from pidlease.coordination.pid_sequence import SequenceError
from pidlease.coordination.zookeeper import zookeeper_sequence as module
from pidlease.coordination.zookeeper.zookeeper_connection import (
    ZooKeeper,
    ZooKeeperConfig,
    ZooKeeperError,
)
from pidlease.coordination.zookeeper.zookeeper_sequence import ZooKeeperSequence
from pidlease.core.blocks import BlockAges, PidBlock
from tests.crash.seeds import new_random
from tests.servers.waiting import WAIT_S
from tests.servers.zookeeper import ZooKeeperServer
from tests.servers.zookeeper.marks import needs_zookeeper
from tests.zookeeper.conftest import Connect

pytestmark = [needs_zookeeper, pytest.mark.timeout(900)]

KEEP_MS = 1000


class Clock:
    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


def sequence_of(
    zookeeper: ZooKeeper, owner: str = "me", clock: Callable[[], int] | None = None, begin: int = 1
) -> ZooKeeperSequence:
    return ZooKeeperSequence(zookeeper, owner, clock or Clock(), KEEP_MS, begin)


def take_in_time(sequence: ZooKeeperSequence, seconds: float = 30) -> PidBlock:
    """Ask until there is one."""
    give_up = time.monotonic() + seconds
    while True:
        try:
            return sequence.take()
        except SequenceError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.05)


def _overwrite(client: KazooClient, path: str, data: bytes) -> object:
    return client.set_async(path, data)


def test_blocks_follow_one_another_and_are_on_record(connect: Connect) -> None:
    clock = Clock()
    sequence = sequence_of(connect(), clock=clock)
    assert sequence.blocks() == []
    taken = [sequence.take() for _ in range(3)]
    assert taken == [PidBlock(n, 100, clock.now_ms, "me") for n in (1, 101, 201)]
    assert sequence.take(at_least=450).first == 501
    other = sequence_of(connect(), "other", begin=900)
    assert other.blocks() == [*taken, PidBlock(501, 100, clock.now_ms, "me")]
    assert other.take().first == 901, "where another sequence ended"
    assert sequence.take().first == 1001


def test_many_take_at_once(connect: Connect) -> None:
    """Over several nodes, against one another."""
    sequences = [sequence_of(connect(), f"server {n}") for n in range(4)]
    taken: list[list[PidBlock]] = [[] for _ in sequences]

    def work(number: int) -> None:
        for _ in range(40):
            taken[number].append(sequences[number].take())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT_S)
    blocks = sorted(block for each in taken for block in each)
    assert [block.first for block in blocks] == list(range(1, 16_001, 100))
    assert sequences[0].blocks() == blocks
    assert {block.owner for block in blocks} == {f"server {n}" for n in range(4)}


def test_old_blocks_are_merged(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NODE_BLOCKS", 5)
    clock = Clock()
    zookeeper = connect()
    sequence = sequence_of(zookeeper, clock=clock)
    for _ in range(23):
        sequence.take()
    clock.now_ms += KEEP_MS + 1
    young = [sequence.take() for _ in range(5)]
    found = sequence_of(connect()).blocks()
    assert found[0] == PidBlock(1, 2000, clock.now_ms - KEEP_MS - 1)
    assert found[-5:] == young
    BlockAges(found)  # they are in order, and none lies in another
    assert [each.first for each in found[1:]] == list(range(2001, 2801, 100))
    folder = zookeeper.path("pids/blocks")
    left = zookeeper.call(lambda client: client.get_children_async(folder))
    assert sorted(left) == ["0000000005", "0000000006"]


def test_a_take_whose_answer_was_lost_is_found_again(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    zookeeper = connect()
    sequence = sequence_of(zookeeper)
    sequence.take()
    real = zookeeper.call

    def lost(ask: Callable[..., object]) -> object:
        real(ask)
        raise ZooKeeperError("the answer was lost")

    monkeypatch.setattr(zookeeper, "call", lost)
    with pytest.raises(SequenceError, match="answer was lost"):
        sequence.take()
    monkeypatch.setattr(zookeeper, "call", real)
    assert sequence.take().first == 101, "nothing is wasted"
    assert sequence.take().first == 201
    assert [each.first for each in sequence.blocks()] == [1, 101, 201]


def test_a_sequence_that_something_else_has_written_is_told(connect: Connect) -> None:
    zookeeper = connect()
    sequence = sequence_of(zookeeper)
    sequence.take()
    path = zookeeper.path("pids/blocks/0000000001")
    for content in (b"", b"{}", b'{"blocks": []}', b'{"blocks": [[1]]}', b"\xff"):
        zookeeper.call(partial(_overwrite, path=path, data=content))
        with pytest.raises(SequenceError, match="0000000001"):
            sequence_of(connect()).take()
        with pytest.raises(SequenceError, match="0000000001"):
            sequence_of(connect()).blocks()


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_zookeeper_goes_away_and_comes_back(
    server: ZooKeeperServer, connect: Connect, how: str
) -> None:
    """Servers that take blocks all the time; each was told once only, and it is on record."""
    random = new_random(f"zookeeper: {how}")
    sequences = [sequence_of(connect(timeout_seconds=0.5), f"server {n}") for n in range(3)]
    taken: list[list[PidBlock]] = [[] for _ in sequences]
    failed = [0, 0, 0]
    stop = threading.Event()

    def work(number: int) -> None:
        while not stop.is_set():
            try:
                taken[number].append(sequences[number].take())
            except SequenceError:
                failed[number] += 1
                time.sleep(0.02)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for each in threads:
        each.start()
    for _ in range(3):
        time.sleep(random.uniform(0.1, 0.4))
        if how == "kill":
            server.kill9()
            time.sleep(random.uniform(0, 0.3))
            server.start()
        else:
            server.pause()
            time.sleep(random.uniform(1, 2.5))
            server.resume()
        before = sum(map(len, taken))
        give_up = time.monotonic() + 30
        while sum(map(len, taken)) < before + 10:
            assert time.monotonic() < give_up, "it does not recover by itself"
            time.sleep(0.02)
    stop.set()
    for each in threads:
        each.join(WAIT_S)
    assert all(failed), failed
    blocks = sorted(block for each in taken for block in each)
    firsts = [block.first for block in blocks]
    assert len(set(firsts)) == len(firsts), "a block was handed out twice"
    on_record = sequence_of(connect()).blocks()
    assert set(blocks) <= set(on_record)
    # At most one of each server came through at each fault without its hearing of it.
    assert len(on_record) - len(blocks) <= 3 * 3


def test_what_is_away_is_not_waited_for(server: ZooKeeperServer, connect: Connect) -> None:
    zookeeper = connect()
    sequence = sequence_of(zookeeper)
    first = sequence.take()
    server.pause()
    give_up = time.monotonic() + 30
    while zookeeper.state == "connected":
        assert time.monotonic() < give_up
        time.sleep(0.02)
    started = time.monotonic()
    with pytest.raises(SequenceError, match=zookeeper.state):
        sequence.take()
    assert time.monotonic() - started < zookeeper._config.timeout_seconds
    server.resume()
    assert take_in_time(sequence).first > first.first


def test_a_session_that_ended_is_followed_by_another(
    server: ZooKeeperServer, connect: Connect
) -> None:
    zookeeper = connect()
    sequence = sequence_of(zookeeper)
    sequence.take()
    # The way to end somebody's session: take it over, and close it.
    thief = KazooClient(server.hosts, client_id=zookeeper._client.client_id)
    thief.start(10)
    thief.stop()
    thief.close()
    give_up = time.monotonic() + 30
    while not zookeeper.sessions_lost:
        assert time.monotonic() < give_up
        time.sleep(0.02)
    assert take_in_time(sequence).first == 101


# ---------------------------------------------------------------------- the connection


def test_digest_authentication(server: ZooKeeperServer, connect: Connect) -> None:
    """What one user has made, another one may not use."""
    zookeeper = connect(digest="me:secret")
    assert sequence_of(zookeeper).take().first == 1
    for digest in ("", "me:guess"):
        other = connect(hosts=zookeeper._config.hosts, digest=digest)
        with pytest.raises(SequenceError, match="NoAuth"):
            sequence_of(other).take()
    assert sequence_of(connect(digest="me:secret")).take().first == 101


@pytest.mark.parametrize(
    "hosts",
    ["", "localhost", "a:b", ":2181", "a:1,", "a:1/", "a:1//b", "a:1/../b", "a:\u0661", "a:1/b/"],
)
def test_an_address_that_is_none_is_told(hosts: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        ZooKeeperConfig(hosts)


def test_a_digest_that_is_none_is_told() -> None:
    for digest in ("me", "me:", ":secret"):
        with pytest.raises(ValueError, match="USER:PASSWORD"):
            ZooKeeperConfig("a:1", digest=digest)


def test_nobody_there_is_told_in_time() -> None:
    zookeeper = ZooKeeper(ZooKeeperConfig("127.0.0.1:1/x"))
    zookeeper.start()
    try:
        with pytest.raises(ZooKeeperError, match=r"127\.0\.0\.1:1: no connection"):
            zookeeper.wait(0.2)
    finally:
        zookeeper.close()


def test_a_sequence_that_was_removed_is_an_error(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it was looked for again and again, without a pause or an end."""
    monkeypatch.setattr(module, "_CONTENTION_SECONDS", 0.1)
    zookeeper = connect()
    sequence = sequence_of(zookeeper)
    sequence.take()
    merged = zookeeper.path("pids/merged")
    zookeeper.call(lambda client: client.delete_async(merged))
    with pytest.raises(SequenceError, match="cannot be read"):
        sequence.blocks()
