"""Kafka's APIs: their keys, and the versions of the requests that pidlease itself sends.

The versions that the Kafka listener serves stand in `proxy.kafka.served_versions`.
"""

from collections.abc import Mapping
from typing import Final

#: The client id that pidlease's own requests carry.
CLIENT_ID: Final = "pidlease"
#: The feature (KIP-584) in ApiVersions by which clients recognize a server of pidlease.
FEATURE: Final = "pidlease"

API_PRODUCE: Final = 0
API_FETCH: Final = 1
API_LIST_OFFSETS: Final = 2
API_METADATA: Final = 3
API_OFFSET_COMMIT: Final = 8
API_OFFSET_FETCH: Final = 9
API_FIND_COORDINATOR: Final = 10
API_JOIN_GROUP: Final = 11
API_HEARTBEAT: Final = 12
API_LEAVE_GROUP: Final = 13
API_SYNC_GROUP: Final = 14
API_DESCRIBE_GROUPS: Final = 15
API_LIST_GROUPS: Final = 16
API_SASL_HANDSHAKE: Final = 17
API_API_VERSIONS: Final = 18
API_CREATE_TOPICS: Final = 19
API_DELETE_TOPICS: Final = 20
API_DELETE_RECORDS: Final = 21
API_INIT_PRODUCER_ID: Final = 22
API_OFFSET_FOR_LEADER_EPOCH: Final = 23
API_ADD_PARTITIONS_TO_TXN: Final = 24
API_ADD_OFFSETS_TO_TXN: Final = 25
API_END_TXN: Final = 26
API_TXN_OFFSET_COMMIT: Final = 28
API_DESCRIBE_ACLS: Final = 29
API_CREATE_ACLS: Final = 30
API_DELETE_ACLS: Final = 31
API_DESCRIBE_CONFIGS: Final = 32
API_ALTER_CONFIGS: Final = 33
API_SASL_AUTHENTICATE: Final = 36
API_CREATE_PARTITIONS: Final = 37
API_DELETE_GROUPS: Final = 42
API_INCREMENTAL_ALTER_CONFIGS: Final = 44
API_OFFSET_DELETE: Final = 47
API_DESCRIBE_CLIENT_QUOTAS: Final = 48
API_ALTER_CLIENT_QUOTAS: Final = 49
API_DESCRIBE_USER_SCRAM_CREDENTIALS: Final = 50
API_ALTER_USER_SCRAM_CREDENTIALS: Final = 51
API_DESCRIBE_CLUSTER: Final = 60
API_DESCRIBE_PRODUCERS: Final = 61
API_DESCRIBE_TRANSACTIONS: Final = 65
API_LIST_TRANSACTIONS: Final = 66
API_CONSUMER_GROUP_HEARTBEAT: Final = 68
API_CONSUMER_GROUP_DESCRIBE: Final = 69

#: The requests that pidlease sends on its own behalf: key -> (lowest, highest version).
#:
#: Produce up to 8 and Fetch up to 11 have no compact lengths. Metadata has topic ids from 10 on.
#: CreateTopics has default numbers from 4 on (KIP-464), DeleteTopics up to 5 only names.
#: FindCoordinator up to 3 asks for one key, which every broker understands. Of the transactions'
#: requests, later versions let the broker raise epochs by itself (KIP-890), and plain batches of
#: the same producer would be fenced.
SENT_VERSIONS: Final[Mapping[int, tuple[int, int]]] = {
    API_PRODUCE: (3, 8),
    API_FETCH: (4, 11),
    API_LIST_OFFSETS: (1, 6),
    API_METADATA: (4, 12),
    API_FIND_COORDINATOR: (1, 3),
    API_SASL_HANDSHAKE: (1, 1),
    API_API_VERSIONS: (0, 3),
    API_CREATE_TOPICS: (4, 7),
    API_DELETE_TOPICS: (1, 5),
    API_INIT_PRODUCER_ID: (0, 4),
    API_OFFSET_FOR_LEADER_EPOCH: (3, 4),
    API_ADD_PARTITIONS_TO_TXN: (0, 3),
    API_END_TXN: (0, 3),
    API_DESCRIBE_ACLS: (1, 3),
    API_CREATE_ACLS: (1, 3),
    API_DELETE_ACLS: (1, 3),
    API_DESCRIBE_CONFIGS: (1, 4),
    API_SASL_AUTHENTICATE: (0, 1),
    API_CREATE_PARTITIONS: (0, 3),
    API_INCREMENTAL_ALTER_CONFIGS: (0, 1),
    API_DESCRIBE_TRANSACTIONS: (0, 0),
}
