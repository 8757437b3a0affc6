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
        name: Kafka's name; empty for a code without a row.
        stored: whether the batch is in the log.
        reason: why, in terms of the broker.
    """

    code: int
    name: str
    stored: Stored
    reason: str


OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45

_NO: Final = Stored.NO
_MAYBE: Final = Stored.MAYBE
_UNEXPECTED: Final = Stored.UNEXPECTED

_ROWS: Final = (
    ProduceError(-1, "UNKNOWN_SERVER_ERROR", _MAYBE,
                 "Any exception of the broker, also one after the write (an index that is full)."),
    ProduceError(0, "NONE", _MAYBE, "Without an offset it does not say where the batch is."),
    ProduceError(2, "CORRUPT_MESSAGE", _NO, "The CRC or the size is wrong: checked first."),
    ProduceError(3, "UNKNOWN_TOPIC_OR_PARTITION", _MAYBE,
                 "Before the append, and after it: DelayedProduce finds the replica removed, by a"
                 " deletion of the topic or, up to Kafka 2.3, by a reassignment."),
    ProduceError(5, "LEADER_NOT_AVAILABLE", _UNEXPECTED, "An error of Metadata."),
    ProduceError(6, "NOT_LEADER_OR_FOLLOWER", _MAYBE,
                 "Before the append, and after it: DelayedProduce finds that leadership moved."),
    ProduceError(7, "REQUEST_TIMED_OUT", _MAYBE, "Appended; the other replicas were late."),
    ProduceError(10, "MESSAGE_TOO_LARGE", _NO, "The size is checked before the append."),
    ProduceError(17, "INVALID_TOPIC_EXCEPTION", _NO,
                 "An internal topic: refused before the append."),
    ProduceError(18, "RECORD_LIST_TOO_LARGE", _NO,
                 "Larger than a segment: checked before the append."),
    ProduceError(19, "NOT_ENOUGH_REPLICAS", _NO,
                 "Too few replicas in sync: checked before the append."),
    ProduceError(20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", _MAYBE,
                 "Appended and replicated; then too few replicas were in sync."),
    ProduceError(21, "INVALID_REQUIRED_ACKS", _UNEXPECTED, "Every request here has acks=all."),
    ProduceError(29, "TOPIC_AUTHORIZATION_FAILED", _NO, "Checked before the append."),
    ProduceError(31, "CLUSTER_AUTHORIZATION_FAILED", _NO,
                 "Up to Kafka 2.7: no IdempotentWrite right. Checked before the append."),
    ProduceError(32, "INVALID_TIMESTAMP", _NO, "LogValidator: before the append."),
    ProduceError(38, "INVALID_REPLICATION_FACTOR", _UNEXPECTED, "An error of CreateTopics."),
    ProduceError(42, "INVALID_REQUEST", _UNEXPECTED,
                 "A malformed request ends the connection instead."),
    ProduceError(43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", _NO,
                 "The topic has a format without producer ids. LogValidator: before the append."),
    ProduceError(44, "POLICY_VIOLATION", _UNEXPECTED, "An error of CreateTopics."),
    ProduceError(45, "OUT_OF_ORDER_SEQUENCE_NUMBER", _MAYBE,
                 "A sequence gap, or a duplicate older than the last five batches: that one is in"
                 " the log."),
    ProduceError(46, "DUPLICATE_SEQUENCE_NUMBER", _MAYBE,
                 "Up to Kafka 1.0: the log already has these sequence numbers."),
    ProduceError(47, "INVALID_PRODUCER_EPOCH", _MAYBE,
                 "This request appended nothing. The log has a newer epoch that is not known here:"
                 " read it."),
    ProduceError(48, "INVALID_TXN_STATE", _MAYBE,
                 "This request appended nothing. The log has a transaction of this producer id that"
                 " is not known here: read it."),
    ProduceError(56, "KAFKA_STORAGE_ERROR", _MAYBE,
                 "The disk failed before, during or after the append."),
    ProduceError(59, "UNKNOWN_PRODUCER_ID", _MAYBE,
                 "Up to Kafka 2.4. This request appended nothing, but Kafka has forgotten what the"
                 " log held of the producer: read it."),
    ProduceError(72, "LISTENER_NOT_FOUND", _UNEXPECTED, "An error of Metadata."),
    ProduceError(74, "FENCED_LEADER_EPOCH", _UNEXPECTED, "Produce has no leader epoch."),
    ProduceError(75, "UNKNOWN_LEADER_EPOCH", _UNEXPECTED, "Produce has no leader epoch."),
    ProduceError(76, "UNSUPPORTED_COMPRESSION_TYPE", _NO,
                 "zstd for a broker that lacks it: checked before the append."),
    ProduceError(87, "INVALID_RECORD", _NO, "LogValidator: before the append."),
    ProduceError(89, "THROTTLING_QUOTA_EXCEEDED", _UNEXPECTED,
                 "An error of CreateTopics. Produce is throttled by a late answer."),
    ProduceError(90, "PRODUCER_FENCED", _UNEXPECTED,
                 "An error of transactions; Produce says INVALID_PRODUCER_EPOCH."),
    ProduceError(100, "UNKNOWN_TOPIC_ID", _UNEXPECTED,
                 "Versions up to 12 name topics; only later ones have ids."),
)  # fmt: skip

#: Every error code that is known here, by its number.
PRODUCE_ERRORS: Final[Mapping[int, ProduceError]] = {row.code: row for row in _ROWS}

#: The cause is in the batch: other batches of the same producer may pass.
CONTENT: Final = frozenset((2, 10, 18, 32, 76, 87))
#: A newer epoch of the producer has fenced this one.
FENCED: Final = frozenset((47, 90))
#: Another broker may lead the partition: Kafka's InvalidMetadataException, of Produce, Fetch and
#: ListOffsets, and UNKNOWN_LEADER_EPOCH.
STALE_LEADER: Final = frozenset((3, 5, 6, 9, 56, 72, 74, 75, 100))


def produce_error(code: int) -> ProduceError:
    """The row of an error code; one without a row is unexpected."""
    row = PRODUCE_ERRORS.get(code)
    if row is None:
        return ProduceError(code, "", Stored.UNEXPECTED, "Not an error of Produce.")
    return row
