"""Error codes in Kafka's answers to Produce, and whether the batch is in the log.

The classes come from the broker's source, 0.11 to 4.1: KafkaApis.handleProduceRequest,
ReplicaManager.appendRecords, Partition.appendRecordsToLeader, UnifiedLog.append, LogValidator,
ProducerStateManager and DelayedProduce. With acks=all a broker checks a batch, appends it to its
own log, and waits for the other replicas. An error of the first step is certain. DelayedProduce,
the third step, replaces the result of a batch that the leader's log already holds.

A class holds for one request. An earlier request with the same batch has its own answer.
"""

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

from pidlease.kafka.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    CORRUPT_MESSAGE,
    DUPLICATE_SEQUENCE_NUMBER,
    FENCED_LEADER_EPOCH,
    INVALID_PRODUCER_EPOCH,
    INVALID_RECORD,
    INVALID_REPLICATION_FACTOR,
    INVALID_REQUEST,
    INVALID_REQUIRED_ACKS,
    INVALID_TIMESTAMP,
    INVALID_TOPIC_EXCEPTION,
    INVALID_TXN_STATE,
    KAFKA_STORAGE_ERROR,
    LEADER_NOT_AVAILABLE,
    LISTENER_NOT_FOUND,
    MESSAGE_TOO_LARGE,
    NONE,
    NOT_ENOUGH_REPLICAS,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    NOT_LEADER_OR_FOLLOWER,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    POLICY_VIOLATION,
    PRODUCER_FENCED,
    RECORD_LIST_TOO_LARGE,
    REQUEST_TIMED_OUT,
    THROTTLING_QUOTA_EXCEEDED,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_PRODUCER_ID,
    UNKNOWN_SERVER_ERROR,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_COMPRESSION_TYPE,
    UNSUPPORTED_FOR_MESSAGE_FORMAT,
)


@enum.unique
class Stored(enum.Enum):
    """Whether a batch is in the log, by the error code of its answer.

    NO: certainly not, and this request will not append it. MAYBE: it may be; read the log before
    anything else of its producer is validated. UNEXPECTED: no broker answers Produce with this
    code; treat it as MAYBE and log it.
    """

    NO = "certainly not stored"
    MAYBE = "may be stored"
    UNEXPECTED = "must not occur"


class ProduceError(NamedTuple):
    """An error code of Produce.

    Attributes:
        code: Kafka's number.
        stored: whether the batch is in the log.
        reason: why, in terms of the broker.
    """

    code: int
    stored: Stored
    reason: str


_NO: Final = Stored.NO
_MAYBE: Final = Stored.MAYBE
_UNEXPECTED: Final = Stored.UNEXPECTED

_ROWS: Final = (
    ProduceError(UNKNOWN_SERVER_ERROR, _MAYBE,
                 "Any exception of the broker, also one after the write (an index that is full)."),
    ProduceError(NONE, _MAYBE, "Without an offset it does not say where the batch is."),
    ProduceError(CORRUPT_MESSAGE, _NO, "The CRC or the size is wrong: checked first."),
    ProduceError(UNKNOWN_TOPIC_OR_PARTITION, _MAYBE,
                 "Before the append, and after it: DelayedProduce finds the replica removed, by a"
                 " deletion of the topic or, up to Kafka 2.3, by a reassignment."),
    ProduceError(LEADER_NOT_AVAILABLE, _UNEXPECTED, "An error of Metadata."),
    ProduceError(NOT_LEADER_OR_FOLLOWER, _MAYBE,
                 "Before the append, and after it: DelayedProduce finds that leadership moved."),
    ProduceError(REQUEST_TIMED_OUT, _MAYBE, "Appended; the other replicas were late."),
    ProduceError(MESSAGE_TOO_LARGE, _NO, "The size is checked before the append."),
    ProduceError(INVALID_TOPIC_EXCEPTION, _NO,
                 "An internal topic: refused before the append."),
    ProduceError(RECORD_LIST_TOO_LARGE, _NO,
                 "Larger than a segment: checked before the append."),
    ProduceError(NOT_ENOUGH_REPLICAS, _NO,
                 "Too few replicas in sync: checked before the append."),
    ProduceError(NOT_ENOUGH_REPLICAS_AFTER_APPEND, _MAYBE,
                 "Appended and replicated; then too few replicas were in sync."),
    ProduceError(INVALID_REQUIRED_ACKS, _UNEXPECTED, "Every request here has acks=all."),
    ProduceError(TOPIC_AUTHORIZATION_FAILED, _NO, "Checked before the append."),
    ProduceError(CLUSTER_AUTHORIZATION_FAILED, _NO,
                 "Up to Kafka 2.7: no IdempotentWrite right. Checked before the append."),
    ProduceError(INVALID_TIMESTAMP, _NO, "LogValidator: before the append."),
    ProduceError(INVALID_REPLICATION_FACTOR, _UNEXPECTED, "An error of CreateTopics."),
    ProduceError(INVALID_REQUEST, _UNEXPECTED,
                 "A malformed request ends the connection instead."),
    ProduceError(UNSUPPORTED_FOR_MESSAGE_FORMAT, _NO,
                 "The topic has a format without producer ids. LogValidator: before the append."),
    ProduceError(POLICY_VIOLATION, _UNEXPECTED, "An error of CreateTopics."),
    ProduceError(OUT_OF_ORDER_SEQUENCE_NUMBER, _MAYBE,
                 "A sequence gap, or a duplicate older than the last five batches: that one is in"
                 " the log."),
    ProduceError(DUPLICATE_SEQUENCE_NUMBER, _MAYBE,
                 "Up to Kafka 1.0: the log already has these sequence numbers."),
    ProduceError(INVALID_PRODUCER_EPOCH, _MAYBE,
                 "This request appended nothing. The log has a newer epoch that is not known here:"
                 " read it."),
    ProduceError(INVALID_TXN_STATE, _MAYBE,
                 "This request appended nothing. The log has a transaction of this producer id that"
                 " is not known here: read it."),
    ProduceError(KAFKA_STORAGE_ERROR, _MAYBE,
                 "The disk failed before, during or after the append."),
    ProduceError(UNKNOWN_PRODUCER_ID, _MAYBE,
                 "Up to Kafka 2.4. This request appended nothing, but Kafka has forgotten what the"
                 " log held of the producer: read it."),
    ProduceError(LISTENER_NOT_FOUND, _UNEXPECTED, "An error of Metadata."),
    ProduceError(FENCED_LEADER_EPOCH, _UNEXPECTED, "Produce has no leader epoch."),
    ProduceError(UNKNOWN_LEADER_EPOCH, _UNEXPECTED, "Produce has no leader epoch."),
    ProduceError(UNSUPPORTED_COMPRESSION_TYPE, _NO,
                 "zstd for a broker that lacks it: checked before the append."),
    ProduceError(INVALID_RECORD, _NO, "LogValidator: before the append."),
    ProduceError(THROTTLING_QUOTA_EXCEEDED, _UNEXPECTED,
                 "An error of CreateTopics. Produce is throttled by a late answer."),
    ProduceError(PRODUCER_FENCED, _UNEXPECTED,
                 "An error of transactions; Produce says INVALID_PRODUCER_EPOCH."),
    ProduceError(UNKNOWN_TOPIC_ID, _UNEXPECTED,
                 "Versions up to 12 name topics; only later ones have ids."),
)  # fmt: skip

#: Every error code that is known here, by its number.
PRODUCE_ERRORS: Final[Mapping[int, ProduceError]] = {row.code: row for row in _ROWS}


def produce_error(code: int) -> ProduceError:
    """The row of an error code; one without a row is unexpected."""
    row = PRODUCE_ERRORS.get(code)
    if row is None:
        return ProduceError(code, Stored.UNEXPECTED, "Not an error of Produce.")
    return row
