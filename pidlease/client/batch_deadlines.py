"""The deadlines of batches: the linger time and the delivery timeout."""

import time
from asyncio import TimerHandle
from typing import Final

from pidlease.client.errors import DeliveryTimeoutError, OutcomeUnknownError, SessionEndedError
from pidlease.client.partition_queue import Host, PartitionQueue
from pidlease.client.pending_batch import PendingBatch


class BatchDeadlines:
    """Wakes partitions after the linger time, and fails batches after the delivery timeout.

    Each partition with a pending batch has one timer for the delivery timeout.
    """

    def __init__(self, host: Host) -> None:
        self._host: Final = host
        self._delivery_s: Final = host.settings.delivery_timeout_ms / 1000
        self._linger_s: Final = host.settings.linger_ms / 1000
        self._timers: dict[PartitionQueue, TimerHandle] = {}

    def close(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def began(self, partition: PartitionQueue) -> None:
        """Watch a batch that was just begun."""
        if partition not in self._timers:
            self._watch(partition, self._delivery_s)
        if self._linger_s:
            self._host.loop.call_later(self._linger_s, self._host.wake, partition)
        elif not partition.in_flight.open:  # otherwise the next response does it
            self._host.wake(partition)

    def _watch(self, partition: PartitionQueue, seconds: float) -> None:
        self._timers[partition] = self._host.loop.call_later(seconds, self._due, partition)

    def _due(self, partition: PartitionQueue) -> None:
        del self._timers[partition]
        while (oldest := partition.oldest) is not None:
            left = oldest.made_at + self._delivery_s - time.monotonic()
            if left > 0:
                self._watch(partition, left)
                return
            self._overdue(partition, oldest)

    def _overdue(self, partition: PartitionQueue, batch: PendingBatch) -> None:
        late = f"not delivered within {self._host.settings.delivery_timeout_ms:g} ms"
        never = DeliveryTimeoutError(f"{partition}: never sent, {late}")
        if batch.span is None and not partition.loses_none:
            partition.fail_unsent(never, 1)
            return
        # Its sequence numbers are used, or its ids will not come again: no batch may follow it.
        if batch.span is None:
            partition.fail_unsent(never)
        partition.fail_sent(OutcomeUnknownError(f"{partition}: sent, {late}; never sent again"))
        ended = SessionEndedError(f"{partition}: a record was {late}")
        partition.end(ended)
        self._host.refuse(ended)
        self._host.resolved(partition)
