"""Produce (key 0), by hand: this is the hot path. A batch's records are never looked at.

Source: ProduceRequest.json / ProduceResponse.json of Kafka 4.1, versions 3 to 12.
"""

import struct
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from pidlease.core.pid import NO_PIDS, Policy, policy_of
from pidlease.engine.engine import Engine
from pidlease.engine.outcome import Outcome, Status
from pidlease.engine.partition import batch_of
from pidlease.storage.record_batch import (
    MAGIC,
    BatchHeader,
    CorruptBatchError,
    InvalidBatchError,
    check_from_client,
    check_intact,
    read_header,
)
from proxy.kafka.connection import Slot
from proxy.kafka.errors import CODES
from proxy.kafka.wire import (
    INT32,
    Reader,
    RequestHeader,
    write_array,
    write_string,
)

_FLEXIBLE_FROM: Final = 9
_RECORD_ERRORS_FROM: Final = 8
_LOG_START_FROM: Final = 5
_NO_TIME: Final = -1
_PARTITION: Final = struct.Struct(">ihqq")
_PARTITION_WITH_START: Final = struct.Struct(">ihqqq")


class ProduceReply:
    """The answer to one request, filled partition by partition, sent when all are there."""

    __slots__ = ("_missing", "_rows", "_silent", "_slot", "_version", "failures")

    def __init__(self, slot: Slot, version: int, *, silent: bool) -> None:
        self._slot = slot
        self._version = version
        self._silent = silent
        self._rows: list[tuple[str, list[bytes]]] = []
        self._missing = 1
        self.failures = 0

    def topic(self, name: str) -> list[bytes]:
        """Begin the next topic; its partitions' parts go into the list."""
        rows: list[bytes] = []
        self._rows.append((name, rows))
        return rows

    def expect(self, rows: list[bytes]) -> int:
        """Keep a place in a topic's list for a part that comes later."""
        rows.append(b"")
        self._missing += 1
        return len(rows) - 1

    def put(
        self,
        rows: list[bytes],
        place: tuple[int, int, int],
        header: BatchHeader,
        outcome: Outcome,
    ) -> None:
        """Fill a place (in the rows, partition number, log start offset) with an outcome."""
        at, index, log_start = place
        code = CODES[outcome.status]
        if outcome.status is Status.DUPLICATE and outcome.offset < 0:
            code = ErrorCode.duplicate_sequence_number
        message = None if code is ErrorCode.none else _message(header, outcome)
        self.put_code(rows, at, index, code, (outcome.offset, log_start, message))

    def put_code(
        self,
        rows: list[bytes],
        place: int,
        index: int,
        code: ErrorCode,
        rest: tuple[int, int, str | None],
    ) -> None:
        """Fill a place with an error code, and (offset, log start offset, message)."""
        offset, log_start, message = rest
        if code is not ErrorCode.none:
            self.failures += 1
        rows[place] = self._part(index, code.value, offset, log_start, message)
        self.seal()

    def seal(self) -> None:
        """Take note that one part more is there; behind the last, send."""
        self._missing -= 1
        if not self._missing:
            self._slot.fill(*(() if self._silent else self._encode()))

    def _part(
        self, index: int, code: int, offset: int, log_start: int, message: str | None
    ) -> bytes:
        version = self._version
        if version < _LOG_START_FROM:
            return _PARTITION.pack(index, code, offset, _NO_TIME)
        part = _PARTITION_WITH_START.pack(index, code, offset, _NO_TIME, log_start)
        if version < _RECORD_ERRORS_FROM:
            return part
        flexible = version >= _FLEXIBLE_FROM
        part += write_array(0, flexible=flexible) + write_string(message, flexible=flexible)
        return part + b"\0" if flexible else part

    def _encode(self) -> tuple[bytes, ...]:
        flexible = self._version >= _FLEXIBLE_FROM
        tags = b"\0" if flexible else b""
        parts = [INT32.pack(self._slot.correlation_id), tags]
        parts.append(write_array(len(self._rows), flexible=flexible))
        for name, rows in self._rows:
            parts.append(write_string(name, flexible=flexible))
            parts.append(write_array(len(rows), flexible=flexible))
            parts.extend(rows)
            parts.append(tags)
        parts.append(b"\0\0\0\0")  # throttle time
        parts.append(tags)
        return (b"".join(parts),)


def _message(header: BatchHeader, outcome: Outcome) -> str:
    pid, epoch, first = header.producer_id, header.producer_epoch, header.base_sequence
    what = outcome.reason or outcome.status.value
    words = [f"PID {pid}, epoch {epoch}, sequence {first}: {what}"]
    if outcome.generation >= 0:
        words.append(f"the epoch here is {outcome.generation}")
    if outcome.expected >= 0:
        words.append(f"expected sequence {outcome.expected}")
    return "; ".join(words)


class ProduceApi:
    """Takes Produce requests apart and brings their batches to the engine.

    Parameters:
        engine: where batches go.
        batch_bytes_max: the largest batch (Kafka's message.max.bytes).
    """

    def __init__(self, engine: Engine, batch_bytes_max: int) -> None:
        self._engine = engine
        self._batch_bytes_max = batch_bytes_max

    def handle(self, slot: Slot, header: RequestHeader, frame: bytearray) -> None:
        """Answer a request.

        Raises:
            MalformedRequestError: it is none.
        """
        flexible = header.version >= _FLEXIBLE_FROM
        reader = Reader(frame, header.body, flexible=flexible)
        reader.tags()
        transactional = reader.string() is not None
        acks = reader.int16()
        reader.int32()  # timeout: an append is as fast as the disk
        refusal = _refusal(acks, transactional=transactional)
        batches = self._read_topics(reader)
        # Nothing goes to the engine before the request as a whole has been read: one that is
        # malformed further on has no effect.
        reply = ProduceReply(slot, header.version, silent=acks == 0)
        rows: list[bytes] = []
        for name, index, data in batches:
            if index is None or data is None:
                rows = reply.topic(name)
                continue
            self._produce(reply, rows, (name, index), data, refusal)
        reply.seal()
        if reply.failures and acks == 0:
            # The only way to tell a client that waits for no answer (Kafka does so, too).
            slot.connection.close()

    def _read_topics(self, reader: Reader) -> list[tuple[str, int | None, memoryview | None]]:
        found: list[tuple[str, int | None, memoryview | None]] = []
        empty = memoryview(b"")
        for _ in range(reader.array()):
            name = reader.string() or ""
            found.append((name, None, None))
            for _ in range(reader.array()):
                index = reader.int32()
                found.append((name, index, reader.data() or empty))
                reader.tags()
            reader.tags()
        reader.tags()
        reader.end()
        return found

    def _produce(
        self,
        reply: ProduceReply,
        rows: list[bytes],
        name: tuple[str, int],
        data: memoryview,
        refusal: tuple[ErrorCode, str] | None,
    ) -> None:
        topic, index = name
        place = reply.expect(rows)
        partition = self._engine.partition(topic, index)
        if refusal is None and partition is None:
            refusal = (ErrorCode.unknown_topic_or_partition, f"{topic}-{index} does not exist")
        if refusal is not None or partition is None:
            code, message = refusal or (ErrorCode.unknown_server_error, "")
            reply.put_code(rows, place, index, code, (-1, -1, message))
            return
        log_start = partition.log.start_offset
        try:
            header = self._check(data)
        except _RefusedError as error:
            reply.put_code(rows, place, index, error.code, (-1, log_start, str(error)))
            return
        done = partial(reply.put, rows, (place, index, log_start), header)
        pid = header.producer_id
        if pid not in NO_PIDS and policy_of(pid) is not Policy.KAFKA:
            done(_foreign(pid))
            return
        partition.produce(pid, header, data, batch_of(header), done)

    def _check(self, data: memoryview) -> BatchHeader:
        if len(data) > self._batch_bytes_max:
            raise _RefusedError(
                ErrorCode.message_too_large,
                f"batch of {len(data)} bytes; at most {self._batch_bytes_max}",
            )
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


def _refusal(acks: int, *, transactional: bool) -> tuple[ErrorCode, str] | None:
    """What is wrong with the request as a whole."""
    if acks not in (-1, 0, 1):
        return ErrorCode.invalid_required_acks, f"acks={acks} is none of -1, 0, 1"
    if transactional:
        reason = "transactions are not served"
        return ErrorCode.transactional_id_authorization_failed, reason
    return None


def _foreign(pid: int) -> Outcome:
    """A PID that no client of this door was given."""
    policy = policy_of(pid)
    if policy is not None:
        reason = f"PID {pid} is of policy {policy.name.lower()}; this door takes policy kafka"
        return Outcome(Status.MALFORMED, reason=reason)
    if 0 < pid < 1 << 48:
        reason = f"PID {pid} is one of Kafka's own, and was not leased here"
        return Outcome(Status.UNKNOWN, reason=reason)
    reason = f"PID {pid} belongs to no policy; lease one by InitProducerId"
    return Outcome(Status.MALFORMED, reason=reason)
