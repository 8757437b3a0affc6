"""What a producer does between two steps: cancelled, ended, refused, forked, called back."""

import asyncio
import os
import threading
import time
from email.utils import formatdate
from typing import Any

import httpx
import pytest

from pidlease.client import (
    BlockingProducer,
    LeaseClient,
    LeasedProducer,
    OutcomeUnknownError,
    ProducerClosedError,
    ProducerError,
    SessionEndedError,
)
from pidlease.core.pid import Policy, make_pid
from tests.client.fake_broker import Fault
from tests.client.harness import World, until, world
from tests.client.test_blocking import producer_of, served

# ---------------------------------------------------------------------- send


async def test_a_send_that_was_cancelled_took_nothing() -> None:
    async with world() as all_:
        async with all_.producer(max_batch_size=200) as producer:
            await producer.send_and_wait("t", b"0", partition=0)
            all_.broker.release.clear()
            all_.broker.fault = lambda _: Fault("late", seconds=-1)
            taken, cancelled = [b"0"], 0
            for number in range(1, 60):
                value = b"%d" % number * 20
                sending = asyncio.ensure_future(producer.send("t", value, partition=0))
                await asyncio.sleep(0)
                if sending.done():
                    taken.append(value)
                    continue
                sending.cancel()  # it waits for others to run
                await asyncio.gather(sending, return_exceptions=True)
                cancelled += sending.cancelled()
            all_.broker.fault = lambda _: None
            all_.broker.release.set()
        assert cancelled > 0
        assert all_.broker.values() == taken


async def test_senders_that_let_others_run_do_not_overtake() -> None:
    async with world() as all_:
        async with all_.producer(max_batch_size=200, max_in_flight=1) as producer:
            tasks = []
            for number in range(300):
                sending = producer.send("t", b"%d" % number, partition=0)
                tasks.append(asyncio.create_task(sending))
                if not number % 7:
                    await asyncio.sleep(0)
            await asyncio.gather(*tasks)
        assert all_.broker.values() == [b"%d" % number for number in range(300)]


@pytest.mark.parametrize("partition", [0, None])
@pytest.mark.parametrize("cancelled", [set(), {1}, {0}, {1, 2}])
async def test_a_sender_does_not_overtake_those_that_wait_for_the_metadata(
    partition: int | None, cancelled: set[int]
) -> None:
    async with world() as all_, all_.producer() as producer:
        connections: Any = producer._pipeline._connections
        real, gate, calls = connections.topic, asyncio.Event(), 0

        async def topic(name: str) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                await gate.wait()
            return await real(name)

        connections.topic = topic
        tasks = []
        for number in range(5):
            sending = producer.send("t", b"%d" % number, partition=partition)
            tasks.append(asyncio.create_task(sending))
            await asyncio.sleep(0.002)
        for number in cancelled:
            tasks[number].cancel()
        await asyncio.sleep(0.01)
        assert 0 in cancelled or not any(task.done() for task in tasks[3:])
        gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [task.cancelled() for task in tasks] == [n in cancelled for n in range(5)]
        assert not producer._pipeline.waiting
        await producer.flush()
        assert all_.broker.values() == [b"%d" % n for n in range(5) if n not in cancelled]


def waits_for_metadata(producer: LeasedProducer) -> asyncio.Event:
    """The metadata has changed, and the next `send` without a partition waits until this is set."""
    pipeline: Any = producer._pipeline
    real, gate = pipeline.topic, asyncio.Event()

    async def topic(name: str) -> Any:
        await gate.wait()
        return await real(name)

    pipeline.topic = topic
    pipeline.partitioners.clear()
    return gate


@pytest.mark.parametrize("how", ["stopped", "ended"])
async def test_a_producer_that_ends_while_send_waits(how: str) -> None:
    async with world() as all_, all_.producer() as producer:
        await producer.send_and_wait("t", b"1", partition=0)
        gate = waits_for_metadata(producer)
        sending = asyncio.create_task(producer.send("t", b"2"))
        await asyncio.sleep(0)
        if how == "stopped":
            await producer.stop()
        else:
            text = "the lease has ended"
            producer._pipeline.end(OutcomeUnknownError(text), SessionEndedError(text))
        gate.set()
        with pytest.raises(SessionEndedError, match=how):
            await sending


# ---------------------------------------------------------------------- flush and stop


@pytest.mark.parametrize("cancelled", ["the last", "all"])
@pytest.mark.parametrize("way", ["flush", "stop"])
async def test_what_is_cancelled_is_waited_for_all_the_same(cancelled: str, way: str) -> None:
    async with world() as all_, all_.producer(linger_ms=20) as producer:
        await producer.send_and_wait("t", b"1", partition=0)
        all_.broker.release.clear()
        all_.broker.fault = lambda _: Fault("late", seconds=-1)
        first = await producer.send("t", b"2", partition=0)
        last = await producer.send("t", b"3", partition=0)
        waiting = asyncio.create_task(producer.flush() if way == "flush" else producer.stop())
        await until(lambda: all_.broker.done["late"])
        last.cancel()
        if cancelled == "all":
            first.cancel()
        await asyncio.wait([waiting], timeout=0.03)
        assert not waiting.done()
        all_.broker.release.set()
        await waiting
        assert producer.metrics.records == 3
        if cancelled == "the last":
            assert first.result().offset == 1


async def test_one_who_flushes_and_leaves_takes_nobody_along() -> None:
    async with world() as all_, all_.producer() as producer:
        await producer.send_and_wait("t", b"1", partition=0)
        all_.broker.release.clear()
        all_.broker.fault = lambda _: Fault("late", seconds=-1)
        await producer.send("t", b"2", partition=0)
        one, other = (asyncio.create_task(producer.flush()) for _ in range(2))
        await until(lambda: all_.broker.done["late"])
        one.cancel()
        await asyncio.wait([one])
        assert not other.done()
        all_.broker.release.set()
        await other
        assert producer.metrics.records == 2


# ---------------------------------------------------------------------- refused


@pytest.mark.parametrize("code", [44, 45, 87])
async def test_what_was_refused_may_have_been_stored_before(code: int) -> None:
    async with world() as all_, all_.producer() as producer:
        faults = {1: Fault("cut after"), 2: Fault("refuse", code)}
        all_.broker.fault = faults.get
        with pytest.raises(OutcomeUnknownError, match=f"error {code}"):
            await producer.send_and_wait("t", b"x", partition=0)
        assert all_.broker.values() == [b"x"]


async def test_a_server_that_is_older_than_the_one_before_it() -> None:
    async with world() as all_, all_.producer() as producer:

        def cut(_: int) -> Fault:
            all_.broker.versions = [(0, 3, 7), (3, 0, 5), (18, 0, 0)]
            return Fault("cut after")

        all_.broker.fault = cut
        with pytest.raises(OutcomeUnknownError, match="Produce 8"):
            await producer.send_and_wait("t", b"x", partition=0)
        assert all_.broker.values() == [b"x"]


# ---------------------------------------------------------------------- threads and processes


def test_a_callback_that_would_wait_for_itself() -> None:
    with served() as all_, producer_of(all_) as producer:
        errors: list[BaseException] = []
        more: list[Any] = []
        done = threading.Event()

        def called(_: Any) -> None:
            for call in (
                producer.flush,
                producer.stop,
                lambda: producer.lease("t", 0),
                lambda: producer.send_and_wait("t", b"never"),
            ):
                try:
                    call()
                except BaseException as error:  # noqa: BLE001 - looked at below
                    errors.append(error)
            # More than are handed over otherwise before `send` blocks.
            more.extend(producer.send("t", b"more") for _ in range(1500))
            done.set()

        producer.send("t", b"first").add_done_callback(called)
        assert done.wait(20)
        assert [type(each) for each in errors] == [RuntimeError] * 4
        producer.flush()
        assert [each.result(0).offset for each in more] == list(range(1, 1501))


def test_what_is_handed_over_while_it_starts_in_vain() -> None:
    producer = BlockingProducer(
        bootstrap_servers="127.0.0.1:1", leases="http://127.0.0.1:1", request_timeout_ms=200
    )
    found: list[Any] = []
    real: Any = producer._producer.start

    async def start() -> None:
        found.append(producer_thread_send(producer))
        await real()

    producer._producer.start = start  # type: ignore[method-assign]
    with pytest.raises(ProducerError):
        producer.start()
    with pytest.raises(ProducerClosedError):
        found[0].result(5)


def producer_thread_send(producer: BlockingProducer) -> Any:
    """What another thread's `send` gives."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(producer.send("t", b"x")))
    thread.start()
    thread.join()
    return found[0]


def test_a_stop_that_is_interrupted_leaves_no_future_open() -> None:
    threads = threading.active_count()
    with served() as all_:
        producer = producer_of(all_, buffer_memory=1000)
        producer.start()
        producer.send_and_wait("t", b"")
        all_.broker.fault = lambda _: Fault("late", seconds=3600)
        futures = [producer.send("t", b"%d" % number) for number in range(600)]

        def interrupted(work: Any) -> None:
            work.close()
            raise KeyboardInterrupt

        producer._do = interrupted  # type: ignore[method-assign, assignment]
        with pytest.raises(KeyboardInterrupt):
            producer.stop()
        kinds = {type(each.exception(5)) for each in futures}
        assert kinds == {OutcomeUnknownError, ProducerClosedError}
    assert threading.active_count() == threads


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process() -> None:
    with served() as all_, producer_of(all_) as producer:
        producer.send_and_wait("t", b"0", partition=0)
        child = os.fork()
        if not child:
            os._exit(in_the_child(producer))
        give_up = time.monotonic() + 20
        while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < give_up:
            time.sleep(0.005)
        if not ended[0]:
            os.kill(child, 9)
            os.waitpid(child, 0)
        assert ended[0], "it hangs"
        assert os.waitstatus_to_exitcode(ended[1]) == 0
        assert producer.send_and_wait("t", b"1", partition=0).offset == 1


def in_the_child(producer: BlockingProducer) -> int:
    """0: all was refused, and nothing waited."""
    try:
        for call in (lambda: producer.send("t", b"child"), producer.flush, producer.start):
            try:
                call()
            except ProducerClosedError:
                continue
            return 1
        producer.stop()
    except BaseException:  # noqa: BLE001 - the parent is told
        return 2
    return 0


# ---------------------------------------------------------------------- leases and options


async def lease_of_2_s(date: float, *, slow: float = 0.0) -> tuple[float, float]:
    """How long a lease is that ends 2 s after `date` by the server's clock.

    Returns:
        By the client, from when it asked; how long the request took.
    """
    row = {"topic": "t", "partition": 0, "pid": 7, "generation": 5, "sequence_number": 0,
           "cluster_id": "a", "expire_ms": int((date + 2) * 1000)}  # fmt: skip

    async def handle(_: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)
        time.sleep(slow)  # noqa: ASYNC251 - the loop is held up
        return httpx.Response(200, json=row, headers={"Date": formatdate(date, usegmt=True)})

    async with LeaseClient("http://x", transport=httpx.MockTransport(handle)) as leases:
        before = time.monotonic()
        lease = await leases.lease_pid("t", 0)
        return lease.ends_at - before, time.monotonic() - before


async def test_a_slow_answer_makes_no_lease_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = time.time
    monkeypatch.setattr("pidlease.client.lease_client.time.time", lambda: wall() + 3600)
    left, took = await lease_of_2_s(float(int(wall())), slow=0.2)
    assert took >= 0.2
    assert left <= 1 + (took - 0.2), "it counts from the answer"


async def test_a_clock_a_little_ahead_leaves_a_lease_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_700_000_000.0
    monkeypatch.setattr("pidlease.client.lease_client.time.time", lambda: now + 1.9)
    left, _ = await lease_of_2_s(now)
    assert left >= 1


@pytest.mark.parametrize("policy", [Policy.MONOTONIC, Policy.KAFKA, Policy.EPOCH, None])
def test_a_pid_of_another_policy(policy: Policy | None) -> None:
    pid = 5 if policy is None else make_pid(policy, 5)
    with pytest.raises(ValueError, match="policy strict"):
        LeasedProducer(bootstrap_servers="x:1", leases="http://x", pid=pid)


@pytest.mark.parametrize("linger_ms", [1000, 1001, float("inf"), float("nan")])
def test_a_linger_time_in_which_all_is_overdue(linger_ms: float) -> None:
    given: dict[str, Any] = {"bootstrap_servers": "x:1", "leases": "http://x"}
    with pytest.raises(ValueError, match="linger_ms"):
        LeasedProducer(**given, linger_ms=linger_ms, delivery_timeout_ms=1000)
    LeasedProducer(**given, linger_ms=999, delivery_timeout_ms=1000)


async def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    async with world() as all_:
        for steps in range(1, 30):
            assert not await leftover_tasks(all_, steps), steps


async def leftover_tasks(all_: World, steps: int) -> list[Any]:
    """What a producer leaves behind whose start was cancelled after so many steps of the loop."""
    before = asyncio.all_tasks()
    producer = all_.producer()
    starting = asyncio.create_task(producer.start())
    for _ in range(steps):
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await producer.stop()
    servers = ("_serve", "send_all")
    left = [each for each in asyncio.all_tasks() - before if not each.done()]
    return [each for each in left if not any(name in repr(each) for name in servers)]
