"""Sends batches, and does what their answers mean.

Nothing here waits: a partition is looked at when something has happened to it, and whatever may be
sent then is written to its connection at once. Only answers, connections and leases are awaited,
by tasks of their own.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from aiokafka.errors import IncompatibleBrokerVersion

from pidlease.client.errors import (
    FencedError,
    LeaseEndedError,
    OutcomeUnknownError,
    ProducerError,
    SessionEndedError,
)
from pidlease.client.leader_connections import BROKEN, LeaderConnection, LeaderConnections
from pidlease.client.partition_queue import Host, PartitionQueue, SenderSession
from pidlease.client.produce_messages import Part, PartAnswer, ProduceAnswer, ProduceRequest
from pidlease.client.record_accumulator import Batch
from pidlease.client.response_meaning import Kind, meaning_of

_INT32_MAX: Final = 2**31 - 1

_Sending = tuple[PartitionQueue, Batch]


class Sender:
    """Sends what partitions have, under what the session says, over its links.

    Parameters:
        host: the producer.
        session: the PID.
        links: the connections.
    """

    def __init__(self, host: Host, session: SenderSession, links: LeaderConnections) -> None:
        self._host: Final = host
        self._session: Final = session
        self._links: Final = links
        self._metrics: Final = host.metrics
        self._settings: Final = host.settings
        self._timeout_ms: Final = int(min(host.settings.request_timeout_ms, _INT32_MAX))
        self._ready: dict[PartitionQueue, None] = {}
        self._using: dict[PartitionQueue, LeaderConnection] = {}
        self._scheduled = False
        self._closed = False

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True

    # ------------------------------------------------------------------ sending

    def wake(self, partition: PartitionQueue) -> None:
        """Look at a partition when the callers are done: what comes meanwhile goes with it."""
        self._ready[partition] = None
        if not self._scheduled:
            self._scheduled = True
            self._host.loop.call_soon(self._look)

    def push(self, partition: PartitionQueue) -> None:
        """Look at a partition now: it has a full batch."""
        for batch, link in self._batches(partition):
            self._request(link, [(partition, batch)])

    def _look(self) -> None:
        ready, self._ready = self._ready, {}
        self._scheduled = False
        found = [(each, list(self._batches(each))) for each in ready]
        # A request holds one batch of a partition: first each one's first, then its second.
        for place in range(max((len(batches) for _, batches in found), default=0)):
            self._send([(each, *batches[place]) for each, batches in found if len(batches) > place])

    def _batches(self, partition: PartitionQueue) -> Iterator[tuple[Batch, LeaderConnection]]:
        """What may be sent of a partition; it is in flight with that."""
        session = self._session
        while partition.can_send and not self._closed:
            if not partition.flight.again:
                if session.draining:
                    return
                if partition.numbers is None:
                    session.want(partition)
                    return
            link = self._link(partition) if session.alive else None
            if link is None:
                return
            batch = partition.next_batch(new=not session.draining)
            if batch is None:
                return
            self._metrics.retries += batch.sends > 1
            yield batch, link

    def _link(self, partition: PartitionQueue) -> LeaderConnection | None:
        """Where a partition's next batch goes; None: it is woken when that is known.

        Not to a new leader, nor over a new connection, before all that went by the old one has
        its answer: it would come first.
        """
        link = self._using.get(partition)
        if partition.flight.open and link is not None:
            return link if link.alive else None
        found = self._links.link(partition)
        if found is not None:
            self._using[partition] = found
        return found

    def _send(self, sendings: list[tuple[PartitionQueue, Batch, LeaderConnection]]) -> None:
        """Write requests, one for each connection, or more where they would be too large."""
        waiting: dict[LeaderConnection, list[_Sending]] = {}
        sizes: dict[LeaderConnection, int] = {}
        for partition, batch, link in sendings:
            size = sizes.get(link, 0) + len(batch.data)
            if link in waiting and size > self._settings.max_request_size:
                self._request(link, waiting.pop(link))
                size = len(batch.data)
            waiting.setdefault(link, []).append((partition, batch))
            sizes[link] = size
        for link, each in waiting.items():
            self._request(link, each)

    def _request(self, link: LeaderConnection, sendings: list[_Sending]) -> None:
        parts = [Part(each.topic, each.partition, batch.data) for each, batch in sendings]
        try:
            answer = link.send(ProduceRequest(parts, self._timeout_ms))
        except IncompatibleBrokerVersion as error:
            # Nothing was written of this request; of what was sent before, nobody knows.
            for partition, batch in sendings:
                if batch.sends == 1:
                    partition.fail_refused(batch, ProducerError(str(error)))
            self._host.end(OutcomeUnknownError(str(error)), ProducerError(str(error)))
            return
        except BROKEN:
            self._lost(link, sendings)
            return
        self._metrics.requests += 1
        self._host.spawn(self._answer(link, sendings, answer))

    # ------------------------------------------------------------------ answers

    async def _answer(
        self,
        link: LeaderConnection,
        sendings: list[_Sending],
        answer: "asyncio.Future[ProduceAnswer]",
    ) -> None:
        try:
            parts = (await answer).parts
        except BROKEN:
            self._lost(link, sendings)
            return
        found = {(part.topic, part.partition): part for part in parts}
        for partition, batch in sendings:
            part = found.get((partition.topic, partition.partition))
            if batch not in partition.flight.open:
                continue  # it failed meanwhile
            if part is None:
                self._again(partition, batch, link)
            else:
                self._answered(partition, batch, link, part)

    def _lost(self, link: LeaderConnection, sendings: list[_Sending]) -> None:
        """A connection broke, or gave no answer in time: nobody knows what became of these."""
        link.close()
        for partition, batch in sendings:
            if batch in partition.flight.open:
                self._again(partition, batch, link)

    def _answered(
        self, partition: PartitionQueue, batch: Batch, link: LeaderConnection, answer: PartAnswer
    ) -> None:
        behind = bool(partition.flight.failed)
        kind, expected, moved = meaning_of(answer, batch.sealed, behind=behind)
        if kind in (Kind.STORED, Kind.DUPLICATE):
            offset = answer.offset if answer.code == 0 else -1
            if partition.succeeded(batch, offset, duplicate=kind is Kind.DUPLICATE):
                self._turn_back(partition)
            return
        self._metrics.refusals[answer.code] += 1
        if moved:
            self._links.refresh()
        if kind is Kind.CUT:
            partition.cut(batch, expected)
        if kind in (Kind.CUT, Kind.BEHIND, Kind.AGAIN):
            self._again(partition, batch, link, rest=kind is Kind.AGAIN)
        else:
            self._final(partition, batch, kind, answer)

    def _final(
        self, partition: PartitionQueue, batch: Batch, kind: Kind, answer: PartAnswer
    ) -> None:
        """The server says that this batch will never be stored. All that waits fails with it."""
        text = f"{partition}: error {answer.code}: {answer.message or kind.value}"
        if kind is Kind.FENCED:
            self._host.end(FencedError(text), FencedError(text))
            return
        if kind is Kind.REFUSED and batch.sends == 1:
            # One that was sent before may have been stored then, whatever is said of it now.
            partition.fail_refused(batch, ProducerError(text))
        ended = LeaseEndedError if kind is Kind.ENDED else SessionEndedError
        self._host.end(OutcomeUnknownError(text), ended(text))

    def _again(
        self, partition: PartitionQueue, batch: Batch, link: LeaderConnection, *, rest: bool = True
    ) -> None:
        """Send a batch again, and whatever was sent behind it.

        Parameters:
            rest: wait a little before.
        """
        if self._settings.monotonic:
            # Nothing behind an error is judged on a connection: numbers with holes would let it in.
            link.close()
        # What fails behind another one counts as one failure with it.
        partition.failures += rest and not partition.flight.failed
        if partition.flight.fail(batch):
            self._turn_back(partition)

    def _turn_back(self, partition: PartitionQueue) -> None:
        """All that was in flight has its answer: send again what failed."""
        if partition.failures:
            partition.resting = True
            wait = self._links.backoff(partition.failures)
            self._host.loop.call_later(wait, self._rested, partition)
        else:
            self.wake(partition)

    def _rested(self, partition: PartitionQueue) -> None:
        partition.resting = False
        self.wake(partition)
