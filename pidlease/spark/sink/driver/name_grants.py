"""The names of a query's source partitions, granted for a run.

A grant fences every run before, and tells H of each partition of the destination. Tasks are granted
nothing: attempts of one task must not fence one another.
"""

import asyncio
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

from pidlease.client.errors import LeaseRefusedError, LeaseUnavailableError
from pidlease.client.lease_client import Answer, LeaseClient
from pidlease.client.lease_requests import TAKEN
from pidlease.core.lease import NO_PID, Lease, LeaseWanted
from pidlease.http_api.lease_messages import LEASES_MAX
from pidlease.spark.errors import SinkError, SinkFencedError
from pidlease.spark.sink.run_state import Place, Source

_REST_S: Final = 0.5
#: Topics of Kafka's have up to 249 bytes, and names of producers up to 256.
_TOPIC_MAX: Final = 200
#: Names of a request: each is a write at the coordinator, and they are made one by one.
_NAMES_MAX: Final = 100
#: The part of a lease before whose end the next one is leased.
_RENEW_BEFORE: Final = 0.2


class NoLeaseError(SinkError):
    """No lease can be had now."""


class Grant(NamedTuple):
    """What a name was granted.

    Attributes:
        pid, generation: to be used.
        granted_ms: when, and
        expire_ms: until when, by this machine's clock; -1: not known.
        leases: by the destination's partition.
    """

    pid: int
    generation: int
    granted_ms: int
    expire_ms: int
    leases: Mapping[Place, Lease]


def producer_name(prefix: str, place: Place) -> str:
    """The name of a source partition as a producer."""
    topic = place.topic
    if len(topic) > _TOPIC_MAX:
        topic = hashlib.sha256(topic.encode()).hexdigest()
    return f"{prefix}/{topic}/{place.partition}"


class NameGrants:
    """Asks for leases until there is an answer.

    Parameters:
        client: who is asked.
        prefix: what names begin with.
        seconds: how long a server that cannot answer is asked again.
    """

    def __init__(self, client: LeaseClient, prefix: str, seconds: float) -> None:
        self._client: Final = client
        self._prefix: Final = prefix
        self._seconds: Final = seconds

    async def grant(self, wanted: Mapping[Place, Sequence[Place]]) -> dict[Place, Grant]:
        """Take names over from whoever has them.

        Parameters:
            wanted: for each of the source's partitions those it may write to.

        Raises:
            SinkError: they cannot be had.
        """
        asks = {source: self._asks(source, places) for source, places in wanted.items()}
        return await self._granted(asks)

    async def renew(self, held: Mapping[Place, Source]) -> dict[Place, Grant]:
        """Take the next PID for names that this run has, and nobody else since.

        Parameters:
            held: by the source's partition; with each partition of the destination in its chains.

        Raises:
            SinkFencedError: another run has taken over.
            SinkError: they cannot be had.
        """
        asks = {
            source: self._asks(source, list(known.chains), known) for source, known in held.items()
        }
        return await self._granted(asks)

    def _asks(
        self, source: Place, places: Sequence[Place], held: Source | None = None
    ) -> list[LeaseWanted]:
        if not 1 <= len(places) <= LEASES_MAX:
            # In one request, for each request raises the generation.
            raise SinkError(f"{source} may go to {len(places)} partitions; 1 to {LEASES_MAX}")
        name = producer_name(self._prefix, source)
        if held is None:
            return [LeaseWanted(*place, NO_PID, name) for place in places]
        return [
            LeaseWanted(*place, held.pid, name, renew=True, generation=held.generation)
            for place in places
        ]

    async def _granted(self, asks: Mapping[Place, list[LeaseWanted]]) -> dict[Place, Grant]:
        found: dict[Place, Grant] = {}
        for sources in _packed(asks):
            flat = [ask for source in sources for ask in asks[source]]
            granted_ms = int(time.time() * 1000)
            leases = iter(await self._lease(flat))
            for source in sources:
                own = [next(leases) for _ in asks[source]]
                left_s = own[0].ends_at - time.monotonic()  # by our clock, not the server's
                expire_ms = int(time.time() * 1000 + left_s * 1000) if left_s < inf else -1
                found[source] = Grant(
                    own[0].pid, own[0].generation, granted_ms, expire_ms,
                    {Place(each.topic, each.partition): each for each in own},
                )  # fmt: skip
        return found

    async def _lease(self, asks: Sequence[LeaseWanted]) -> list[Lease]:
        """All of these, or none.

        Raises:
            SinkError: one cannot be had.
        """
        give_up = time.monotonic() + self._seconds
        while True:
            answers: Sequence[Answer]
            try:
                answers = await self._client.lease_pids(asks)
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


def _packed(asks: Mapping[Place, Sequence[LeaseWanted]]) -> Iterator[list[Place]]:
    """Sources whose asks fit one request; those of one are never parted."""
    sources: list[Place] = []
    size = 0
    for source, own in asks.items():
        if sources and (size + len(own) > LEASES_MAX or len(sources) >= _NAMES_MAX):
            yield sources
            sources, size = [], 0
        sources.append(source)
        size += len(own)
    if sources:
        yield sources


def near_their_end(sources: Mapping[Place, Source], now_ms: int) -> dict[Place, Source]:
    """Those whose lease is about to end."""
    return {place: each for place, each in sources.items() if _is_near(each, now_ms)}


def _is_near(source: Source, now_ms: int) -> bool:
    length = source.expire_ms - source.granted_ms
    return source.expire_ms >= 0 and now_ms > source.expire_ms - length * _RENEW_BEFORE
