"""An append that can be submitted at once, of either kind."""

from collections.abc import Callable
from typing import NamedTuple

from starlette.responses import Response

from pidlease.engine.append_outcome import Outcome
from pidlease.engine.partition import Partition
from pidlease.engine.stream_gate import StreamSend
from pidlease.kafka.records.identity_header import Identity


class PreparedAppend(NamedTuple):
    """An append.

    Attributes:
        data: the record batch.
        identity: the producer; None: the request does not identify it.
        respond: makes the response to the outcome.
        repeatable: whether the same request always makes the same bytes.
        send: what it is beside its records, if the partition is a stream.
    """

    partition: Partition
    data: bytearray
    identity: Identity | None
    respond: Callable[[Outcome], Response]
    repeatable: bool = True
    send: StreamSend | None = None
