"""Maps the outcome of an append to the error code of its Produce response, except duplicates."""

from typing import Final

from kio.schema.errors import ErrorCode

from pidlease.engine.append_outcome import Status

#: FAILED and NO_LEASE get a retriable code that says "not stored": clients resend the same batches
#: in order. STOPPED gets one after which they also refresh their metadata.
CODES: Final = {
    Status.APPENDED: ErrorCode.none,
    Status.DUPLICATE: ErrorCode.none,
    Status.GAP: ErrorCode.out_of_order_sequence_number,
    Status.OVERLAP: ErrorCode.out_of_order_sequence_number,
    Status.FENCED: ErrorCode.invalid_producer_epoch,
    Status.MALFORMED: ErrorCode.invalid_record,
    Status.UNKNOWN: ErrorCode.unknown_producer_id,
    Status.FAILED: ErrorCode.not_enough_replicas,
    Status.STOPPED: ErrorCode.kafka_storage_error,
    Status.NO_LEASE: ErrorCode.not_enough_replicas,
    Status.FORBIDDEN: ErrorCode.policy_violation,
    Status.SESSION_ENDED: ErrorCode.network_exception,
    # Only where the outcome has no code of Kafka's: that is returned instead.
    Status.REFUSED: ErrorCode.not_enough_replicas,
    Status.NOT_OWNER: ErrorCode.not_leader_or_follower,
    # Only over HTTP: Kafka's clients have no keys.
    Status.KEY_REUSED: ErrorCode.out_of_order_sequence_number,
}
