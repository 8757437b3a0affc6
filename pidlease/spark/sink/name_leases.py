"""Leases by name for a query's source partitions; the driver takes them for a run.

A lease fences all earlier runs, and carries the high sequence of each destination partition. Tasks
lease nothing: attempts of one task must not fence one another.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

from pidlease.client.errors import LeaseRefusedError, LeaseUnavailableError
from pidlease.client.lease_client import Answer, LeaseClient
from pidlease.client.lease_requests import TAKEN
from pidlease.core.lease import NO_PID, Lease, LeaseWanted
from pidlease.core.topic_partition import TopicPartition
from pidlease.http_api.lease_messages import LEASES_MAX
from pidlease.spark.errors import NoLeaseError, SinkError, SinkFencedError
from pidlease.spark.sink.run_state import SourceProducer

_REST_S: Final = 0.5
#: A topic's name has up to 249 bytes, a producer's name up to 256; a longer topic is hashed.
_TOPIC_MAX: Final = 200
#: The most names of a request: each needs a write to the coordinator, one after the other.
_NAMES_MAX: Final = 100
#: A lease is renewed when this part of it is left.
_RENEW_BEFORE: Final = 0.2


class NameLease(NamedTuple):
    """The lease of a name on all its destination partitions.

    Attributes:
        pid: the same in all of `leases`, like `generation`.
        granted_ms: when it began, in ms since 1970 by this machine's clock.
        expire_ms: when it ends by the same clock; -1: unknown.
        leases: by destination partition.
    """

    pid: int
    generation: int
    granted_ms: int
    expire_ms: int
    leases: Mapping[TopicPartition, Lease]


def producer_name(prefix: str, source: TopicPartition) -> str:
    """Return the producer name of a source partition."""
    topic = source.topic
    if len(topic) > _TOPIC_MAX:
        topic = hashlib.sha256(topic.encode()).hexdigest()
    return f"{prefix}/{topic}/{source.partition}"


class NameLeases:
    """Requests leases, and retries while the server is unavailable.

    Parameters:
        prefix: the first part of all names.
        seconds: how long to retry.
    """

    def __init__(self, client: LeaseClient, prefix: str, seconds: float) -> None:
        self._client: Final = client
        self._prefix: Final = prefix
        self._seconds: Final = seconds

    async def grant(
        self, wanted: Mapping[TopicPartition, Sequence[TopicPartition]]
    ) -> dict[TopicPartition, NameLease]:
        """Take over names, whichever run holds them.

        Parameters:
            wanted: destination partitions by source partition.

        Raises:
            SinkError: a lease is refused or unavailable.
        """
        requests = {
            source: self._requests(source, destinations) for source, destinations in wanted.items()
        }
        granted: dict[TopicPartition, NameLease] = {}
        async for some in self._granted(requests):
            granted |= some
        return granted

    def renew(
        self, held: Mapping[TopicPartition, SourceProducer]
    ) -> AsyncIterator[dict[TopicPartition, NameLease]]:
        """Renew names that this run still holds; what was granted before an error counts.

        Parameters:
            held: by source partition; its chains name all destination partitions.

        Raises:
            SinkFencedError: another run has taken over.
            SinkError: a lease is refused or unavailable.
        """
        requests = {
            source: self._requests(source, list(known.chains), known)
            for source, known in held.items()
        }
        return self._granted(requests)

    def _requests(
        self,
        source: TopicPartition,
        destinations: Sequence[TopicPartition],
        held: SourceProducer | None = None,
    ) -> list[LeaseWanted]:
        if not 1 <= len(destinations) <= LEASES_MAX:
            # They must fit one request: each request raises the generation.
            raise SinkError(f"{source} may go to {len(destinations)} partitions; 1 to {LEASES_MAX}")
        name = producer_name(self._prefix, source)
        if held is None:
            return [LeaseWanted(*destination, NO_PID, name) for destination in destinations]
        return [
            LeaseWanted(*destination, held.pid, name, renew=True, generation=held.generation)
            for destination in destinations
        ]

    async def _granted(
        self, requests: Mapping[TopicPartition, list[LeaseWanted]]
    ) -> AsyncIterator[dict[TopicPartition, NameLease]]:
        for sources in _packed(requests):
            flat = [each for source in sources for each in requests[source]]
            granted_ms = int(time.time() * 1000)
            leases = iter(await self._lease(flat))
            granted: dict[TopicPartition, NameLease] = {}
            for source in sources:
                own = [next(leases) for _ in requests[source]]
                left_s = own[0].ends_at - time.monotonic()  # by our clock, not the server's
                expire_ms = int(time.time() * 1000 + left_s * 1000) if left_s < inf else -1
                granted[source] = NameLease(
                    own[0].pid, own[0].generation, granted_ms, expire_ms,
                    {TopicPartition(each.topic, each.partition): each for each in own},
                )  # fmt: skip
            yield granted

    async def _lease(self, requests: Sequence[LeaseWanted]) -> list[Lease]:
        """Take all of these leases, or none.

        Raises:
            SinkError: one is refused or unavailable.
        """
        give_up = time.monotonic() + self._seconds
        while True:
            answers: Sequence[Answer]
            try:
                answers = await self._client.lease_pids(requests)
            except (LeaseRefusedError, LeaseUnavailableError) as error:
                answers = [error]
            refused = next((each for each in answers if isinstance(each, LeaseRefusedError)), None)
            if refused is not None:
                raise _refusal(refused)
            late = next((e for e in answers if isinstance(e, LeaseUnavailableError)), None)
            if late is None:
                return [each for each in answers if isinstance(each, Lease)]
            if time.monotonic() > give_up:
                raise NoLeaseError(f"{late}; is option leases the URL of pidlease's HTTP port?")
            await asyncio.sleep(_REST_S)


def _refusal(error: LeaseRefusedError) -> SinkError:
    if error.status == TAKEN:
        return SinkFencedError(f"another run of this query has taken over: {error}")
    return SinkError(str(error))


def _packed(
    requests: Mapping[TopicPartition, Sequence[LeaseWanted]],
) -> Iterator[list[TopicPartition]]:
    """Group sources so that each group fits one request; a source is never split."""
    sources: list[TopicPartition] = []
    size = 0
    for source, own in requests.items():
        if sources and (size + len(own) > LEASES_MAX or len(sources) >= _NAMES_MAX):
            yield sources
            sources, size = [], 0
        sources.append(source)
        size += len(own)
    if sources:
        yield sources


def ending_soon(
    sources: Mapping[TopicPartition, SourceProducer], now_ms: int
) -> dict[TopicPartition, SourceProducer]:
    """Select the sources with a lease that is about to end."""
    return {source: each for source, each in sources.items() if _is_near(each, now_ms)}


def _is_near(source: SourceProducer, now_ms: int) -> bool:
    length = source.expire_ms - source.granted_ms
    return source.expire_ms >= 0 and now_ms > source.expire_ms - length * _RENEW_BEFORE
