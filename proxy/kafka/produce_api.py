"""Produce (key 0): brings batches to the engine.

Their records are not looked at, but for the first one's headers under policies strict and
monotonic (`identified_batches.py`).
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from pidlease.core.pid import NO_PIDS, Policy, policy_of
from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.batch_identity import batch_of, no_policy
from pidlease.engine.engine import Engine
from pidlease.kafka.codec.primitives import MalformedError, RequestHeader
from pidlease.kafka.codec.produce import (
    PartitionData,
    PartitionResponse,
    ProduceRequest,
    read_produce_request,
    write_produce_response,
)
from pidlease.kafka.records.record_batch import (
    MAGIC,
    BatchHeader,
    CorruptBatchError,
    InvalidBatchError,
    check_from_client,
    check_intact,
    read_header,
)
from pidlease.storage.snapshots import TopicPartition
from proxy.kafka.client_connection import KafkaConnection, Slot
from proxy.kafka.errors import CODES
from proxy.kafka.identified_batches import IdentifiedBatches, Sent

_TRANSACTIONAL_ID_BYTES_MAX: Final = 2**15 - 1
#: Ids below are Kafka's own: ours have their policy in front (see `core.pid`).
OWN_PIDS_FROM: Final = 1 << 48

#: Brings a batch to Kafka as it is, with a transactional id, and calls back with Kafka's response.
Passing = Callable[
    [TopicPartition, memoryview, str | None, Callable[[PartitionResponse], None]], None
]

_PENDING = PartitionResponse(ErrorCode.unknown_server_error.value)


class _Reply:
    """The answer to one request, sent when every partition's result is there."""

    __slots__ = ("_missing", "_request", "_results", "_slot", "_version")

    def __init__(self, slot: Slot, version: int, request: ProduceRequest) -> None:
        self._slot = slot
        self._version = version
        self._request = request
        self._results = [_PENDING] * len(request.parts)
        self._missing = len(request.parts)
        if not self._missing:
            self._send()

    @property
    def connection(self) -> KafkaConnection:
        """Where the request came from."""
        return self._slot.connection

    def put(self, place: int, result: PartitionResponse) -> None:
        """Fill in a partition's result."""
        self._results[place] = result
        if result.code:
            self._slot.count_error(result.code)
        self._missing -= 1
        if not self._missing:
            self._send()

    def put_outcome(
        self, place: int, header: BatchHeader, log_start: int, outcome: Outcome
    ) -> None:
        """Fill in a partition's result as the engine says it."""
        status, offset = outcome.status, outcome.offset
        if status is Status.APPENDED or (status is Status.DUPLICATE and offset >= 0):
            self.put(place, PartitionResponse(0, offset, log_start))
            return
        self._put_error(place, header, log_start, outcome)

    def put_leased(self, place: int, header: BatchHeader, log_start: int, outcome: Outcome) -> None:
        """Put an outcome for clients that distinguish a duplicate from an append."""
        if outcome.status is Status.DUPLICATE and outcome.offset >= 0:
            duplicate = PartitionResponse(0, outcome.offset, log_start, Status.DUPLICATE.value)
            self.put(place, duplicate)
            return
        self.put_outcome(place, header, log_start, outcome)

    def _put_error(self, place: int, header: BatchHeader, log_start: int, outcome: Outcome) -> None:
        status = outcome.status
        code = CODES[status] if status is not Status.DUPLICATE else _FORGOTTEN
        number = outcome.code or code.value
        self.put(place, PartitionResponse(number, -1, log_start, _message(header, outcome)))

    def _send(self) -> None:
        slot = self._slot
        if self._request.acks != 0:
            slot.fill(
                write_produce_response(
                    self._version, slot.correlation_id, self._request, self._results
                )
            )
            return
        slot.fill()
        if any(result.code for result in self._results):
            # The only signal for a client that waits for no response, as in Kafka.
            slot.connection.close()


#: Policies with the producer in the first record of a batch.
_IDENTIFIED: Final = (Policy.STRICT, Policy.MONOTONIC)
#: A duplicate with an unknown offset; clients take it for a success.
_FORGOTTEN = ErrorCode.duplicate_sequence_number


def _message(header: BatchHeader, outcome: Outcome) -> str:
    pid, epoch, first = header.producer_id, header.producer_epoch, header.base_sequence
    what = outcome.reason or outcome.status.value
    if policy_of(pid) in _IDENTIFIED:  # its numbers do not fit a batch's header
        words, fence = [f"PID {pid}: {what}"], "generation"
    else:
        words, fence = [f"PID {pid}, epoch {epoch}, sequence {first}: {what}"], "epoch"
    if outcome.generation >= 0:
        words.append(f"the {fence} here is {outcome.generation}")
    if outcome.expected >= 0:
        words.append(f"expected sequence {outcome.expected}")
    return "; ".join(words)


class ProduceApi:
    """Takes Produce requests apart and brings their batches to the engine.

    Parameters:
        engine: where batches go.
        batch_bytes_max: the largest batch (Kafka's message.max.bytes).
        passing: takes batches that are Kafka's own affair; None: on the embedded log.
    """

    def __init__(
        self, engine: Engine, batch_bytes_max: int, passing: Passing | None = None
    ) -> None:
        self._engine = engine
        self._passing = passing
        self._batch_bytes_max = batch_bytes_max
        self._identified = IdentifiedBatches(engine.pool)
        self._looking: set[asyncio.Task[None]] = set()

    def handle(self, slot: Slot, header: RequestHeader, frame: bytearray) -> None:
        """Answer a request.

        Raises:
            MalformedError: it is none. Then nothing of it has had an effect.
        """
        request = read_produce_request(frame, header.body, header.version)
        reply = _Reply(slot, header.version, request)
        if request.transactional_id is not None and self._passing is not None:
            if len(request.transactional_id.encode()) > _TRANSACTIONAL_ID_BYTES_MAX:
                raise MalformedError("Produce: a transactional id that is too long")
            for place, part in enumerate(request.parts):
                self._pass(reply, place, part, request.transactional_id)
            return
        if request.acks not in (-1, 0, 1) or request.transactional_id is not None:
            refusal = _refusal(request)
            for place, part in enumerate(request.parts):
                self._refused(reply, part, intact=True)
                reply.put(place, refusal)
            return
        absent = []
        for place, part in enumerate(request.parts):
            if not self._produce(reply, place, part):
                absent.append(place)
        if absent:
            looking = asyncio.create_task(self._look_for(reply, request, absent))
            self._looking.add(looking)
            looking.add_done_callback(self._looking.discard)

    def _produce(self, reply: _Reply, place: int, part: PartitionData) -> bool:
        """Bring a batch to the engine; False: its partition is not known here."""
        topic, index, data = part
        partition = self._engine.partition(topic, index)
        if partition is None:
            # At once, whatever is found out of the partition: what follows on the connection
            # must not overtake it.
            self._refused(reply, part, intact=True)
            if self._engine.awaits(topic, index):
                reply.put(place, _not_yet(topic, index))
                return True
            return False
        log_start = partition.log.start_offset
        try:
            header = self._check(data)
        except _RefusedError as error:
            result = PartitionResponse(error.code.value, -1, log_start, str(error))
            self._refused(reply, part, intact=error.code is not ErrorCode.corrupt_message)
            reply.put(place, result)
            return True
        pid = header.producer_id
        policy = None if pid in NO_PIDS else policy_of(pid)
        if policy in _IDENTIFIED:
            done = partial(reply.put_leased, place, header, log_start)
            sent = Sent(partition, header, data, done)
            self._identified.produce(reply.connection, sent)
            return True
        done = partial(reply.put_outcome, place, header, log_start)
        if self._passing is not None and 0 < pid < OWN_PIDS_FROM:
            self._pass(reply, place, part, None)
            return True
        if policy is not Policy.KAFKA and pid not in NO_PIDS:
            partition.refuse(pid, _foreign(pid), done)
            return True
        partition.produce(pid, header, data, batch_of(header), done)
        return True

    async def _look_for(self, reply: _Reply, request: ProduceRequest, absent: list[int]) -> None:
        """Answer for partitions that are not known here, when it is known whether they exist."""
        parts = {place: request.parts[place] for place in absent}
        missing = await self._engine.missing(
            [TopicPartition(part.topic, part.number) for part in parts.values()]
        )
        for place, (topic, index, _) in parts.items():
            result = _not_yet(topic, index)
            if (topic, index) in missing:
                code = ErrorCode.unknown_topic_or_partition.value
                result = PartitionResponse(code, message=f"{topic}-{index} does not exist")
            reply.put(place, result)

    def _pass(
        self, reply: _Reply, place: int, part: PartitionData, transactional_id: str | None
    ) -> None:
        """Kafka judges what goes under an id of its own."""
        where = TopicPartition(part.topic, part.number)
        if self._passing is not None:
            self._passing(where, part.data, transactional_id, partial(reply.put, place))

    def _refused(self, reply: _Reply, part: PartitionData, *, intact: bool) -> None:
        place = TopicPartition(part.topic, part.number)
        self._identified.refused(reply.connection, place, part.data, intact=intact)

    def _check(self, data: memoryview) -> BatchHeader:
        if len(data) > self._batch_bytes_max:
            reason = f"batch of {len(data)} bytes; at most {self._batch_bytes_max}"
            raise _RefusedError(ErrorCode.message_too_large, reason)
        try:
            header = read_header(data)
            _check_form(header, len(data))
            check_intact(header, data)
            check_from_client(header)
        except CorruptBatchError as error:
            if not data:
                raise _RefusedError(ErrorCode.invalid_record, "no batch at all") from None
            raise _RefusedError(ErrorCode.corrupt_message, str(error)) from None
        except InvalidBatchError as error:
            raise _RefusedError(ErrorCode.invalid_record, str(error)) from None
        return header


def _not_yet(topic: str, index: int) -> PartitionResponse:
    """Kafka's answer while a partition has no leader: clients keep what they have for it."""
    code = ErrorCode.not_leader_or_follower.value
    return PartitionResponse(code, message=f"{topic}-{index} cannot be read yet")


def _check_form(header: BatchHeader, size: int) -> None:
    """What versions from 3 on ask of a partition's records: one batch, of format 2."""
    if header.magic != MAGIC:
        raise InvalidBatchError(f"record format {header.magic}; only {MAGIC} is taken")
    if header.size < size:
        raise InvalidBatchError("exactly one batch is expected for each partition")


class _RefusedError(Exception):
    """A batch that does not come to the engine."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def _refusal(request: ProduceRequest) -> PartitionResponse:
    """What is wrong with the request as a whole."""
    if request.transactional_id is not None:
        code = ErrorCode.transactional_id_authorization_failed.value
        return PartitionResponse(code, message="transactions are not served")
    code = ErrorCode.invalid_required_acks.value
    return PartitionResponse(code, message=f"acks={request.acks} is none of -1, 0, 1")


def _foreign(pid: int) -> Outcome:
    """Refuse a PID that no client of this listener was given."""
    policy = policy_of(pid)
    if policy is not None:
        reason = f"PID {pid} is of policy {policy.name.lower()}, which this listener does not take"
        return Outcome(Status.MALFORMED, reason=reason)
    if 0 < pid < OWN_PIDS_FROM:
        reason = f"PID {pid} is one of Kafka's own, and was not leased here"
        return Outcome(Status.UNKNOWN, reason=reason)
    return Outcome(Status.MALFORMED, reason=no_policy(pid))
