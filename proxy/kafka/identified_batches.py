"""Produce under policies strict and monotonic: the first record of a batch names its producer.

The listener reads that record, rewrites the batch header to the partition's writer, and passes the
batch to the engine. Decompression of more than some kilobytes runs in a thread. Later batches of
the same connection then wait: the order on a connection is the producer's order.
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

#: The most bytes that are decompressed on the event loop.
_INLINE_BYTES: Final = 32 << 10
#: Sessions that may end on one connection before it is closed.
_ENDED_MAX: Final = 1000

_log = structlog.get_logger(__name__)


_Sent = tuple[Partition, Pending]

#: Stands for all PIDs, after a batch in which the PID cannot be read.
_ANY_PID: Final = -1


class _Session:
    """The waiting batches and ended producers of one connection.

    Attributes:
        waiting: batches; a thread decompresses the first.
        ended: (PID, partition) of each monotonic producer that had an error on this connection. The
            partition by name, so that a topic that is deleted and created again counts as the same.
    """

    __slots__ = ("ended", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Sent] = deque()
        self.ended: set[tuple[int, TopicPartition]] = set()


class IdentifiedBatches:
    """Passes batches to the engine that name the producer in their first record.

    Parameters:
        pool: threads for the decompression of large batches.
    """

    def __init__(self, pool: IoPool) -> None:
        self._pool = pool
        self._sessions: WeakKeyDictionary[KafkaConnection, _Session] = WeakKeyDictionary()

    def produce(self, connection: KafkaConnection, partition: Partition, pending: Pending) -> None:
        """Pass a batch to the engine, after the earlier batches of its connection."""
        session = self._session(connection)
        if session.waiting:
            session.waiting.append((partition, pending))
            return
        self._read_identity(session, (partition, pending))

    def refused(
        self,
        connection: KafkaConnection,
        partition: TopicPartition,
        data: memoryview,
        *,
        intact: bool,
    ) -> None:
        """Note a batch that the listener has rejected: it ends a monotonic producer's session.

        Parameters:
            data: the batch; its bytes may be no valid batch.
            intact: whether the PID in its header may be used.
        """
        if len(data) >= HEADER_BYTES and intact:
            pid = read_header(data).producer_id
            if policy_of(pid) is Policy.MONOTONIC:
                self._session(connection).ended.add((pid, partition))
        else:
            self._session(connection).ended.add((_ANY_PID, partition))

    def _session(self, connection: KafkaConnection) -> _Session:
        session = self._sessions.get(connection)
        if session is None:
            session = self._sessions[connection] = _Session()
        if len(session.ended) >= _ENDED_MAX:
            connection.close()
        return session

    def _read_identity(self, session: _Session, sent: _Sent) -> bool:
        """Read the producer's identity and pass the batch on; False: a thread reads it first."""
        _, pending = sent
        try:
            identity = find_identity(pending.header, pending.data, _INLINE_BYTES)
        except TooLongError:
            session.waiting.appendleft(sent)
            work = partial(find_identity, pending.header, pending.data)
            self._pool.submit(work, partial(self._identity_read, session))
            return False
        except IdentityError as error:
            self._pass_on(session, sent, error)
        else:
            self._pass_on(session, sent, identity)
        return True

    def _identity_read(self, session: _Session, found: Identity | Exception | None) -> None:
        self._pass_on(session, session.waiting.popleft(), found)
        while session.waiting and self._read_identity(session, session.waiting.popleft()):
            pass

    def _pass_on(self, session: _Session, sent: _Sent, found: Identity | Exception | None) -> None:
        partition, pending = sent
        pid = pending.pid
        if policy_of(pid) is Policy.MONOTONIC:
            sender = (pid, partition.name)
            if sender in session.ended or (_ANY_PID, partition.name) in session.ended:
                pending.complete(_ENDED)
                return
            # Its sequence numbers need not be consecutive. After a batch that is not stored, later
            # ones would be appended, and the retry of the first rejected as a duplicate.
            pending = Watched(pending, partial(session.ended.add, sender))
        if isinstance(found, Exception) and not isinstance(found, IdentityError):
            LINES.write(_log, "error", "cannot read a batch's first record", kind_of(found), found,
                        error=repr(found))  # fmt: skip
            reason = "the server could not read the batch's first record"
            pending.complete(Outcome(Status.FAILED, reason=reason))
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
        return "its pidlease header is of a kind that only the server writes"
    if found is None:
        return "its first record has no pidlease header, which names the producer"
    return f"its pidlease header names {found.name or found.pid!r}, its batch header {pid}"


_ENDED: Final = Outcome(
    Status.SESSION_ENDED,
    reason="an earlier batch had an error, which ends a monotonic producer's session on this"
    " connection; connect again, and resend from that batch on",
)
