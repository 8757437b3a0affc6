"""The Python client: leases PIDs, and sends records exactly once under them."""

from pidlease.client.blocking_producer import BlockingProducer
from pidlease.client.errors import (
    DeliveryTimeoutError,
    FencedError,
    LeaseEndedError,
    LeaseRefusedError,
    LeaseUnavailableError,
    OutcomeUnknownError,
    ProducerClosedError,
    ProducerError,
    SessionEndedError,
)
from pidlease.client.lease_client import LeaseClient
from pidlease.client.metrics import ProducerCollector, ProducerMetrics
from pidlease.client.pending_batch import Sent
from pidlease.client.producer import LeasedProducer
from pidlease.core.key_partition import partition_for_key
from pidlease.core.lease import Lease, LeaseWanted

__all__ = [
    "BlockingProducer",
    "DeliveryTimeoutError",
    "FencedError",
    "Lease",
    "LeaseClient",
    "LeaseEndedError",
    "LeaseRefusedError",
    "LeaseUnavailableError",
    "LeaseWanted",
    "LeasedProducer",
    "OutcomeUnknownError",
    "ProducerClosedError",
    "ProducerCollector",
    "ProducerError",
    "ProducerMetrics",
    "Sent",
    "SessionEndedError",
    "partition_for_key",
]
