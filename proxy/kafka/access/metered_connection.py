"""Counts the requests of a client's connection for quotas (KIP-13, KIP-124, KIP-219).

A request of a client that has used more than its quota is handled, and its response says for how
long the client is throttled. For that time the connection reads no request. So far this is as in
Kafka, where each new connection has a request free. Here, once a client owes more than a window,
requests on its other connections wait as well, before they are handled.
"""

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

import structlog
from kio.schema.errors import ErrorCode
from typing_extensions import override

from pidlease.kafka.api import API_FETCH, API_PRODUCE
from pidlease.kafka.codec.messages import Response
from pidlease.kafka.codec.primitives import (
    INT32,
    MalformedError,
    RequestHeader,
    read_request_header,
)
from pidlease.observability.repeated_lines import LINES
from proxy.kafka.access.throttle_time import with_throttle_time
from proxy.kafka.client_connection import Handler, KafkaConnection, Slot
from proxy.security.quota_rules import FETCHED_BYTES, PRODUCED_BYTES, REQUESTS
from proxy.security.quotas import Buckets, Quotas
from proxy.security.security import user_of

if TYPE_CHECKING:
    from proxy.security.authorizer import Caller
    from proxy.security.token_bucket import TokenBucket

LISTENER: Final = "kafka"
#: Connections that may wait for a bucket; one more is closed.
WAITING_MAX: Final = 1000
#: Where a Fetch request has its smallest and its largest number of bytes, after the header.
_MIN_BYTES_AT: Final = 8
_MAX_BYTES_AT: Final = 12

_log = structlog.get_logger(__name__)


class MeteredSlot(Slot):
    """The slot of a request that counts for quotas.

    Parameters:
        header: of the request.
        throttled: for how many seconds the client is throttled, as far as it is known now.
    """

    __slots__ = ("_client_id", "_header", "_throttled")

    def __init__(
        self, connection: "MeteredConnection", size: int, header: RequestHeader, throttled: float
    ) -> None:
        super().__init__(connection, header.correlation_id, size)
        self._header = header
        self._throttled = throttled

    def bound_fetch(self, frame: bytearray) -> bytes | None:
        """Bound what a Fetch request reads; return the response if it may read nothing now.

        As Kafka: a client gets at most what its window has at once.
        """
        bucket = self._fetched()
        if bucket is None:
            return None
        if bucket.debt_seconds(monotonic()) > 0:
            return self._nothing()
        body = self._header.body
        if body + _MAX_BYTES_AT + INT32.size > len(frame):
            return None  # the handler refuses it
        (most,) = INT32.unpack_from(frame, body + _MAX_BYTES_AT)
        (least,) = INT32.unpack_from(frame, body + _MIN_BYTES_AT)
        most = min(most, max(int(bucket.size), 1))
        INT32.pack_into(frame, body + _MAX_BYTES_AT, most)
        INT32.pack_into(frame, body + _MIN_BYTES_AT, min(least, most))
        return None

    @override
    def fill_framed(self, parts: tuple[bytes, ...], size: int) -> None:
        if not self.ready and parts:
            if self._header.api_key == API_FETCH:
                parts, size = self._charged(parts, size)
            if self._throttled:
                header = self._header
                parts = with_throttle_time(parts, header.api_key, header.version, self._throttled)
        super().fill_framed(parts, size)

    def _charged(self, parts: tuple[bytes, ...], size: int) -> tuple[tuple[bytes, ...], int]:
        """Count the bytes of a Fetch response; return an empty one if the client owes some."""
        bucket = self._fetched()
        if bucket is None:
            return parts, size
        now = monotonic()
        seconds = bucket.debt_seconds(now)
        if seconds > 0:
            empty = self._nothing()
            parts, size = (INT32.pack(len(empty)), empty), len(empty)
        else:
            seconds = bucket.take(size, now)
        if seconds > 0:
            self._metered.throttle(FETCHED_BYTES, seconds)
            self._throttled = max(self._throttled, seconds)
        return parts, size

    def _fetched(self) -> "TokenBucket | None":
        # Not those of the request's arrival: the quotas may have changed while it waited.
        buckets = self._metered.buckets(self._header.client_id)
        return None if buckets is None else buckets.fetched

    def _nothing(self) -> bytes:
        return Response(API_FETCH, self._header.version).encode(
            self.correlation_id, error_code=ErrorCode.none, session_id=0, responses=()
        )

    @property
    def _metered(self) -> "MeteredConnection":
        connection = self.connection
        if not isinstance(connection, MeteredConnection):
            raise TypeError("a connection without quotas")
        return connection


class MeteredConnection(KafkaConnection):
    """A connection that counts its requests for quotas, once its client is known.

    Parameters:
        handler: the listener.
        quotas: those in force.
        listener: the name of the listener that accepted it; empty: there is only one.

    Attributes:
        caller: the client, once it is known.
    """

    def __init__(self, handler: Handler, quotas: Quotas, listener: str = "") -> None:
        super().__init__(handler, listener)
        self._quotas: Final = quotas
        self.caller: Caller | None = None
        self._unmute: asyncio.TimerHandle | None = None
        self._muted_until = 0.0
        #: The bucket that the next request waits for.
        self._awaited: TokenBucket | None = None
        #: Whether the bytes of the request that is arriving are counted.
        self._counted = False

    def buckets(self, client_id: str) -> Buckets | None:
        """Return what the client's use is counted in; None: it has no quota."""
        caller = self.caller
        if caller is None or not self._quotas.active:
            return None
        return self._quotas.buckets(user_of(caller.principal), client_id)

    # ------------------------------------------------------------------ requests

    @override
    def _take(self, frame: bytearray, slot: Slot | None = None) -> None:
        if not self._quotas.active or self.caller is None:
            super()._take(frame)
            return
        counted, self._counted = self._counted, False
        try:
            header = read_request_header(frame)
        except MalformedError:
            super()._take(frame)  # it refuses the request
            return
        buckets = self.buckets(header.client_id)
        if buckets is None:
            super()._take(frame)
            return
        now = monotonic()
        overdrawn = _overdrawn(buckets, header.api_key, now)
        if overdrawn is not None and self._put_back(frame):
            self._wait_for(overdrawn)
            return
        produced = 0 if counted else len(frame)
        seconds = self._charge(buckets, header.api_key, produced, now)
        super()._take(frame, MeteredSlot(self, len(frame), header, seconds))

    def _charge(self, buckets: Buckets, api_key: int, size: int, now: float) -> float:
        """Count a request; return for how long its client is throttled."""
        seconds = 0.0
        if buckets.requests is not None:
            # Bounded as Kafka's, so that heartbeats are late by little.
            debt = buckets.requests.take(1, now)
            if debt > 0:
                seconds = min(debt, self._quotas.throttle_seconds_max)
                self.throttle(REQUESTS, seconds)
        if buckets.produced is not None and api_key == API_PRODUCE:
            debt = buckets.produced.take(size, now)
            if debt > 0:
                seconds = max(seconds, debt)
                self.throttle(PRODUCED_BYTES, debt)
        return seconds

    def _put_back(self, frame: bytearray) -> bool:
        """Leave a request in the buffer; False: it came in a buffer of its own."""
        size = INT32.size + len(frame)
        if self._start < size:
            return False
        self._start -= size
        self.budget.release(len(frame))
        return True

    @override
    def _begin_large(self, size: int, body: int) -> None:
        if not self._quotas.active or self.caller is None:
            super()._begin_large(size, body)
            return
        there = self._buffer[body : self._end]
        try:
            header = read_request_header(there)
        except MalformedError:
            if len(there) < min(size, _header_bytes(there)):
                return  # the rest of the header comes; then this is decided
            super()._begin_large(size, body)
            return
        buckets = self.buckets(header.client_id)
        now = monotonic()
        overdrawn = None if buckets is None else _overdrawn(buckets, header.api_key, now)
        if overdrawn is not None:
            self._wait_for(overdrawn)
            return
        super()._begin_large(size, body)
        if self._frame is not None and buckets is not None and header.api_key == API_PRODUCE:
            # Now, so that a client cannot begin many at once.
            if buckets.produced is not None:
                buckets.produced.take(size, now)
            self._counted = True

    # ------------------------------------------------------------------ throttling

    def throttle(self, quota: str, seconds: float) -> None:
        """Read no request for some time."""
        self._note_throttle(quota, seconds)
        if self._transport is None:
            return
        until = monotonic() + seconds
        if until > self._muted_until:
            self._muted_until = until
            if self._unmute is not None:
                self._unmute.cancel()
            self._unmute = asyncio.get_running_loop().call_later(seconds, self._end_mute)
        self._pause()

    def _note_throttle(self, quota: str, seconds: float) -> None:
        self._quotas.count(quota, LISTENER, seconds)
        principal = self.caller.principal if self.caller is not None else ""
        LINES.write(_log, "info", "a client is throttled", (principal, quota), principal=principal,
                    quota=quota, seconds=round(seconds, 3), peer=self.peer)  # fmt: skip

    def _end_mute(self) -> None:
        self._unmute = None
        self._muted_until = 0.0
        self._go_on()

    def _wait_for(self, bucket: "TokenBucket") -> None:
        """Handle the next request when a bucket is not overdrawn any more."""
        self._pause()
        if len(bucket.waiting) >= WAITING_MAX:
            LINES.write(_log, "warning", "connection closed: too many wait for a quota",
                        self.host, peer=self.peer)  # fmt: skip
            self.abort()
            return
        self._awaited = bucket
        bucket.wait(self)

    def quota_freed(self) -> None:
        """Handle requests again: the bucket is not overdrawn any more."""
        self._awaited = None
        self._go_on()

    def quotas_changed(self) -> None:
        """Handle requests again: their client may have another quota now."""
        if self._unmute is not None:
            self._unmute.cancel()
            self._end_mute()

    def _go_on(self) -> None:
        if self._transport is not None:
            self._check_load()

    @override
    def _check_load(self) -> None:
        if self._unmute is None and self._awaited is None:
            super()._check_load()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._unmute is not None:
            self._unmute.cancel()
            self._unmute = None
        if self._awaited is not None:
            self._awaited.leave(self)
            self._awaited = None
        super().connection_lost(exc)


def _overdrawn(buckets: Buckets, api_key: int, now: float) -> "TokenBucket | None":
    """Return the bucket that a request has to wait for."""
    if buckets.requests is not None and buckets.requests.is_overdrawn(now):
        return buckets.requests
    if (
        api_key == API_PRODUCE
        and buckets.produced is not None
        and buckets.produced.is_overdrawn(now)
    ):
        return buckets.produced
    return None


def _header_bytes(there: bytearray) -> int:
    """Return how many bytes the header of a request has, as far as its beginning says."""
    fixed = 10
    if len(there) < fixed:
        return fixed
    return fixed + max(int.from_bytes(there[8:10], "big", signed=True), 0)
