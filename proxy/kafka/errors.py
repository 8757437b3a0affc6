"""Outcomes in Kafka's words: the design's table of errors, in one place."""

from typing import Final

from kio.schema.errors import ErrorCode

from pidlease.engine.append_outcome import Status

#: The code of each outcome of a Produce. FAILED and NO_LEASE are retriable and say "not stored":
#: clients send the same again, in order. STOPPED makes them ask for metadata, too.
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
    # Kafka's own code is returned instead, where the outcome has one.
    Status.REFUSED: ErrorCode.not_enough_replicas,
    Status.NOT_OWNER: ErrorCode.not_leader_or_follower,
}
