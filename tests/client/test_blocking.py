"""The producer for threads, over the fake servers in a loop of their own."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pidlease.client import (
    BlockingProducer,
    FencedError,
    OutcomeUnknownError,
    ProducerClosedError,
    ProducerError,
)
from tests.client.fake_broker import Fault
from tests.client.harness import World, world
from tests.servers.waiting import WAIT_S, until


@contextmanager
def served(**topics: int) -> Iterator[World]:
    """The fake servers, in a thread."""
    ready, end = threading.Event(), threading.Event()
    found: list[World] = []

    async def serve() -> None:
        async with world(**topics) as all_:
            found.append(all_)
            ready.set()
            await asyncio.to_thread(end.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(20)
    try:
        yield found[0]
    finally:
        end.set()
        thread.join(WAIT_S)


def producer_of(all_: World, **options: Any) -> BlockingProducer:
    given: dict[str, Any] = {
        "bootstrap_servers": all_.broker.bootstrap,
        "leases": all_.leases.url,
        "retry_backoff_ms": 2,
        "retry_backoff_max_ms": 10,
    }
    return BlockingProducer(**{**given, **options})


def test_records_in_their_order() -> None:
    threads = threading.active_count()
    with served() as all_:
        with producer_of(all_, name="n", max_batch_size=500) as producer:
            assert producer.send_and_wait("t", b"0").offset == 0
            futures = [producer.send("t", b"%d" % number) for number in range(1, 5000)]
            producer.flush()
            assert [each.result().offset for each in futures] == list(range(1, 5000))
            assert producer.producer_name == "n"
            assert producer.last_sequence_id("t", 0) == 4999
            assert producer.pid > 0
            assert producer.metrics.records == 5000
        assert all_.broker.values() == [b"%d" % number for number in range(5000)]
    assert threading.active_count() == threads


def test_several_threads() -> None:
    with served() as all_, producer_of(all_, buffer_memory=20_000) as producer:

        def work(name: int) -> None:
            for number in range(1000):
                producer.send("t", b"%d %d" % (name, number))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
        stored = [tuple(map(int, each.split())) for each in all_.broker.values() if each]
        for name in range(4):
            assert [n for sender, n in stored if sender == name] == list(range(1000))


def test_a_flush_does_not_wait_for_what_others_send_meanwhile() -> None:
    """Once it returned only when nothing was handed over any more."""
    with served() as all_, producer_of(all_, buffer_memory=2_000) as producer:
        ending = threading.Event()

        def work() -> None:
            while not ending.is_set():
                producer.send("t", b"x" * 20)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            until(lambda: producer.metrics.records > 5_000, "a full buffer")
            for number in range(3):
                sent = producer.send("t", b"%d" % number)
                flush = threading.Thread(target=producer.flush, daemon=True)
                flush.start()
                flush.join(WAIT_S)
                assert not flush.is_alive()
                assert sent.done()
        finally:
            ending.set()
            thread.join(WAIT_S)


def test_a_partition_is_leased_before_its_first_record() -> None:
    with served() as all_, producer_of(all_) as producer:
        with pytest.raises(ValueError, match="partition 7"):
            producer.lease("t", 7)
        producer.lease("t", 0)
        assert producer.send_and_wait("t", b"").offset == 0


def test_a_full_buffer_blocks_and_stop_lets_go() -> None:
    with served() as all_:
        producer = producer_of(all_, buffer_memory=1000)
        producer.start()
        producer.send_and_wait("t", b"")
        all_.broker.fault = lambda _: Fault("late", seconds=3600)
        futures: list[Any] = []
        errors: list[ProducerError] = []
        blocked = threading.Event()

        def work() -> None:
            try:
                futures.extend(producer.send("t", b"%d" % number) for number in range(5000))
            except ProducerError as error:
                errors.append(error)
            blocked.set()

        thread = threading.Thread(target=work)
        thread.start()
        assert not blocked.wait(0.2)
        producer.stop(0.05)
        thread.join(WAIT_S)
        assert not thread.is_alive()
        assert isinstance(errors[0], ProducerClosedError)
        assert len(futures) < 5000
        kinds = [type(each.exception(20)) for each in futures]
        assert set(kinds) == {OutcomeUnknownError, ProducerClosedError}
        assert kinds == sorted(kinds, key=lambda kind: kind is ProducerClosedError)


def test_a_session_that_is_over() -> None:
    with served() as all_, producer_of(all_, name="n") as producer:
        producer.send_and_wait("t", b"")
        with producer_of(all_, name="n") as second:
            second.send_and_wait("t", b"")
            with pytest.raises(FencedError):
                producer.send_and_wait("t", b"")
            with pytest.raises(FencedError):
                producer.flush()


def test_life() -> None:
    with served() as all_:
        producer = producer_of(all_)
        with pytest.raises(ProducerClosedError):
            producer.send("t", b"")
        with pytest.raises(ProducerClosedError):
            producer.flush()
        producer.stop()
        producer.start()
        with pytest.raises(ProducerClosedError):
            producer.start()
        future = producer.send("t", b"")
        producer.stop()
        producer.stop()
        assert future.result(0).offset == 0
        for call in (lambda: producer.send("t", b""), producer.flush):
            with pytest.raises(ProducerClosedError):
                call()


def test_a_server_that_is_not_there() -> None:
    threads = threading.active_count()
    producer = BlockingProducer(
        bootstrap_servers="127.0.0.1:1", leases="http://127.0.0.1:1", request_timeout_ms=50
    )
    with pytest.raises(ProducerError):
        producer.start()
    assert threading.active_count() == threads
