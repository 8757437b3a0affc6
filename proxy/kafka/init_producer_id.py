"""InitProducerId (key 22): leases a new PID of policy kafka, with epoch 0.

Never a PID that another client had: a fenced Kafka client raises its epoch and continues, so each
of two clients with one PID would take itself for the valid one.
"""

import time

from kio.schema.errors import ErrorCode

from pidlease.core.pid import Policy
from pidlease.engine.engine import Engine
from pidlease.engine.leases.leases import NoPidError
from pidlease.kafka.api import API_INIT_PRODUCER_ID
from pidlease.kafka.codec.messages import Response, read_request
from pidlease.kafka.codec.primitives import RequestHeader


def init_producer_id(engine: Engine, header: RequestHeader, frame: bytearray) -> bytes:
    """Answer InitProducerId.

    Error 53 for a transactional id; error 14, which every client retries, if no PID can be leased;
    from version 3 on, invalid_request if exactly one of id and epoch is -1 (KIP-360).
    """
    request = read_request(header, frame)
    pid, epoch = -1, -1
    given = (getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1))
    if request.transactional_id is not None:
        code = ErrorCode.transactional_id_authorization_failed
    elif (given[0] == -1) != (given[1] == -1):
        code = ErrorCode.invalid_request
    else:
        began = time.monotonic()
        try:
            pid, epoch = engine.leases.lease(Policy.KAFKA), 0
            code = ErrorCode.none
        except NoPidError as error:
            engine.leases.refuse(Policy.KAFKA, error)
            code = ErrorCode.coordinator_load_in_progress
        engine.counts.lease_seconds["kafka"].observe(time.monotonic() - began)
    return Response(API_INIT_PRODUCER_ID, header.version).encode(
        header.correlation_id, error_code=code, producer_id=pid, producer_epoch=epoch
    )
