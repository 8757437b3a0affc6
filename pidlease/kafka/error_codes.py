"""Kafka's error codes that pidlease decides by, and the classes of each.

Kafka has one list of codes for all APIs, and what a code means depends on the request. A class
therefore names a decision; a code has all classes that it counts for.
"""

import enum
from collections.abc import Mapping
from typing import Final

UNKNOWN_SERVER_ERROR: Final = -1
NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
CORRUPT_MESSAGE: Final = 2
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
NOT_LEADER_OR_FOLLOWER: Final = 6
REQUEST_TIMED_OUT: Final = 7
BROKER_NOT_AVAILABLE: Final = 8
REPLICA_NOT_AVAILABLE: Final = 9
MESSAGE_TOO_LARGE: Final = 10
NETWORK_EXCEPTION: Final = 13
COORDINATOR_LOAD_IN_PROGRESS: Final = 14
COORDINATOR_NOT_AVAILABLE: Final = 15
NOT_COORDINATOR: Final = 16
INVALID_TOPIC_EXCEPTION: Final = 17
RECORD_LIST_TOO_LARGE: Final = 18
NOT_ENOUGH_REPLICAS: Final = 19
NOT_ENOUGH_REPLICAS_AFTER_APPEND: Final = 20
INVALID_REQUIRED_ACKS: Final = 21
ILLEGAL_GENERATION: Final = 22
UNKNOWN_MEMBER_ID: Final = 25
REBALANCE_IN_PROGRESS: Final = 27
TOPIC_AUTHORIZATION_FAILED: Final = 29
CLUSTER_AUTHORIZATION_FAILED: Final = 31
INVALID_TIMESTAMP: Final = 32
UNSUPPORTED_SASL_MECHANISM: Final = 33
TOPIC_ALREADY_EXISTS: Final = 36
INVALID_REPLICATION_FACTOR: Final = 38
NOT_CONTROLLER: Final = 41
INVALID_REQUEST: Final = 42
UNSUPPORTED_FOR_MESSAGE_FORMAT: Final = 43
POLICY_VIOLATION: Final = 44
OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
DUPLICATE_SEQUENCE_NUMBER: Final = 46
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48
CONCURRENT_TRANSACTIONS: Final = 51
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
SECURITY_DISABLED: Final = 54
OPERATION_NOT_ATTEMPTED: Final = 55
KAFKA_STORAGE_ERROR: Final = 56
UNKNOWN_PRODUCER_ID: Final = 59
LISTENER_NOT_FOUND: Final = 72
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75
UNSUPPORTED_COMPRESSION_TYPE: Final = 76
OFFSET_NOT_AVAILABLE: Final = 78
FENCED_INSTANCE_ID: Final = 82
INVALID_RECORD: Final = 87
THROTTLING_QUOTA_EXCEEDED: Final = 89
PRODUCER_FENCED: Final = 90
UNKNOWN_TOPIC_ID: Final = 100
TRANSACTIONAL_ID_NOT_FOUND: Final = 105


class ErrorClass(enum.Flag):
    """What a code means for the next step.

    CONTENT: the cause is in the batch; other batches of the same producer may pass.
    FENCED: a newer epoch of the producer has fenced this one.
    STALE_LEADER: another broker may lead the partition: refresh the metadata. Kafka's
        InvalidMetadataException of Produce, Fetch and ListOffsets, and UNKNOWN_LEADER_EPOCH.
    RESEND: the batch is not stored, or not known to be: send it again. Kafka's RetriableException,
        and UNKNOWN_SERVER_ERROR, after which the outcome is unknown as well.
    REREAD: a leader cannot return records or offsets now: ask again.
    HELD_BACK: an error of a partition in Fetch that the proxy holds back while the client waits
        for records. The client could only ask again, and Java's consumer does so at once. Clients
        act on all other errors (reset the offset, look up the topic, raise an error).
    TOPIC_ABSENT: Metadata knows no such topic, or hides it from this client.
    COORDINATOR_MOVED: find the coordinator again, then retry.
    GROUP_BUSY: the coordinator loads, or the group rebalances: retry.
    MEMBERSHIP_LOST: another member may have this member's partitions.
    TRANSACTION_BUSY: the transaction coordinator is busy: retry.
    NO_RIGHT: an operator has to grant a right.
    """

    CONTENT = enum.auto()
    FENCED = enum.auto()
    STALE_LEADER = enum.auto()
    RESEND = enum.auto()
    REREAD = enum.auto()
    HELD_BACK = enum.auto()
    TOPIC_ABSENT = enum.auto()
    COORDINATOR_MOVED = enum.auto()
    GROUP_BUSY = enum.auto()
    MEMBERSHIP_LOST = enum.auto()
    TRANSACTION_BUSY = enum.auto()
    NO_RIGHT = enum.auto()


_C = ErrorClass

#: The classes of each code; a code without a row has none.
CLASSES: Final[Mapping[int, ErrorClass]] = {
    UNKNOWN_SERVER_ERROR: _C.RESEND | _C.REREAD | _C.HELD_BACK | _C.GROUP_BUSY,
    CORRUPT_MESSAGE: _C.CONTENT | _C.RESEND,
    UNKNOWN_TOPIC_OR_PARTITION: (
        _C.STALE_LEADER | _C.RESEND | _C.REREAD | _C.TOPIC_ABSENT | _C.TRANSACTION_BUSY
    ),
    LEADER_NOT_AVAILABLE: _C.STALE_LEADER | _C.RESEND | _C.REREAD | _C.HELD_BACK,
    NOT_LEADER_OR_FOLLOWER: _C.STALE_LEADER | _C.RESEND | _C.REREAD | _C.HELD_BACK,
    REQUEST_TIMED_OUT: _C.RESEND | _C.REREAD | _C.GROUP_BUSY,
    BROKER_NOT_AVAILABLE: _C.RESEND | _C.REREAD | _C.HELD_BACK,
    REPLICA_NOT_AVAILABLE: _C.STALE_LEADER | _C.RESEND | _C.REREAD | _C.HELD_BACK,
    MESSAGE_TOO_LARGE: _C.CONTENT,
    NETWORK_EXCEPTION: _C.RESEND | _C.REREAD,
    COORDINATOR_LOAD_IN_PROGRESS: _C.RESEND | _C.GROUP_BUSY | _C.TRANSACTION_BUSY,
    COORDINATOR_NOT_AVAILABLE: _C.RESEND | _C.COORDINATOR_MOVED,
    NOT_COORDINATOR: _C.RESEND | _C.COORDINATOR_MOVED,
    INVALID_TOPIC_EXCEPTION: _C.TOPIC_ABSENT,
    RECORD_LIST_TOO_LARGE: _C.CONTENT,
    NOT_ENOUGH_REPLICAS: _C.RESEND,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND: _C.RESEND,
    ILLEGAL_GENERATION: _C.MEMBERSHIP_LOST,
    UNKNOWN_MEMBER_ID: _C.MEMBERSHIP_LOST,
    REBALANCE_IN_PROGRESS: _C.GROUP_BUSY,
    TOPIC_AUTHORIZATION_FAILED: _C.TOPIC_ABSENT | _C.NO_RIGHT,
    INVALID_TIMESTAMP: _C.CONTENT,
    NOT_CONTROLLER: _C.RESEND,
    INVALID_PRODUCER_EPOCH: _C.FENCED,
    CONCURRENT_TRANSACTIONS: _C.TRANSACTION_BUSY,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _C.NO_RIGHT,
    OPERATION_NOT_ATTEMPTED: _C.TRANSACTION_BUSY,
    KAFKA_STORAGE_ERROR: _C.STALE_LEADER | _C.RESEND | _C.REREAD | _C.HELD_BACK,
    LISTENER_NOT_FOUND: _C.STALE_LEADER | _C.RESEND | _C.REREAD,
    FENCED_LEADER_EPOCH: _C.STALE_LEADER | _C.RESEND | _C.REREAD,
    UNKNOWN_LEADER_EPOCH: _C.STALE_LEADER | _C.RESEND | _C.REREAD | _C.HELD_BACK,
    UNSUPPORTED_COMPRESSION_TYPE: _C.CONTENT,
    OFFSET_NOT_AVAILABLE: _C.RESEND | _C.REREAD | _C.HELD_BACK,
    FENCED_INSTANCE_ID: _C.MEMBERSHIP_LOST,
    INVALID_RECORD: _C.CONTENT,
    THROTTLING_QUOTA_EXCEEDED: _C.RESEND,
    PRODUCER_FENCED: _C.FENCED,
    UNKNOWN_TOPIC_ID: _C.STALE_LEADER | _C.RESEND | _C.REREAD,
}


def _codes(which: ErrorClass) -> frozenset[int]:
    return frozenset(code for code, classes in CLASSES.items() if which in classes)


CONTENT: Final = _codes(_C.CONTENT)
FENCED: Final = _codes(_C.FENCED)
STALE_LEADER: Final = _codes(_C.STALE_LEADER)
RESEND: Final = _codes(_C.RESEND)
REREAD: Final = _codes(_C.REREAD)
HELD_BACK: Final = _codes(_C.HELD_BACK)
TOPIC_ABSENT: Final = _codes(_C.TOPIC_ABSENT)
COORDINATOR_MOVED: Final = _codes(_C.COORDINATOR_MOVED)
GROUP_BUSY: Final = _codes(_C.GROUP_BUSY)
MEMBERSHIP_LOST: Final = _codes(_C.MEMBERSHIP_LOST)
TRANSACTION_BUSY: Final = _codes(_C.TRANSACTION_BUSY)
NO_RIGHT: Final = _codes(_C.NO_RIGHT)
