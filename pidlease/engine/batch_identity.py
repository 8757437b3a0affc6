"""Whose a batch is, and under which numbers: by its header, or by the first record's."""

from typing import NamedTuple

from pidlease.core.pid import Policy, policy_of
from pidlease.core.producer_names import ProducerNames
from pidlease.core.state import Batch
from pidlease.kafka.records.identity_header import Identity
from pidlease.kafka.records.record_batch import BatchHeader
from pidlease.kafka.records.writer_batch import LoggedBatch


class BatchIdentity(NamedTuple):
    """A batch's producer, and the batch's identity.

    Attributes:
        pid: the PID, or what stands for a producer id of policy epoch.
        batch: the identity that it is judged by.
    """

    pid: int
    batch: Batch


def batch_of(header: BatchHeader) -> Batch:
    """The identity that Kafka's numbering gives a batch (policy kafka), from its header alone."""
    first = header.base_sequence
    last = (first + header.last_offset_delta) & 0x7FFFFFFF
    return Batch(header.producer_epoch, first, last, header.records, header.crc)


def identified(identity: Identity, header: BatchHeader, crc: int) -> Batch:
    """The identity of a batch that brings it in its first record.

    Parameters:
        identity: what the record says.
        header: of the batch, as it stands under the writer.
        crc: what its content is compared by: of `writer.crc_of_send`, or UNKNOWN_CRC.
    """
    name, generation, first, last = identity[1:5]
    # A producer of policy epoch counts requests, whatever they hold.
    records = last - first + 1 if name else header.records
    return Batch(generation, first, last, records, crc)


def whose(logged: LoggedBatch, names: ProducerNames) -> BatchIdentity | None:
    """Whose a batch of the log is; None: it was sent without a PID, or under none of ours.

    Parameters:
        logged: the batch.
        names: gets the producer id, where it is one.
    """
    header, identity = logged
    if identity is None:
        pid = header.producer_id
        return BatchIdentity(pid, batch_of(header)) if policy_of(pid) is Policy.KAFKA else None
    pid = names.take(identity.name) if identity.name else identity.pid
    return BatchIdentity(pid, identified(identity, header, header.crc))


def no_policy(pid: int) -> str:
    """What is said of a PID that nobody can have leased."""
    return f"PID {pid} belongs to no policy; lease one by InitProducerId, or POST /v1/leases"
