"""The producer for scripts and threads: it runs an event loop in a thread of its own."""

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from operator import attrgetter
from types import TracebackType
from typing import Any, Final, NamedTuple, ParamSpec, Self, TypeVar, Unpack

from typing_extensions import override

from pidlease.client.errors import ProducerClosedError, ProducerError, SessionEndedError
from pidlease.client.failure_report import UnseenFailures, results_of
from pidlease.client.metrics import ProducerMetrics
from pidlease.client.pending_batch import Headers, Sent
from pidlease.client.pipeline import no_partition
from pidlease.client.producer import UNACKNOWLEDGED_MAX, LeasedProducer
from pidlease.client.record_arguments import (
    KeyOf,
    check_record,
    check_topic,
    record_bytes_max,
    serialized,
)
from pidlease.client.settings import ProducerOptions, RecordOptions, settings_of
from pidlease.client.unstopped_producers import report_lost, warn_unstopped

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_P = ParamSpec("_P")

#: Records handed over and not yet accepted by the loop; then `send` blocks.
_HANDED_OVER_MAX: Final = 1_000
_CLOSED: Final = "the producer was stopped, or was not started"
#: How long callbacks of futures may take at the end of the program.
_CALLBACKS_S: Final = 2.0


class _Record(NamedTuple):
    """A record that a caller hands over to the loop."""

    topic: str
    value: bytes | None
    options: RecordOptions
    future: "_SentFuture"


class _Resolver(ThreadPoolExecutor):
    """Resolves names for the loop; at the end of the program in the loop's own thread.

    No thread can be started then, and no executor accepts work.
    """

    @override
    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            future: Future[_T] = Future()
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - the caller gets it
                future.set_exception(error)
            return future


class _SentFuture(Future[Sent]):
    """A future that notes whether the application has seen its outcome."""

    looked_at = False

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the error."""
        self.looked_at = True  # the caller gets the error
        try:
            return super().exception(timeout)
        except BaseException:  # the wait failed, not the record
            self.looked_at = False
            raise

    def result(self, timeout: float | None = None) -> Sent:
        """Wait, and return the result or raise the error."""
        self.exception(timeout)
        return super().result()


class BlockingProducer:
    """`LeasedProducer` without asyncio; any number of threads may use it.

    Records of one thread keep their order. A future's callbacks run in the producer's own thread:
    there `send` does not block, and all blocking calls raise. A forked process has no such thread,
    so it must make a producer of its own.

    ```python
    from pidlease.client import BlockingProducer

    with BlockingProducer(
        bootstrap_servers="127.0.0.1:9092", leases="http://127.0.0.1:8080"
    ) as producer:
        for line in (b"tea", b"cake"):
            producer.send("lines", line)
        producer.flush()  # raises if a line is not in the log
    ```

    Parameters:
        options: as for `LeasedProducer`.

    Raises:
        ValueError: an option is invalid.
    """

    def __init__(self, **options: Unpack[ProducerOptions]) -> None:
        # The caller's thread serializes.
        inner = options.copy()
        inner["value_serializer"] = inner["key_serializer"] = None
        settings = settings_of(options)
        self._value_serializer: Final = settings.value_serializer
        self._key_serializer: Final = settings.key_serializer
        self._producer: Final = LeasedProducer(**inner)
        self._pipeline: Final = self._producer._pipeline
        self._pipeline.at_exit = self._at_exit
        self._record_bytes_max: Final = record_bytes_max(self._pipeline.settings.max_request_size)
        #: Used in the loop's thread, and after that has ended.
        self._unseen: Final[UnseenFailures[_SentFuture]] = UnseenFailures(
            attrgetter("looked_at"), self._pipeline.unseen_max
        )
        self._loop: Final = asyncio.new_event_loop()
        self._loop.set_default_executor(_Resolver(thread_name_prefix="pidlease-resolver"))
        self._thread: Final = threading.Thread(
            target=self._loop.run_forever, name="pidlease-producer", daemon=True
        )
        self._handed_over: Final[deque[_Record]] = deque()
        #: Each record is in one of both deques or accepted, so that none is forgotten at the end.
        self._accepting: Final[deque[_Record]] = deque()
        self._process: Final = os.getpid()
        self._started = False
        self._delivered = False
        #: Guards the state and what was handed over.
        self._room: Final = threading.Condition()
        self._state = "new"
        self._awake: Final = asyncio.Event()
        #: How many records were handed over, and how many of them the producer has taken or
        #: refused; `_turn` is set whenever the latter grows.
        self._handed_count = self._taken_count = 0
        self._turn: Final = asyncio.Event()

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Connect to the cluster; like `LeasedProducer.start`."""
        self._check_process()
        with self._room:
            if self._state != "new":
                raise ProducerClosedError("a producer is started once")
            self._state = "open"
        self._thread.start()
        try:
            self._do(self._start())
        except BaseException:
            self._end()
            raise

    def stop(self, timeout_s: float | None = None) -> None:
        """Deliver all pending records, and end; in a forked process it does nothing.

        Raises:
            RuntimeError: called by a future's callback.
        """
        if os.getpid() != self._process:
            return
        self._check_thread()
        with self._room:
            if self._state != "open":
                return
            self._state = "stopping"
            self._room.notify_all()
        try:
            self._do(self._stop(timeout_s))
        finally:
            self._end()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        except Exception:
            if error is None:
                raise
            _log.exception("stopping a producer failed")
        if error is None and (failed := self._unseen.take()) is not None:
            raise failed

    # ------------------------------------------------------------------ records

    def send(  # noqa: PLR0913 - what a record has
        self,
        topic: str,
        value: object = None,
        *,
        key: object = None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        sequence_id: int | None = None,
    ) -> "Future[Sent]":
        """Accept a record; the parameters are those of `LeasedProducer.send`.

        Blocks while the buffer is full, and for a topic's first metadata.

        Returns:
            A future of the record's place in the log. It fails with a `ProducerError`, or with a
            ValueError if its sequence_id does not follow the preceding ones; then no record after
            it is sent.

        Raises:
            ValueError, TypeError, ProducerError: as `LeasedProducer.send`.
        """
        self._check_process()
        try:
            if self._started:
                self._pipeline.check()
            value = serialized(self._value_serializer, value, "value")
            key = serialized(self._key_serializer, key, "key")
            data, key_data, headers, _ = check_record(
                value, key, headers, timestamp_ms, sequence_id, self._record_bytes_max
            )
            self._check_place(topic, partition)
            options: RecordOptions = {
                "key": key_data,
                "partition": partition,
                "headers": headers,
                "timestamp_ms": timestamp_ms,
                "sequence_id": sequence_id,
            }
            return self._hand_over(topic, data, options)
        except Exception as error:
            self._count(error)
            raise

    def _check_place(self, topic: str, partition: int | None) -> None:
        """Raise for a topic or a partition that does not exist.

        During `start`, and in the loop's thread, the metadata is not available; `_bring` then
        checks.
        """
        check_topic(topic)
        if not self._started or threading.current_thread() is self._thread:
            return
        if (topic, partition) in self._pipeline.partitions:
            return
        partitioner = self._pipeline.partitioners.get(topic)
        if partitioner is None:
            partitioner = self._do(self._pipeline.topic(topic))
        if partition is not None and partition not in partitioner.partitions:
            raise no_partition(topic, partition, partitioner.partitions)

    def _count(self, error: Exception) -> None:
        with self._room:
            if self._state != "closed":  # the loop runs
                self._loop.call_soon_threadsafe(self._pipeline.metrics.failed, error, 1)

    def _hand_over(self, topic: str, value: bytes | None, options: RecordOptions) -> _SentFuture:
        future = _SentFuture()
        with self._room:
            while self._state == "open" and len(self._handed_over) >= _HANDED_OVER_MAX:
                if threading.current_thread() is self._thread:
                    break  # this thread makes room
                self._room.wait()
            if self._state != "open":
                raise ProducerClosedError(_CLOSED)
            self._handed_over.append(_Record(topic, value, options, future))
            self._handed_count += 1
            if len(self._handed_over) == 1:
                self._loop.call_soon_threadsafe(self._awake.set)
        return future

    def send_and_wait(
        self, topic: str, value: object = None, **options: Unpack[RecordOptions]
    ) -> Sent:
        """Send a record and wait until it is in the log.

        Raises:
            RuntimeError: called by a future's callback, as with `flush` and `lease`.
        """
        self._check_thread()
        return self.send(topic, value, **options).result()

    def send_many(
        self,
        topic: str,
        values: Iterable[object],
        *,
        key_of: KeyOf | None = None,
        partition: int | None = None,
    ) -> list[Sent]:
        """Send records and wait until all are in the log; like `LeasedProducer.send_many`."""
        self._check_thread()
        futures: list[Future[Sent]] = []
        for value in values:
            key = key_of(value) if key_of is not None else None
            futures.append(self.send(topic, value, key=key, partition=partition))
        return results_of(futures)

    def send_each(
        self,
        topic: str,
        values: Iterable[object],
        *,
        key_of: KeyOf | None = None,
        partition: int | None = None,
    ) -> Iterator[Sent]:
        """Send records, and yield the results one by one; like `LeasedProducer.send_each`.

        With a progress bar, for example of rich:

            for sent in rich.progress.track(producer.send_each("rows", rows), total=len(rows)):
                ...
        """
        self._check_thread()
        waiting: deque[Future[Sent]] = deque()
        refused: Exception | None = None
        for value in values:
            key = key_of(value) if key_of is not None else None
            try:
                waiting.append(self.send(topic, value, key=key, partition=partition))
            except (ProducerError, ValueError, TypeError) as error:
                refused = error
                break
            while waiting and (len(waiting) >= UNACKNOWLEDGED_MAX or waiting[0].done()):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
        if refused is not None:
            raise refused

    def flush(self) -> None:
        """Wait until all records sent so far are in the log; like `LeasedProducer.flush`."""
        self._do(self._flush())

    # ------------------------------------------------------------------ state

    def partitions_for(self, topic: str) -> Sequence[int]:
        """Return the partitions of a topic."""
        return self._do(self._producer.partitions_for(topic))

    def lease(self, topic: str, partition: int) -> None:
        """Lease for a partition before its first record, to know `last_sequence_id`."""
        self._do(self._producer.lease(topic, partition))

    def last_sequence_id(self, topic: str, partition: int) -> int:
        """Return the highest sequence number known to be in the log; -1: none is."""
        return self._producer.last_sequence_id(topic, partition)

    @property
    def producer_name(self) -> str | None:
        """The producer's name."""
        return self._producer.producer_name

    @property
    def pid(self) -> int:
        """The current PID; -1: none yet."""
        return self._producer.pid

    @property
    def metrics(self) -> ProducerMetrics:
        """The counters, as they are now."""
        return self._producer.metrics

    # ------------------------------------------------------------------ in the loop's thread

    async def _start(self) -> None:
        await self._producer.start()
        self._started = True
        self._acceptor = asyncio.create_task(self._accept_all())  # asyncio keeps no reference to it

    async def _accept_all(self) -> None:
        """Send the records that were handed over, in their order."""
        while True:
            with self._room:
                self._accepting.extend(self._handed_over)
                self._handed_over.clear()
                self._room.notify_all()
                if not self._accepting:
                    self._awake.clear()
            count = len(self._accepting)
            while self._accepting:
                await self._bring(self._accepting.popleft())
            self._taken_count += count
            self._turn.set()
            await self._awake.wait()

    async def _bring(self, record: _Record) -> None:
        topic, value, options, future = record
        if not future.set_running_or_notify_cancel():
            return
        try:
            sent = await self._producer.send(topic, value, **options)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            self._fail(future, error)
            if options.get("sequence_id") is not None or self._numbers_matter():
                # The next record would take its sequence number, or skip it.
                ended = f"{topic}: a record was not accepted: {error}"
                self._pipeline.refuse(SessionEndedError(ended))
        except BaseException:
            # Nothing was taken by a `send` that was cancelled.
            self._close_out(future)
            raise
        else:
            sent.add_done_callback(partial(self._resolve, future))

    def _numbers_matter(self) -> bool:
        if self._pipeline.settings.name is not None:
            return True
        return any(each.loses_none for each in self._pipeline.partitions.values())

    def _resolve(self, future: _SentFuture, sent: "asyncio.Future[Sent]") -> None:
        if (error := sent.exception()) is not None:
            future.set_exception(error)
            self._unseen.add([future])
        else:
            future.set_result(sent.result())

    def _fail(self, future: _SentFuture, error: Exception) -> None:
        """Fail a record that the producer did not take."""
        future.set_exception(error)
        self._unseen.add([future])
        self._pipeline.failure_log.add(error, 1)

    def _close_out(self, future: _SentFuture) -> None:
        """Fail a record that came too late for the producer."""
        error = ProducerClosedError(_CLOSED)
        self._pipeline.metrics.failed(error, 1)
        self._fail(future, error)

    async def _accepted(self) -> None:
        """Wait until the producer has taken or refused all records handed over so far."""
        with self._room:
            count = self._handed_count
        while self._taken_count < count:
            self._turn.clear()
            await self._turn.wait()

    async def _flush(self) -> None:
        await self._accepted()
        await self._pipeline.flush(self._unseen)

    async def _stop(self, timeout_s: float | None) -> None:
        give_up = None if timeout_s is None else self._loop.time() + timeout_s
        with suppress(TimeoutError):
            await asyncio.wait_for(self._accepted(), timeout_s)
        left = None if give_up is None else max(give_up - self._loop.time(), 0)
        await self._producer.stop(left)
        self._delivered = True
        # Records that were not accepted in time fail now.
        await self._accepted()

    # ------------------------------------------------------------------ helpers

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ProducerClosedError("the producer belongs to the process that forked this one")

    def _check_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError("a future's callback would wait for itself")

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            self._check_process()
            self._check_thread()
        except BaseException:
            work.close()
            raise
        with self._room:
            if self._state not in ("open", "stopping"):
                work.close()
                raise ProducerClosedError(_CLOSED)
            done = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return done.result()
        except CancelledError:
            raise ProducerClosedError("the producer was stopped meanwhile") from None

    def _end(self, timeout_s: float | None = None) -> bool:
        """End the thread; False: a callback in it did not return in time."""
        with self._room:
            self._state = "closed"
            self._room.notify_all()
        failed = asyncio.run_coroutine_threadsafe(self._fail_left(), self._loop)
        if wait([failed], timeout_s).not_done:
            return False
        failed.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        return True

    def _at_exit(self) -> None:
        """Stop at the end of the program, within the delivery timeout, and report what is lost."""
        with self._room:
            if self._state != "open":
                return
            self._state = "stopping"
            self._room.notify_all()
        limit_s = self._pipeline.settings.delivery_timeout_ms / 1000
        with suppress(KeyboardInterrupt):  # what is left fails then
            warn_unstopped(self)
            stopped = asyncio.run_coroutine_threadsafe(self._stop(limit_s), self._loop)
            wait([stopped], limit_s + _CALLBACKS_S)
        if not self._end(_CALLBACKS_S):
            report_lost("a callback of a future does not return")
        elif (error := self._unseen.take()) is not None:
            report_lost("; ".join(map(str, (error, *getattr(error, "__notes__", ())))))

    async def _fail_left(self) -> None:
        """Fail the records that are left, if it was not stopped in the regular way."""
        await _cancel_others()
        if not self._delivered:
            await self._producer.stop(0)
        for record in (*self._accepting, *self._handed_over):
            if record.future.set_running_or_notify_cancel():
                self._close_out(record.future)
        self._pipeline.failure_log.write()


async def _cancel_others() -> None:
    """Cancel all other tasks: none may wait for a loop that has stopped."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
