"""Appends batches for a listener that builds them itself, and waits for their outcomes."""

import asyncio
from functools import partial
from typing import Final

from pidlease.core.idempotency_keys import is_key_name
from pidlease.core.pid import Policy, policy_of
from pidlease.core.state import UNKNOWN_CRC, Batch
from pidlease.engine.append_outcome import Done, Outcome
from pidlease.engine.batch_identity import batch_of, identified
from pidlease.engine.early_appends import EarlyAppends
from pidlease.engine.engine import Engine
from pidlease.engine.keys_in_flight import KeysInFlight
from pidlease.engine.partition import Partition
from pidlease.engine.pending_batches import Submitted
from pidlease.engine.stream_gate import StreamBatch, StreamSend
from pidlease.kafka.records.identity_header import Identity
from pidlease.kafka.records.record_batch import (
    BatchHeader,
    check_from_client,
    check_intact,
    read_from_client,
    read_header,
)
from pidlease.kafka.records.writer_batch import crc_of_send, under_writer


class AppendService:
    """Submits batches to the engine, and waits for their outcomes.

    Parameters:
        reorder_ms: how long an append waits for an earlier one of its producer; 0: not at all.
    """

    def __init__(self, engine: Engine, reorder_ms: int = 0) -> None:
        self.engine: Final = engine
        self._early: Final = EarlyAppends(reorder_ms)
        self.keys: Final = KeysInFlight(engine.names)
        #: How many appends run, by the stand-in PID of a producer name.
        self._open: dict[int, int] = {}

    def name_of(self, identity: Identity | None) -> str | None:
        """Return the name that the PID of a batch was leased by; None: it has none."""
        return None if identity is None else self.engine.naming.names.get(identity.pid)

    async def append(
        self,
        partition: Partition,
        data: bytearray,
        identity: Identity | None,
        *,
        repeatable: bool = True,
        send: StreamSend | None = None,
    ) -> Outcome:
        """Append a batch. The append continues when the caller stops waiting.

        The parameters and errors are those of `submit`.
        """
        completed: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def done(outcome: Outcome) -> None:
            if not completed.done():  # the caller may have been cancelled
                completed.set_result(outcome)

        self.submit(partition, data, identity, done, repeatable=repeatable, send=send)
        return await completed

    def submit(
        self,
        partition: Partition,
        data: bytearray,
        identity: Identity | None,
        done: Done,
        *,
        repeatable: bool = True,
        send: StreamSend | None = None,
    ) -> None:
        """Submit a batch.

        Parameters:
            data: a record batch v2; its first record holds the identity, if there is one.
            identity: the producer's identity; None: a plain append.
            done: gets the outcome; perhaps before this returns.
            repeatable: whether the same request always makes the same bytes. If not, a duplicate
                is not compared with its original.
            send: what it is beside its records, if the partition is a stream.

        Raises:
            CorruptBatchError: `data` is not an intact batch.
            InvalidBatchError: clients may not append such a batch.
            KeyInFlightError: an append with the same idempotency key is in flight. After any of
                these nothing was submitted.
        """
        header = read_from_client(data)
        if header is None:
            header = read_header(data)
            check_intact(header, data)
            check_from_client(header)
        policy = None
        if identity is not None and partition.judging:
            policy = Policy.EPOCH if identity.name else policy_of(identity.pid)

        def counted(outcome: Outcome) -> None:
            partition.counts.by_http[policy, outcome.status] += 1
            done(outcome)

        if identity is None:
            self._submit(partition, send, -1, header, data, batch_of(header), counted)
        else:
            self._produce(
                partition, header, data, identity, counted, repeatable=repeatable, send=send
            )

    @staticmethod
    def _submit(  # noqa: PLR0913, PLR0917 - of a batch
        partition: Partition,
        send: StreamSend | None,
        pid: int,
        header: BatchHeader,
        data: bytearray,
        batch: Batch,
        done: Done,
    ) -> None:
        if send is None or partition.gate is None:
            partition.produce(Submitted(pid, header, data, batch, done))
        else:
            gate = partition.gate
            partition.produce(StreamBatch(pid, header, data, batch, done, gate, send))

    def _produce(self, partition: Partition, header: BatchHeader, data: bytearray,  # noqa: PLR0913
                 identity: Identity, done: Done, *, repeatable: bool,
                 send: StreamSend | None) -> None:  # fmt: skip
        header = under_writer(header, data)
        pid = identity.pid
        is_key = is_key_name(identity.name)
        if is_key:
            done = self.keys.begin(identity.name, partition, done)
        if identity.name:
            pid = self.engine.names.take(identity.name)
            self._open[pid] = self._open.get(pid, 0) + 1
            done = partial(self._close, pid, done)
        crc = crc_of_send(header, data) if repeatable else UNKNOWN_CRC
        batch = identified(identity, header, crc)
        submit = partial(self._submit, partition, send, pid, header, data, batch)
        if identity.name and not is_key:
            self._early.submit((pid, partition), batch, submit, done)
        else:
            submit(done)

    def _close(self, pid: int, done: Done, outcome: Outcome) -> None:
        """Complete an append by producer name, and drop the name if no batch was admitted."""
        self._open[pid] -= 1
        if not self._open[pid]:
            del self._open[pid]
            if pid not in self.engine.leases:
                self.engine.names.drop(pid)
        done(outcome)
