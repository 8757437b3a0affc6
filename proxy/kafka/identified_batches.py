"""Produce, policies strict and monotonic: the first record names the producer.

The listener reads it, puts the batch under the partition's writer, and brings it to the engine. A
compressed batch is unpacked in a thread where that takes more than some kilobytes. Batches that
follow on the same connection then wait: the order on a connection is the producer's order.
"""

from collections import deque
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

import structlog

from pidlease.core.pid import Policy, policy_of
from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.batch_identity import identified
from pidlease.engine.partition import Partition
from pidlease.engine.pending_batches import Pending, Watched
from pidlease.kafka.records.first_record import TooLongError, find_identity
from pidlease.kafka.records.identity_header import Identity, IdentityError
from pidlease.kafka.records.record_batch import HEADER_BYTES, read_header
from pidlease.kafka.records.writer_batch import crc_of_send, under_writer
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.io_pool import IoPool
from pidlease.storage.snapshots import TopicPartition
from proxy.kafka.client_connection import KafkaConnection

#: What is unpacked on the event loop at most.
_INLINE_BYTES: Final = 32 << 10
#: Sessions that may end on one connection; a client that goes on has to connect again.
_ENDED_MAX: Final = 1000

_log = structlog.get_logger(__name__)


_Sent = tuple[Partition, Pending]


#: In the place of a PID: all PIDs, for it cannot be read.
_ANYBODY: Final = -1


class _Session:
    """What one connection has sent.

    Attributes:
        waiting: batches, the first of which is being looked into.
        ended: producers of policy monotonic that had an error on this connection, by partition. By
            its name: a topic that is made again is the same to them.
    """

    __slots__ = ("ended", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Sent] = deque()
        self.ended: set[tuple[int, TopicPartition]] = set()


class IdentifiedBatches:
    """Brings batches to the engine that name the producer in their first record.

    Parameters:
        pool: the threads for looking into large ones.
    """

    def __init__(self, pool: IoPool) -> None:
        self._pool = pool
        self._sessions: WeakKeyDictionary[KafkaConnection, _Session] = WeakKeyDictionary()

    def produce(self, connection: KafkaConnection, partition: Partition, pending: Pending) -> None:
        """Bring a batch to the engine, after the earlier ones of its connection.

        Parameters:
            connection: the connection that the batch came on.
            partition: that the batch is for.
            pending: the batch, checked.
        """
        session = self._session(connection)
        if session.waiting:
            session.waiting.append((partition, pending))
            return
        self._look(session, (partition, pending))

    def refused(
        self, connection: KafkaConnection, place: TopicPartition, data: memoryview, *, intact: bool
    ) -> None:
        """Take note of a batch that the listener refused by itself: an error like any other.

        Parameters:
            connection: that it came on.
            place: where it was to go.
            data: the batch, or what was sent as one.
            intact: whether its PID can be believed, as far as it matters here.
        """
        if len(data) >= HEADER_BYTES and intact:
            pid = read_header(data).producer_id
            if policy_of(pid) is Policy.MONOTONIC:
                self._session(connection).ended.add((pid, place))
        else:
            self._session(connection).ended.add((_ANYBODY, place))

    def _session(self, connection: KafkaConnection) -> _Session:
        session = self._sessions.get(connection)
        if session is None:
            session = self._sessions[connection] = _Session()
        if len(session.ended) >= _ENDED_MAX:
            connection.close()
        return session

    def _look(self, session: _Session, sent: _Sent) -> bool:
        """Look into a batch; False: that goes on in a thread."""
        _, pending = sent
        try:
            identity = find_identity(pending.header, pending.data, _INLINE_BYTES)
        except TooLongError:
            session.waiting.appendleft(sent)
            work = partial(find_identity, pending.header, pending.data)
            self._pool.submit(work, partial(self._looked, session))
            return False
        except IdentityError as error:
            self._bring(session, sent, error)
        else:
            self._bring(session, sent, identity)
        return True

    def _looked(self, session: _Session, found: Identity | Exception | None) -> None:
        self._bring(session, session.waiting.popleft(), found)
        while session.waiting and self._look(session, session.waiting.popleft()):
            pass

    def _bring(self, session: _Session, sent: _Sent, found: Identity | Exception | None) -> None:
        partition, pending = sent
        place = partition.name
        pid = pending.pid
        if policy_of(pid) is Policy.MONOTONIC:
            if (pid, place) in session.ended or (_ANYBODY, place) in session.ended:
                pending.complete(_ENDED)
                return
            # Such a producer has no density that would protect it: what follows a batch that was
            # not stored would overtake it, and its retry be a duplicate.
            pending = Watched(pending, lambda pid: session.ended.add((pid, place)))
        if isinstance(found, Exception) and not isinstance(found, IdentityError):
            LINES.write(_log, "error", "a batch could not be looked into", kind_of(found), found,
                        error=repr(found))  # fmt: skip
            outcome = Outcome(Status.FAILED, reason="the server could not look into the batch")
            pending.complete(outcome)
        elif isinstance(found, Identity) and found.pid == pid and not found.records:
            data = pending.data
            pending.header = header = under_writer(pending.header, data)
            pending.batch = identified(found, header, crc_of_send(header, data))
            partition.produce(pending)
        else:
            partition.refuse(pending, Outcome(Status.MALFORMED, reason=_why(pid, found)))


def _why(pid: int, found: Identity | Exception | None) -> str:
    if isinstance(found, Exception):
        return str(found)
    if found is not None and found.records:
        return "its header pidlease is of a kind that only the server writes"
    if found is None:
        return "its first record has no header pidlease, which names its producer"
    return f"its header pidlease speaks of {found.name or found.pid!r}, its batch header of {pid}"


_ENDED: Final = Outcome(
    Status.SESSION_ENDED,
    reason="a batch before it had an error, which ends a monotonic producer's session on this"
    " connection; connect again, and send from that batch on",
)
