"""A client that reads, processes and writes in transactions, and goes on whatever happens.

Errors are handled as librdkafka documents it: what is retriable is called again, what wants the
transaction aborted is aborted and read again, and everything else ends the client.
"""

import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from random import Random
from threading import Event, Thread
from typing import Any, Final, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from tests.crash.ledger import Ledger

_Result = TypeVar("_Result")

#: For one call; it is made again when it was too short.
_CALL_S: Final = 10.0
#: For one thing, with all that is tried again.
_GIVE_UP_S: Final = 120.0
#: A call that takes longer, with its own timeout of _CALL_S, never returns: librdkafka's
#: send_offsets_to_transaction does so at times (#5511, #5456).
_HANGS_S: Final = 90.0
_REST_S: Final = 0.05
_RECORDS_MAX: Final = 400
#: One transaction of so many is aborted on purpose.
_ABORTED_EVERY: Final = 6
#: What a producer is told when another instance has taken its transactional id.
_FENCED: Final = frozenset(
    (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
)
#: What librdkafka may make of an abort while nobody answers, straight on Kafka as well: it drops
#: what was perhaps stored, and gives its numbers to others, or ends a transaction twice. It is
#: fatal, and an application goes on with a new instance.
_FELL_OUT: Final = frozenset(
    (KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaError.INVALID_TXN_STATE)
)


class Copier:
    """One instance: what it reads from a partition it writes to the same one of another topic.

    Parameters:
        bootstrap: the server.
        source: what is read, in a group,
        target: and where it is written.
        ledger: of all instances; its name is that of the group, and the transactional id.
        random: how many records are in a transaction, and which ones are aborted.

    Attributes:
        ending: set when it is to end.
        replaced: set when another one takes its place.
        given_up: set when it hangs; its result is ignored from then on.
        done: what happened: "committed", "aborted", "had to abort", "tried again", "rebalanced".
    """

    def __init__(
        self, bootstrap: str, source: str, target: str, ledger: Ledger, random: Random
    ) -> None:
        name = ledger.name
        self.ending = Event()
        self.replaced = Event()
        self.given_up = Event()
        self._call_began = 0.0
        self.done: Counter[str] = Counter()
        self._source = source
        self._target = target
        self._ledger = ledger
        self._random = random
        quick = {
            "bootstrap.servers": bootstrap, "log_level": 0, "error_cb": lambda _: None,
            "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 20, "topic.metadata.refresh.fast.interval.ms": 50,
            # Where all brokers are gone for a moment, and for it we are all of them, it would begin
            # anew, and send_offsets_to_transaction would hang for good (librdkafka #5511, #5456).
            "metadata.recovery.strategy": "none",
        }  # fmt: skip
        # Kafka ends a transaction that lasts longer, and fences its producer. The default of a
        # minute is too short on a busy machine while servers are restarted.
        longer = {"transaction.timeout.ms": 600_000}
        self._producer = Producer({**quick, **longer, "transactional.id": name})
        self._consumer = Consumer({
            **quick, "group.id": name, "enable.auto.commit": False, "auto.offset.reset": "earliest",
            "isolation.level": "read_committed", "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 500, "max.poll.interval.ms": 60_000,
        })  # fmt: skip
        #: As it was when partitions were given to us: later calls might tell of another generation.
        self._member: Any = None

    @property
    def hangs(self) -> bool:
        """Whether a call of librdkafka has not returned in its time."""
        began = self._call_began
        return began > 0 and time.monotonic() - began > _HANGS_S

    def run(self) -> str:
        """Copy until it is to end: "ended"; or "fenced" or "fell out", see _FENCED and _FELL_OUT.

        Raises:
            KafkaException: an error that a client cannot get over.
        """
        try:
            self._persist(lambda: self._producer.init_transactions(_CALL_S))
            self._consumer.subscribe(
                [self._source], on_assign=self._assigned, on_revoke=self._taken,
                on_lost=self._taken,
            )  # fmt: skip
            while not self.ending.is_set():
                self._round()
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if not reason.fatal() or reason.code() not in _FENCED | _FELL_OUT:
                raise
            return "fenced" if reason.code() in _FENCED else "fell out"
        finally:
            self._consumer.close()
        return "ended"

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self.done["rebalanced"] += 1
        self._member = consumer.consumer_group_metadata()

    def _taken(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self.done["rebalanced"] += 1

    def _round(self) -> None:
        """One transaction, if there is something to copy."""
        before = self.done["rebalanced"]
        messages = self._consumer.consume(self._random.randint(1, _RECORDS_MAX), 0.1)
        found: list[tuple[int, int, bytes]] = []
        for each in messages:
            error, partition, offset, value = (
                each.error(), each.partition(), each.offset(), each.value()
            )  # fmt: skip
            if error is not None:
                assert not error.fatal(), error
                continue
            assert partition is not None
            assert offset is not None
            assert isinstance(value, bytes)
            found.append((partition, offset, value))
        if found and self.done["rebalanced"] != before:
            self._go_back()  # some of it may be somebody else's by now
        elif found:
            self._copy(found)

    def _copy(self, found: list[tuple[int, int, bytes]]) -> None:
        places = {partition: offset + 1 for partition, offset, _ in found}
        upto = [TopicPartition(self._source, number, at) for number, at in places.items()]
        send = self._producer.send_offsets_to_transaction
        try:
            self._producer.begin_transaction()
            if not self._write(found):
                self._abort("had to abort")  # or this tells what is wrong
                return
            if not self._random.randrange(_ABORTED_EVERY):
                self._producer.flush(_GIVE_UP_S)  # so that there is something to be aborted
                self._abort("aborted")
                return
            self._persist(lambda: send(upto, self._member, _CALL_S))
            self._persist(lambda: self._producer.commit_transaction(_CALL_S))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._abort("had to abort")
        else:
            self.done["committed"] += 1
            self._ledger.acknowledged_count += len(found)

    def _write(self, found: list[tuple[int, int, bytes]]) -> bool:
        """Whether all was taken; a transaction in which something went wrong takes nothing more."""
        try:
            for partition, _, value in found:
                self._producer.produce(self._target, value, partition=partition)
                self._producer.poll(0)
        except KafkaException:
            return False
        return True

    def _abort(self, why: str) -> None:
        self._persist(lambda: self._producer.abort_transaction(_CALL_S))
        self.done[why] += 1
        self._go_back()

    def _go_back(self) -> None:
        """To what is committed: the rest is read again."""
        deadline = time.monotonic() + _GIVE_UP_S
        while True:
            try:
                return self._seek()
            except KafkaException as error:  # its coordinator is away, or the partition is
                if error.args[0].fatal() or time.monotonic() > deadline:
                    raise
                self.done["tried again"] += 1
                self._consumer.poll(_REST_S)

    def _seek(self) -> None:
        for place in self._consumer.committed(self._consumer.assignment(), _CALL_S):
            if place.error is not None:
                raise KafkaException(place.error)
            at = place.offset if place.offset >= 0 else OFFSET_BEGINNING
            self._consumer.seek(TopicPartition(place.topic, place.partition, at))

    def _persist(self, call: Callable[[], _Result]) -> _Result:
        deadline = time.monotonic() + _GIVE_UP_S
        while True:
            self._call_began = time.monotonic()
            try:
                return call()
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
                self.done["tried again"] += 1
                time.sleep(_REST_S)
            finally:
                self._call_began = 0.0


class Copying:
    """Instances that follow one another under one transactional id; a `Load` to who waits for it.

    Parameters:
        bootstrap: the server.
        source: what is copied,
        target: and where to.
        name: of the group, and the transactional id.
        random: of all of them.

    Attributes:
        ledger: how many records were copied, and errors that ended an instance.
        done: what happened to the instances that have ended.
    """

    def __init__(self, bootstrap: str, source: str, target: str, name: str, random: Random) -> None:
        self.ledger = Ledger(name)
        self.done: Counter[str] = Counter()
        self._what = (bootstrap, source, target)
        self._random = Random(random.random())
        self._copier = self._new()
        self._running: Future[str] = Future()
        self._thread = Thread()

    def _new(self) -> Copier:
        return Copier(*self._what, self.ledger, Random(self._random.random()))

    def start(self) -> None:
        """Begin with an instance."""
        self._running = Future()
        run = partial(self._run, self._copier, self._running)
        self._thread = Thread(target=run, name=self.ledger.name, daemon=True)
        self._thread.start()

    def _run(self, copier: Copier, running: Future[str]) -> None:
        try:
            while (result := copier.run()) == "fell out" and not copier.replaced.is_set():
                self._ended(copier, result)
                self._copier = copier = self._new()
            if not copier.given_up.is_set():
                self._ended(copier, result)
            running.set_result(result)
        except Exception as error:  # noqa: BLE001 - told to who waits
            if not copier.given_up.is_set():
                self.ledger.failures.append(repr(error))
            running.set_exception(error)

    def _ended(self, copier: Copier, result: str) -> None:
        self.done += copier.done
        self.done[result] += 1

    def state(self) -> str:
        """Return what happened to the present instance, and where its thread is."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame else "its thread has ended"
        return f"{self.ledger.name}: {dict(self._copier.done)}\n{stack}"

    def replace(self, within_s: float) -> None:
        """Start another instance, while the one before goes on and must be fenced."""
        fenced = self.done["fenced"]
        while self.done["fenced"] == fenced:
            running = self._running
            former = self._copier
            former.replaced.set()
            self._copier = self._new()
            self.start()
            deadline = time.monotonic() + within_s
            while not running.done() and not former.hangs:
                assert time.monotonic() < deadline, "the former instance goes on"
                time.sleep(_REST_S)
            if running.done():
                assert running.result() in ("fenced", "fell out")
            else:
                self._give_up(former)

    def look(self) -> None:
        """Start another instance if the present one hangs, as whoever runs it would."""
        if self._copier.hangs:
            self._give_up(self._copier)
            self._copier = self._new()
            self.start()

    def _give_up(self, copier: Copier) -> None:
        copier.given_up.set()
        self.done += copier.done
        self.done["hung"] += 1

    def finish(self, timeout_s: float) -> None:
        """See `Load`."""
        self._copier.ending.set()
        assert self._running.result(timeout_s) == "ended"
