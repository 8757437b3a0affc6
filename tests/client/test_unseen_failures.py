"""What is wrong is raised: by `send`, by `flush`, and on leaving the `with` block."""

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest

from pidlease.client import (
    FencedError,
    LeasedProducer,
    LeaseRefusedError,
    OutcomeUnknownError,
    ProducerClosedError,
    ProducerError,
    SessionEndedError,
    failure_report,
)
from pidlease.client.failure_report import UnseenFailures
from tests.client.fake_broker import Fault
from tests.client.harness import World, world
from tests.client.test_blocking import producer_of, served

WRONG_CALLS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"value": "text"}, TypeError, "value is str"),
    ({"value": 7}, TypeError, "value is int"),
    ({"key": "text"}, TypeError, "key is str"),
    ({"headers": [("ok", "text")]}, TypeError, "header ok is str"),
    ({"headers": [(b"ok", b"")]}, TypeError, "name is bytes"),
    ({"headers": [("pidlease", b"")]}, ValueError, "pidlease"),
    ({"value": b"x" * 1_200_000}, ValueError, "max_request_size"),
    ({"timestamp_ms": 2**63}, ValueError, "timestamp_ms"),
    ({"timestamp_ms": "now"}, TypeError, "timestamp_ms is str"),
    ({"sequence_id": -1}, ValueError, "sequence_id"),
    ({"sequence_id": 2**63}, ValueError, "sequence_id"),
    ({"sequence_id": "7"}, TypeError, "sequence_id is str"),
    ({"partition": 7}, ValueError, "partition 7"),
    ({"topic": ""}, ValueError, "topic name"),
    ({"topic": ".."}, ValueError, "topic name"),
    ({"topic": "not legal"}, ValueError, "topic name"),
    ({"topic": "x" * 250}, ValueError, "topic name"),
    ({"topic": b"t"}, TypeError, "topic is bytes"),
    ({"topic": "nowhere"}, ProducerError, "nowhere"),
]
IDS = [f"{next(iter(wrong))}-{number}" for number, (wrong, _, _) in enumerate(WRONG_CALLS)]


def short_for(wrong: dict[str, Any]) -> dict[str, Any]:
    """A topic that does not exist is waited for, as long as a request."""
    return {"request_timeout_ms": 2_000} if wrong.get("topic") == "nowhere" else {}


@pytest.mark.parametrize(("wrong", "error", "named"), WRONG_CALLS, ids=IDS)
async def test_send_raises_what_is_wrong_with_the_call(
    wrong: dict[str, Any], error: type[Exception], named: str
) -> None:
    async with world() as all_, all_.producer(**short_for(wrong)) as producer:
        with pytest.raises(error, match=named):
            await producer.send(**{"topic": "t", "value": b"v", **wrong})
        assert producer.metrics.errors == {error.__name__: 1}
        assert (await producer.send_and_wait("t", b"good")).sequence == 0
        await producer.flush()


@pytest.mark.parametrize(("wrong", "error", "named"), WRONG_CALLS, ids=IDS)
def test_the_blocking_producer_raises_the_same(
    wrong: dict[str, Any], error: type[Exception], named: str
) -> None:
    with served() as all_, producer_of(all_, **short_for(wrong)) as producer:
        with pytest.raises(error, match=named):
            producer.send(**{"topic": "t", "value": b"v", **wrong})
        assert producer.send_and_wait("t", b"good").sequence == 0
        assert producer.metrics.errors == {error.__name__: 1}
        producer.flush()


async def test_an_illegal_topic_is_refused_without_a_server() -> None:
    async with world() as all_, all_.producer() as producer:
        await all_.broker.go_away()
        with pytest.raises(ValueError, match="topic name"):
            await producer.send("not legal", b"")
        await all_.broker.listen()


def test_an_unknown_option_of_a_record_is_refused() -> None:
    with served() as all_, producer_of(all_) as producer, pytest.raises(TypeError, match="kye"):
        producer.send("t", b"", kye=b"k")  # type: ignore[call-arg]


def test_what_the_caller_changes_after_send_is_not_sent() -> None:
    with served() as all_, producer_of(all_) as producer:
        buffer = bytearray(b"before")
        producer.lease("t", 0)
        with producer._room:  # the loop takes nothing meanwhile
            producer.send("t", buffer, key=memoryview(buffer))
            buffer[:] = b"behind"
        producer.flush()
        (record,) = all_.broker.log(("t", 0)).records
        assert (record.key, record.value) == (b"before", b"before")


# ---------------------------------------------------------------------- flush and the end


def refuse_leases(all_: World) -> None:
    """Records fail; the session goes on."""
    all_.leases.refusals[("t", 0)] = (404, "no such partition")


async def test_flush_raises_for_failures_that_nobody_has_looked_at() -> None:
    async with world() as all_, all_.producer() as producer:
        refuse_leases(all_)
        for _ in range(3):
            await producer.send("t", b"")
        with pytest.raises(LeaseRefusedError, match="no such partition") as found:
            await producer.flush()
        assert "3 LeaseRefusedError" in found.value.__notes__[0]
        await producer.flush()  # each is reported once
        all_.leases.refusals.clear()
        await producer.send("t", b"")
        await producer.flush()
        assert producer.metrics.errors == {"LeaseRefusedError": 3}


async def _await_it(future: "asyncio.Future[Any]") -> None:
    await future


async def _wait_for_it(future: "asyncio.Future[Any]") -> None:
    await asyncio.wait_for(asyncio.shield(future), 20)


async def _gather_it(future: "asyncio.Future[Any]") -> None:
    await asyncio.gather(future, return_exceptions=True)


async def _callback(future: "asyncio.Future[Any]") -> None:
    future.add_done_callback(lambda done: done.exception())


@pytest.mark.parametrize("look", [_await_it, _wait_for_it, _gather_it, _callback])
async def test_who_looks_at_a_future_has_been_told(look: Callable[[Any], Any]) -> None:
    async with world() as all_, all_.producer() as producer:
        refuse_leases(all_)
        future = await producer.send("t", b"")
        task = asyncio.create_task(look(future))
        await producer.flush()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_callback_that_does_not_ask_has_not_looked() -> None:
    async with world() as all_, all_.producer() as producer:
        refuse_leases(all_)
        future = await producer.send("t", b"")
        called = asyncio.Event()
        future.add_done_callback(lambda _: called.set())
        with pytest.raises(LeaseRefusedError):
            await producer.flush()
        assert called.is_set()


async def test_a_cancelled_future_is_not_missed() -> None:
    async with world() as all_, all_.producer() as producer:
        refuse_leases(all_)
        (await producer.send("t", b"")).cancel()
        await producer.flush()


async def test_leaving_the_block_raises() -> None:
    async with world() as all_:
        refuse_leases(all_)
        with pytest.raises(LeaseRefusedError, match="no such partition"):
            async with all_.producer() as producer:
                await producer.send("t", b"")
        with pytest.raises(LeaseRefusedError, match="no such partition"):  # noqa: PT012
            async with all_.producer() as producer:
                await producer.send("t", b"")
                await producer.stop()
        async with all_.producer() as producer:
            future = await producer.send("t", b"")
            with pytest.raises(LeaseRefusedError):
                await future


async def test_leaving_the_block_does_not_mask_the_users_exception() -> None:
    async with world() as all_:
        refuse_leases(all_)
        with pytest.raises(KeyError, match="mine"):  # noqa: PT012
            async with all_.producer() as producer:
                await producer.send("t", b"")
                raise KeyError("mine")
        with pytest.raises(KeyError, match="mine"):  # noqa: PT012
            async with all_.producer() as producer:
                producer._pipeline._leases.close = _broken_close  # type: ignore[method-assign]
                raise KeyError("mine")


async def _broken_close() -> None:
    raise OSError("a close that fails")


async def test_the_gravest_error_stands_for_all() -> None:
    async with world() as all_, all_.producer(name="n", max_batch_size=200) as producer:
        await producer.send_and_wait("t", b"")
        all_.broker.fault = lambda _: Fault("late", seconds=3600)
        for _ in range(100):
            await producer.send("t", b"x" * 50)
        await asyncio.sleep(0)
        sent, unsent = OutcomeUnknownError("sent"), SessionEndedError("never sent")
        for partition in producer._pipeline.partitions.values():
            partition.fail_unsent(unsent)
        producer._pipeline.end(sent, unsent)
        with pytest.raises(OutcomeUnknownError, match="sent") as found:
            await producer.flush()
        assert "SessionEndedError" in found.value.__notes__[0]
        with pytest.raises(SessionEndedError):
            await producer.flush()


async def test_one_line_in_the_log_for_each_kind(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, failure_report.__name__)
    async with world(t=3) as all_:
        async with all_.producer() as producer:
            all_.broker.fault = lambda _: Fault("late", seconds=3600)
            futures = [await producer.send("t", b"", partition=n % 3) for n in range(300)]
            await asyncio.sleep(0)
            producer._pipeline.end(FencedError("gone"), FencedError("gone"))
            await asyncio.sleep(0)
            lines = [each.getMessage() for each in caplog.records if "failed" in each.getMessage()]
            assert lines == ["records failed: 300; FencedError: gone"]
            assert all(isinstance(each.exception(), FencedError) for each in futures)
        assert len(caplog.records) == 2  # and that it takes no more
        assert producer.metrics.errors == {"FencedError": 300}


async def test_what_is_dropped_unseen_is_reported_by_the_producer_alone() -> None:
    """Not by asyncio, with a line for each future."""
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    async with world() as all_:
        refuse_leases(all_)
        with pytest.raises(LeaseRefusedError):  # noqa: PT012
            async with all_.producer() as producer:
                for _ in range(50):
                    await producer.send("t", b"")
        gc.collect()
    assert reported == []


async def test_failures_are_bounded_and_none_is_forgotten() -> None:
    loop = asyncio.get_running_loop()
    unseen: UnseenFailures[asyncio.Future[None]] = UnseenFailures(
        lambda each: not each._log_traceback, 10
    )
    for number in range(100):
        future = loop.create_future()
        future.set_exception(ProducerError(str(number)))
        if number % 4 == 0:
            future.exception()
        unseen.add([future])
        assert len(unseen._futures) <= 21
    error = unseen.take()
    assert isinstance(error, ProducerError)
    assert error.__notes__[0].endswith("75 ProducerError")
    assert str(error) == "1"
    assert unseen.take() is None


# ---------------------------------------------------------------------- the same for threads


def test_blocking_flush_raises_once() -> None:
    with served() as all_, producer_of(all_) as producer:
        refuse_leases(all_)
        for _ in range(3):
            producer.send("t", b"")
        with pytest.raises(LeaseRefusedError, match="no such partition") as found:
            producer.flush()
        assert "3 LeaseRefusedError" in found.value.__notes__[0]
        producer.flush()
        assert producer.metrics.errors == {"LeaseRefusedError": 3}


def test_blocking_futures_that_were_looked_at() -> None:
    with served() as all_, producer_of(all_) as producer:
        refuse_leases(all_)
        with pytest.raises(LeaseRefusedError):
            producer.send_and_wait("t", b"")
        assert isinstance(producer.send("t", b"").exception(20), LeaseRefusedError)
        told: list[Any] = []
        producer.send("t", b"").add_done_callback(lambda done: told.append(done.exception()))
        producer.flush()
        assert isinstance(told[0], LeaseRefusedError)
        ignored: list[Any] = []
        producer.send("t", b"").add_done_callback(ignored.append)
        with pytest.raises(LeaseRefusedError):
            producer.flush()
        assert ignored


def test_a_timeout_of_result_is_no_look() -> None:
    with served() as all_:
        producer = producer_of(all_)
        producer.start()
        producer.send_and_wait("t", b"")
        all_.broker.fault = lambda _: Fault("late", seconds=3600)
        future = producer.send("t", b"")
        with pytest.raises(TimeoutError):
            future.result(0.01)
        with pytest.raises(OutcomeUnknownError), producer_left(producer):
            producer.stop(0.01)


class producer_left:  # noqa: N801 - used as a statement
    """Leaves the block of a producer that was started before."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def __enter__(self) -> None:
        pass

    def __exit__(self, *reason: Any) -> None:
        self._producer.__exit__(*reason)


def test_leaving_the_blocking_block_raises() -> None:
    with served() as all_:
        refuse_leases(all_)
        with pytest.raises(LeaseRefusedError), producer_of(all_) as producer:
            producer.send("t", b"")
        with (  # noqa: PT012
            pytest.raises(KeyError, match="mine"),
            producer_of(all_) as producer,
        ):
            producer.send("t", b"")
            raise KeyError("mine")


@pytest.mark.parametrize("options", [{"name": "n"}, {}])
def test_nothing_passes_a_record_that_the_loop_could_not_take(options: dict[str, Any]) -> None:
    """Its place in the numbering would be another's."""
    with served() as all_, producer_of(all_, **options) as producer:
        ids: dict[str, Any] = {} if options else {"sequence_id": 5}
        producer.send_and_wait("t", b"first", **ids)
        wrong: dict[str, Any] = {"sequence_id": 9} if options else {}
        with producer._room:  # the loop takes both together
            refused = producer.send("t", b"refused", **wrong)
            behind = producer.send("t", b"behind", **ids and {"sequence_id": 7})
        assert isinstance(refused.exception(20), ValueError)
        assert isinstance(behind.exception(20), SessionEndedError)
        with pytest.raises(SessionEndedError):
            producer.send("t", b"")
        assert all_.broker.values() == [b"first"]


def test_what_a_session_that_is_over_takes() -> None:
    with served() as all_:
        with producer_of(all_) as producer:
            producer.stop()
            with pytest.raises(ProducerClosedError):
                producer.send("t", b"")
        unstarted = LeasedProducer(bootstrap_servers=all_.broker.bootstrap, leases=all_.leases.url)
        with pytest.raises(ProducerClosedError):
            asyncio.run(_send(unstarted))


async def _send(producer: LeasedProducer) -> None:
    await producer.send("t", b"")
