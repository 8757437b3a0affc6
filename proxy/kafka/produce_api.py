"""Produce (0): checks the batches of requests, and submits them to the engine.

The records of a batch are not read, except the headers of the first record under the policies
strict and monotonic (`identified_batches.py`).
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

from kio.schema.errors import ErrorCode
from typing_extensions import override

from pidlease.core.pid import N_MASK, NO_PIDS, POLICY_SHIFT, Policy, make_pid, policy_of
from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.batch_identity import batch_of, no_policy
from pidlease.engine.engine import Engine
from pidlease.engine.partition import Partition
from pidlease.engine.pending_batches import Pending
from pidlease.kafka.api import API_PRODUCE
from pidlease.kafka.codec.primitives import INT32, MalformedError, RequestHeader
from pidlease.kafka.codec.produce import (
    PartitionData,
    PartitionResponse,
    ProduceRequest,
    ProduceTemplate,
    read_produce_request,
    write_produce_response,
)
from pidlease.kafka.records.record_batch import (
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    CorruptBatchError,
    InvalidBatchError,
    check_from_client,
    check_intact,
    no_batch,
    read_from_client,
    read_header,
)
from pidlease.storage.snapshots import TopicPartition
from proxy.kafka.client_connection import KafkaConnection, Slot
from proxy.kafka.errors import CODES
from proxy.kafka.identified_batches import IdentifiedBatches
from proxy.kafka.listener_counts import ListenerCounts
from proxy.security.authorizer import NO_RIGHT_TO_NAME

_TRANSACTIONAL_ID_BYTES_MAX: Final = 2**15 - 1
#: Producer ids below this are Kafka's own: a leased PID has its policy above bit 48 (`core.pid`).
OWN_PIDS_FROM: Final = 1 << 48

#: Forwards a batch to Kafka unchanged, with a transactional id, and calls back with Kafka's
#: response.
Passing = Callable[[TopicPartition, memoryview, str, Callable[[PartitionResponse], None]], None]


class WriteGuard(Protocol):
    """Decides whether clients may write; there is none without ACLs."""

    @property
    def version(self) -> object:
        """Another object after each change of the decisions."""

    def may_write(self, connection: KafkaConnection, topic: str) -> bool:
        """Whether a client may write to a topic."""

    def may_use(self, connection: KafkaConnection, transactional_id: str) -> bool:
        """Whether a client may write with a transactional id, or under a producer's name."""


_PENDING = PartitionResponse(ErrorCode.unknown_server_error.value)


class _Reply:
    """Collects the results of one request's partitions, and sends the response."""

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
        """The connection of the request."""
        return self._slot.connection

    @property
    def ended(self) -> bool:
        """Whether the client waits no more for the response; with acks=0 it never does."""
        return self._request.acks != 0 and self._slot.has_ended(self._request.timeout_ms)

    def put(self, index: int, result: PartitionResponse) -> None:
        """Set the result of a batch, by its index in the request; after the last one, respond."""
        self._results[index] = result
        if result.code:
            self._slot.count_error(result.code)
        self._missing -= 1
        if not self._missing:
            self._send()

    def fail(self, error: Exception) -> None:
        """Close the connection: a bug keeps this request from its response."""
        self._slot.connection.fail(self._slot, error)

    def _send(self) -> None:
        slot = self._slot
        if self._request.acks != 0:
            try:
                response = write_produce_response(
                    self._version, slot.correlation_id, self._request, self._results
                )
            except Exception as error:  # noqa: BLE001 - a bug must not keep the request's memory
                self.fail(error)
            else:
                slot.fill(response)
            return
        slot.fill()
        if any(result.code for result in self._results):
            # The only signal for a client that waits for no response, as in Kafka.
            slot.connection.close()


class _RequestBatch(Pending):
    """A batch of a request.

    Parameters:
        reply: the response to the request.
        index: the batch's index in the request.
        log_start: the first offset of the batch's partition.
    """

    __slots__ = ("_index", "_log_start", "_reply", "_sent")

    patient = True

    def __init__(
        self,
        header: BatchHeader,
        data: memoryview,
        reply: _Reply,
        index: int,
        log_start: int,
    ) -> None:
        super().__init__(header.producer_id, header, data, batch_of(header))
        #: The header from the client: the batch may get another one, and count as without a PID.
        self._sent = header
        self._reply = reply
        self._index = index
        self._log_start = log_start

    @property
    @override
    def ended(self) -> bool:
        return self.superseded or self._reply.ended

    @override
    def complete(self, outcome: Outcome) -> None:
        result = _response_of(self._sent, outcome, self._log_start, self.append_time)
        self._reply.put(self._index, result)


class _RepeatedBatch(Pending):
    """The batch of a request that repeats its connection's last Produce except for the batch.

    Parameters:
        slot: the slot of the response.
        repeated: the connection's last Produce.
    """

    __slots__ = ("_log_start", "_repeated", "_sent", "_slot")

    patient = True

    def __init__(
        self, header: BatchHeader, data: memoryview, slot: Slot, repeated: "_RepeatedProduce"
    ) -> None:
        super().__init__(header.producer_id, header, data, batch_of(header))
        self._sent = header  # as for `_RequestBatch`
        self._slot = slot
        self._repeated = repeated
        self._log_start = repeated.partition.log.start_offset

    @property
    @override
    def ended(self) -> bool:
        return self.superseded or self._slot.has_ended(self._repeated.request.timeout_ms)

    @override
    def appended(self, offset: int) -> None:
        slot, template = self._slot, self._repeated.template
        response = template.response(slot.correlation_id, offset, self._log_start, self.append_time)
        slot.fill_framed((response,), template.response_bytes)

    @override
    def complete(self, outcome: Outcome) -> None:
        reply = _Reply(self._slot, self._repeated.version, self._repeated.request)
        reply.put(0, _response_of(self._sent, outcome, self._log_start, self.append_time))


class _RepeatedProduce:
    """Handles requests that repeat the connection's last Produce except for the batch.

    Parameters:
        api: submits the batches.
        counts: the listener's counts.
        partition: the partition of the last request.
        template: the template of the last request's bytes.
        version: the last request's API version.
        request: the last request, decoded.

    Attributes:
        guard: has just allowed the last request, which counts while the ACLs stay as they are.
    """

    __slots__ = (
        "_api", "_counts", "_guard_version", "guard", "partition", "request", "template", "version",
    )  # fmt: skip

    def __init__(
        self,
        api: "ProduceApi",
        counts: ListenerCounts,
        partition: Partition,
        template: ProduceTemplate,
        version: int,
        request: ProduceRequest,
    ) -> None:
        self._api = api
        self._counts = counts
        self.partition = partition
        self.template = template
        self.version = version
        part = request.parts[0]
        self.request = request._replace(parts=[part._replace(data=memoryview(b""))])
        self.guard: Final = api.guard
        self._guard_version: Final = None if self.guard is None else self.guard.version

    def handle(self, slot: Slot, frame: bytearray) -> bool:
        """Handle a request if it is like the last one; False: nothing was done."""
        guard = self.guard
        if guard is not None and guard.version is not self._guard_version:
            return False  # `ProduceApi.handle` decides by the new ACLs
        data = self.template.batch(frame)
        if data is None or self.partition.gone or len(data) > self._api.batch_bytes_max:
            return False
        header = read_from_client(data)
        if header is None or not takes(header):
            return False  # `ProduceApi.handle` responds with the reason
        # Its PID may be another one than that of the last request.
        if guard is not None and not self._api.may_send(guard, slot.connection, header):
            return False
        slot.correlation_id = INT32.unpack_from(frame, 4)[0]
        slot.measure(self._counts, API_PRODUCE)
        self._api.submit(slot.connection, self.partition, _RepeatedBatch(header, data, slot, self))
        return True


def _response_of(
    header: BatchHeader, outcome: Outcome, log_start: int, append_time: int
) -> PartitionResponse:
    """Return the response to a batch; under strict and monotonic it reports a duplicate."""
    status, offset = outcome.status, outcome.offset
    if status is Status.APPENDED:
        return PartitionResponse(0, offset, log_start, append_time=append_time)
    if status is Status.DUPLICATE and offset >= 0:
        leased = policy_of(header.producer_id) in _IDENTIFIED
        return PartitionResponse(0, offset, log_start, status.value if leased else "")
    code = CODES[status] if status is not Status.DUPLICATE else _FORGOTTEN
    number = outcome.code or code.value
    message = _message(header, outcome)
    return PartitionResponse(number, -1, log_start, message, record_errors=outcome.record_errors)


#: The policies with the producer's identity in the first record of a batch.
_IDENTIFIED: Final = (Policy.STRICT, Policy.MONOTONIC)
#: The policies of the PIDs that this listener accepts.
_TAKEN: Final = (*_IDENTIFIED, Policy.KAFKA)
#: Stands for the producer ids of transactions, in what a topic allows.
_IN_TRANSACTION: Final = make_pid(Policy.KAFKA, 1)
_NO_RIGHT: Final = "the client has no right to write there"
_NAME_REFUSED: Final = PartitionResponse(
    ErrorCode.transactional_id_authorization_failed.value, message=NO_RIGHT_TO_NAME
)
#: The error of a duplicate with an unknown offset; clients treat it as a success.
_FORGOTTEN = ErrorCode.duplicate_sequence_number


def _message(header: BatchHeader, outcome: Outcome) -> str:
    pid, epoch, first = header.producer_id, header.producer_epoch, header.base_sequence
    what = outcome.reason or outcome.status.value
    if policy_of(pid) in _IDENTIFIED:  # its sequence numbers do not fit a batch's header
        words, fence = [f"PID {pid}: {what}"], "generation"
    else:
        words, fence = [f"PID {pid}, epoch {epoch}, sequence {first}: {what}"], "epoch"
    if outcome.generation >= 0:
        words.append(f"the {fence} here is {outcome.generation}")
    if outcome.expected >= 0:
        words.append(f"expected sequence {outcome.expected}")
    return "; ".join(words)


def takes(header: BatchHeader) -> bool:
    """Whether the engine gets a batch: its PID is one that this listener leases, or it has none."""
    pid = header.producer_id
    return (pid >> POLICY_SHIFT in _TAKEN and pid & N_MASK != 0) or pid in NO_PIDS


class ProduceApi:
    """Decodes Produce requests, and submits their batches to the engine.

    Parameters:
        engine: validates and appends the batches.
        batch_bytes_max: the size of the largest batch, in bytes (Kafka's message.max.bytes).
        passing: forwards batches of transactions to Kafka; None: the log is embedded.

    Attributes:
        guard: decides by the ACLs; None: clients may write everything.
    """

    def __init__(
        self, engine: Engine, batch_bytes_max: int, passing: Passing | None = None
    ) -> None:
        self._engine = engine
        self._passing = passing
        self.batch_bytes_max = batch_bytes_max
        self._identified = IdentifiedBatches(engine.pool)
        self.guard: WriteGuard | None = None
        self._looking: set[asyncio.Task[None]] = set()

    def restrict(self, guard: WriteGuard) -> None:
        """Accept only what a guard allows from now on."""
        self.guard = guard

    def handle(self, slot: Slot, header: RequestHeader, frame: bytearray) -> None:
        """Respond to a request, now or later.

        Raises:
            MalformedError: the request is malformed; none of its batches was submitted.
        """
        request = read_produce_request(frame, header.body, header.version)
        reply = _Reply(slot, header.version, request)
        parts: Iterable[tuple[int, PartitionData]] = enumerate(request.parts)
        if self.guard is not None:
            parts = self._allowed(self.guard, reply, request)
        if request.transactional_id is not None and self._passing is not None:
            if len(request.transactional_id.encode()) > _TRANSACTIONAL_ID_BYTES_MAX:
                raise MalformedError("Produce: a transactional id that is too long")
            for index, part in parts:
                self._produce_transactional(reply, index, part, request.transactional_id)
            return
        if request.acks not in (-1, 0, 1) or request.transactional_id is not None:
            refusal = _refusal(request)
            for index, part in parts:
                self._refused(reply, part, intact=True)
                reply.put(index, refusal)
            return
        self._repeat(slot, header.version, frame, request)
        absent = []
        for index, part in parts:
            if not self._produce(reply, index, part):
                absent.append(index)
        if absent:
            looking = asyncio.create_task(self._look_for(reply, request, absent))
            self._looking.add(looking)
            looking.add_done_callback(self._looking.discard)

    def _allowed(
        self, guard: WriteGuard, reply: _Reply, request: ProduceRequest
    ) -> list[tuple[int, PartitionData]]:
        """Set the results of the batches that the client may not write; return the others."""
        connection, transactional_id = reply.connection, request.transactional_id
        allowed = dict.fromkeys(topic for topic, _ in request.topics)
        code = ErrorCode.topic_authorization_failed
        if transactional_id is not None and not guard.may_use(connection, transactional_id):
            allowed, code = {}, ErrorCode.transactional_id_authorization_failed
        allowed = {topic: None for topic in allowed if guard.may_write(connection, topic)}
        kept = []
        for index, part in enumerate(request.parts):
            if part.topic in allowed:
                kept.append((index, part))
            else:
                self._refused(reply, part, intact=True)
                reply.put(index, PartitionResponse(code.value, message=_NO_RIGHT))
        return kept

    def _repeat(self, slot: Slot, version: int, frame: bytearray, request: ProduceRequest) -> None:
        """Prepare the connection for requests that are like this one.

        A client that writes to several partitions by turns repeats none: then each request would
        make a template for nothing. So it takes two requests in a row to replace the first one.
        """
        connection = slot.connection
        partitions = [part[:2] for part in request.parts[:2]]
        before, connection.last_produced = connection.last_produced, partitions
        connection.repeated = None
        if before not in (None, partitions):
            return
        template = ProduceTemplate.of(frame, version, request)
        if template is None or slot.counts is None:
            return
        partition = self._engine.partition(*partitions[0])
        if partition is None:
            return
        guard = self.guard
        if guard is None or guard.may_write(connection, partitions[0][0]):
            connection.repeated = _RepeatedProduce(
                self, slot.counts, partition, template, version, request
            )

    def may_send(self, guard: WriteGuard, connection: KafkaConnection, header: BatchHeader) -> bool:
        """Whether a client may send a batch: under a PID of a name only if it may lease the name.

        Every consumer sees PIDs and generations in the log, so they prove nothing.
        """
        name = self._engine.naming.names.get(header.producer_id)
        return name is None or guard.may_use(connection, name)

    def submit(self, connection: KafkaConnection, partition: Partition, pending: Pending) -> None:
        """Submit a batch that `takes` has accepted to the engine."""
        if pending.pid >> POLICY_SHIFT in _IDENTIFIED:
            self._identified.produce(connection, partition, pending)
        else:
            partition.produce(pending)

    def _produce(self, reply: _Reply, index: int, part: PartitionData) -> bool:
        """Submit a batch to the engine; False: this server does not know its partition."""
        topic, number, data = part
        partition = self._engine.partition(topic, number)
        if partition is None:
            # At once, before the partition is looked up: later batches on the connection must not
            # overtake this one.
            self._refused(reply, part, intact=True)
            if self._engine.awaits(topic, number):
                reply.put(index, _not_yet(topic, number))
                return True
            return False
        log_start = partition.log.start_offset
        try:
            header = self._check(data)
        except _RefusedError as error:
            result = PartitionResponse(error.code.value, -1, log_start, str(error))
            self._refused(reply, part, intact=error.code is not ErrorCode.corrupt_message)
            reply.put(index, result)
            return True
        pid = header.producer_id
        if self.guard is not None and not self.may_send(self.guard, reply.connection, header):
            self._refused(reply, part, intact=True)
            reply.put(index, _NAME_REFUSED)
            return True
        pending = _RequestBatch(header, data, reply, index, log_start)
        if takes(header):
            self.submit(reply.connection, partition, pending)
        else:
            partition.refuse(pending, _foreign(pid))
        return True

    def _produce_transactional(
        self, reply: _Reply, index: int, part: PartitionData, transactional_id: str
    ) -> None:
        """Forward a batch of a transaction to Kafka, which validates it."""
        try:
            self._check_passed(part)
        except _RefusedError as error:
            reply.put(index, PartitionResponse(error.code.value, message=str(error)))
            return
        partition = TopicPartition(part.topic, part.number)
        if self._passing is not None:
            self._passing(partition, part.data, transactional_id, partial(reply.put, index))

    def _check_passed(self, part: PartitionData) -> None:
        """Check a batch of a request with a transactional id, as far as Kafka does not.

        Raises:
            _RefusedError: it is not to be passed on.
        """
        partition = self._engine.partition(part.topic, part.number)
        if partition is not None and partition.gate is not None:
            reason = f"{part.topic} is a stream: a transaction has no place before or after its end"
            raise _RefusedError(ErrorCode.policy_violation, reason)
        if partition is not None and (reason := partition.policy.refusal(_IN_TRANSACTION)):
            raise _RefusedError(ErrorCode.policy_violation, reason)
        if len(part.data) < HEADER_BYTES:
            return  # Kafka refuses it
        header = read_header(part.data)
        try:
            _check_form(header, len(part.data))
        except InvalidBatchError as error:
            raise _RefusedError(ErrorCode.invalid_record, str(error)) from None
        if not header.is_transactional:
            # Of transactional batches, Kafka checks that the producer id is the transactional id's.
            # Of others it takes any new id, also one that becomes a writer's.
            reason = "the request has a transactional id, and the batch is part of no transaction"
            raise _RefusedError(ErrorCode.invalid_record, reason)

    async def _look_for(self, reply: _Reply, request: ProduceRequest, absent: list[int]) -> None:
        """Set the results of unknown partitions, after a check of which of them exist."""
        parts = {index: request.parts[index] for index in absent}
        try:
            missing = await self._engine.missing(
                [TopicPartition(part.topic, part.number) for part in parts.values()]
            )
        except Exception as error:  # noqa: BLE001 - nothing waits for this task
            reply.fail(error)
            return
        for index, (topic, number, _) in parts.items():
            result = _not_yet(topic, number)
            if (topic, number) in missing:
                code = ErrorCode.unknown_topic_or_partition.value
                result = PartitionResponse(code, message=f"{topic}-{number} does not exist")
            reply.put(index, result)

    def _refused(self, reply: _Reply, part: PartitionData, *, intact: bool) -> None:
        partition = TopicPartition(part.topic, part.number)
        self._identified.refused(reply.connection, partition, part.data, intact=intact)

    def _check(self, data: memoryview) -> BatchHeader:
        if len(data) > self.batch_bytes_max:
            reason = f"batch of {len(data)} bytes; at most {self.batch_bytes_max}"
            raise _RefusedError(ErrorCode.message_too_large, reason)
        try:
            header = read_header(data)
            _check_form(header, len(data))
            check_intact(header, data)
            check_from_client(header)
        except CorruptBatchError as error:
            if reason := no_batch(data):
                raise _RefusedError(ErrorCode.invalid_record, reason) from None
            raise _RefusedError(ErrorCode.corrupt_message, str(error)) from None
        except InvalidBatchError as error:
            raise _RefusedError(ErrorCode.invalid_record, str(error)) from None
        return header


def _not_yet(topic: str, index: int) -> PartitionResponse:
    """Return Kafka's retriable error for a partition without a leader: clients keep its batches."""
    code = ErrorCode.not_leader_or_follower.value
    return PartitionResponse(code, message=f"{topic}-{index} cannot be read yet")


def _check_form(header: BatchHeader, size: int) -> None:
    """Check that a partition's records are one batch of format 2, as from version 3 on.

    Raises:
        InvalidBatchError: they are not.
    """
    if header.magic != MAGIC:
        raise InvalidBatchError(f"record format {header.magic}; only {MAGIC} is taken")
    if header.size < size:
        raise InvalidBatchError("exactly one batch is expected for each partition")


class _RefusedError(Exception):
    """A batch is invalid, and is not submitted to the engine."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def _refusal(request: ProduceRequest) -> PartitionResponse:
    """Return the error of all batches of a request that is invalid as a whole."""
    if request.transactional_id is not None:
        code = ErrorCode.transactional_id_authorization_failed.value
        return PartitionResponse(code, message="transactions are not served")
    code = ErrorCode.invalid_required_acks.value
    return PartitionResponse(code, message=f"acks={request.acks} is none of -1, 0, 1")


def _foreign(pid: int) -> Outcome:
    """Return the outcome of a batch under a PID that this listener does not lease."""
    policy = policy_of(pid)
    if policy is not None:
        reason = f"PID {pid} is of policy {policy.name.lower()}, which this listener does not take"
        return Outcome(Status.MALFORMED, reason=reason)
    if 0 < pid < OWN_PIDS_FROM:
        reason = f"PID {pid} is one of Kafka's own, and was not leased here"
        return Outcome(Status.UNKNOWN, reason=reason)
    return Outcome(Status.MALFORMED, reason=no_policy(pid))
