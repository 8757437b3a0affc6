"""Derives the producer and the sequence numbers of a batch from its header or its first record."""

from typing import NamedTuple

from pidlease.core.pid import Policy, policy_of
from pidlease.core.producer_names import ProducerNames
from pidlease.core.state import Batch
from pidlease.kafka.records.identity_header import Identity
from pidlease.kafka.records.record_batch import BatchHeader, comparable_crc
from pidlease.kafka.records.writer_batch import LoggedBatch


class BatchIdentity(NamedTuple):
    """A batch's producer, and the batch's identity.

    Attributes:
        pid: the PID, or the stand-in PID of a producer name of policy epoch.
        batch: the identity by which the batch is validated.
    """

    pid: int
    batch: Batch


def batch_of(header: BatchHeader) -> Batch:
    """Return the identity of a batch of policy kafka, from its header alone."""
    first = header.base_sequence
    last = (first + header.last_offset_delta) & 0x7FFFFFFF
    crc = comparable_crc(header, header.crc)
    return Batch(header.producer_epoch, first, last, header.records, crc)


def identified(identity: Identity, header: BatchHeader, crc: int) -> Batch:
    """Return the identity of a batch with an identity header in its first record.

    Parameters:
        identity: the record's identity header.
        header: the batch's header, under the writer.
        crc: the CRC that identifies its content, from `crc_of_send`; or UNKNOWN_CRC.
    """
    name, generation, first, last = identity[1:5]
    # A producer of policy epoch counts requests, not records.
    records = last - first + 1 if name else header.records
    return Batch(generation, first, last, records, crc)


def identity_of(logged: LoggedBatch, names: ProducerNames) -> BatchIdentity | None:
    """Return the identity of a batch in the log; None: it has no PID, or none that pidlease leased.

    Parameters:
        logged: the batch.
        names: gets the producer name, if the batch has one.
    """
    header, identity = logged
    if identity is None:
        pid = header.producer_id
        return BatchIdentity(pid, batch_of(header)) if policy_of(pid) is Policy.KAFKA else None
    pid = names.take(identity.name) if identity.name else identity.pid
    return BatchIdentity(pid, identified(identity, header, header.crc))


def no_policy(pid: int) -> str:
    """Return the reason for refusing a PID that cannot have been leased."""
    return f"PID {pid} belongs to no policy; lease one by InitProducerId, or POST /v1/leases"
