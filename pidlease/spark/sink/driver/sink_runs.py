"""A run of a query: what is granted before it starts, and as the source grows."""

import secrets
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple

from aiokafka.structs import TopicPartition

from pidlease.client.lease_client import LeaseClient
from pidlease.copier.cluster_pair import ClusterConnection
from pidlease.copier.cluster_reader import LATEST
from pidlease.copier.errors import CopyError
from pidlease.spark.errors import SinkError
from pidlease.spark.sink.driver.log_ends import RESTORE, LogEnds
from pidlease.spark.sink.driver.name_grants import Grant, NameGrants, near_their_end
from pidlease.spark.sink.driver.spark_checkpoint import MicroBatch
from pidlease.spark.sink.run_state import Chain, Place, RunState, Source
from pidlease.spark.sink.settings import SinkSettings

_NOTHING: Final = Chain(0, 0)
#: There is time left: the next micro-batch asks again.
_RENEWAL_S: Final = 5.0


class _Patience(NamedTuple):
    """See `clusters.Patience`."""

    request_timeout_ms: int
    give_up_ms: float


class Runs:
    """What the driver asks the destination.

    Parameters:
        settings: the sink's.
        cluster: the destination, reached.
        leases: its HTTP port.
    """

    def __init__(
        self, settings: SinkSettings, cluster: ClusterConnection, leases: LeaseClient
    ) -> None:
        self._settings: Final = settings
        self._cluster: Final = cluster
        self._leases: Final = leases
        self._ends: Final = LogEnds(settings, cluster)

    # ------------------------------------------------------------------ before the start

    async def prepare(
        self, before: RunState | None, query: Mapping[str, Any], *, spread: bool
    ) -> RunState:
        """The state that a run begins with; every run before is fenced from then on.

        Parameters:
            before: the last run's; None: there was none.
            query: what the query does.
            spread: whether its rows say which partition they go to.

        Raises:
            SinkError: it cannot begin.
        """
        query = {**query, "cluster": self._cluster.cluster_id}
        if before is None:
            name = f"spark/{secrets.token_hex(8)}"
            return RunState(name, -1, -1, "", query, spread, {}, {})
        self._check_same(before, query, spread=spread)
        state = replace(before, prepared=-1)
        topics = {each.topic for each in state.ends}
        if missing := topics - await self._cluster.topics():
            raise SinkError(
                f"the checkpoint is ahead of the destination, which has no topic {min(missing)} any"
                f" more. {RESTORE}"
            )
        for topic in topics:
            await self._cluster.check_judged(topic)
        if spread:
            state = await self._with_places(state, topics)
        logs = await self._ends.of(state)
        wanted = {source: self._places(state, source) for source in state.sources}
        grants = await self._granting(state).grant(wanted)
        found = await self._ends.behind(state, grants, logs)
        for place, grant in grants.items():
            known = state.sources[place]
            chains = {
                there: _resumed(place, there, known, grant, found.get((there, known.pid), -1))
                for there in grant.leases
            }
            state = state.with_source(place, _granted(known, grant, chains))
        return state

    def _check_same(self, before: RunState, query: Mapping[str, Any], *, spread: bool) -> None:
        different = [
            f"{key}: {before.query.get(key)!r}, now {value!r}"
            for key, value in query.items()
            if before.query.get(key) != value
        ]
        if before.spread != spread:
            different.append("whether there is a column partition of the destination")
        if different:
            raise SinkError(
                f"the checkpoint is another query's ({'; '.join(different)}); choose a new"
                " checkpointLocation, and a new topic"
            )

    # ------------------------------------------------------------------ as the source grows

    async def grow(
        self, state: RunState, batch: MicroBatch, before: Sequence[RunState] = ()
    ) -> RunState:
        """The state with the partitions of the source that a micro-batch has and it has not.

        Parameters:
            before: what runs before say, the newest first: one that was replaced may have grown
                in its last moments.

        Raises:
            SinkError: they cannot be written to.
        """
        new = sorted(batch.ends.keys() - state.sources.keys())
        if not new:
            return state
        topics: dict[str, int] = {}
        for place in new:
            topic = self._settings.renamed(place.topic)
            topics[topic] = max(topics.get(topic, 0), place.partition + 1)
        for topic, partitions in topics.items():
            # With a column of their own, rows say how many are wanted; one is the least.
            await self._cluster.provide(topic, 1 if state.spread else partitions)
        state = await self._with_places(state, topics)
        wanted = {place: self._places(state, place) for place in new}
        for place, grant in (await self._granting(state).grant(wanted)).items():
            known = next(
                (old.sources[place] for old in before
                 if old.name == state.name and place in old.sources),
                Source(grant.pid, grant.generation, 0, 0),
            )  # fmt: skip
            chains = {there: _resumed(place, there, known, grant, -1) for there in grant.leases}
            if known.pid != grant.pid or (
                not known.granted_ms and any(chain != _NOTHING for chain in chains.values())
            ):
                raise SinkError(
                    f"{place} of the source has been written to under the name of this checkpoint,"
                    " which knows nothing of it: it was restored from a backup, or copied. Begin"
                    " with a new checkpoint and a new topic"
                )
            state = state.with_source(place, _granted(known, grant, chains))
        return state

    async def _with_places(self, state: RunState, topics: Collection[str]) -> RunState:
        """The state with all partitions that some topics of the destination have by now.

        Raises:
            SinkError: one has records that this query did not write.
        """
        ends = dict(state.ends)
        for topic in topics:
            for number in range(await self._cluster.partitions(topic)):
                place = Place(topic, number)
                if place in ends:
                    continue
                end = await self._cluster.reader.offset(TopicPartition(*place), LATEST)
                if end and not self._settings.append:
                    raise SinkError(
                        f"{place} of the destination has records already, of which this checkpoint"
                        " knows nothing: they are another query's, or this one's, whose checkpoint"
                        " was deleted; then every row would be there twice. Choose a new topic, or"
                        " give option append to write everything behind them"
                    )
                ends[place] = end
        return replace(state, ends=ends)

    def _places(self, state: RunState, source: Place) -> list[Place]:
        """Where rows of a source partition may go."""
        topic = self._settings.renamed(source.topic)
        if not state.spread:
            return [Place(topic, source.partition)]
        return [place for place in state.ends if place.topic == topic]

    # ------------------------------------------------------------------ as leases end

    async def renew(self, state: RunState) -> RunState:
        """The state with the next PIDs for names whose lease is about to end.

        Before a micro-batch nothing is under way, but for attempts that nobody waits for.

        Raises:
            SinkFencedError: another run has taken over.
            NoLeaseError: they cannot be had now.
        """
        ending = near_their_end(state.sources, int(time.time() * 1000))
        granting = NameGrants(self._leases, state.name, _RENEWAL_S)
        for place, grant in (await granting.renew(ending)).items():
            known = state.sources[place]
            chains = {
                there: chain if grant.pid == known.pid else Chain(0, chain.stored)
                for there, chain in known.chains.items()
            }
            state = state.with_source(place, _granted(known, grant, chains))
        return state

    def _granting(self, state: RunState) -> NameGrants:
        return NameGrants(self._leases, state.name, self._settings.delivery_timeout_ms / 1000)


def _granted(known: Source, grant: Grant, chains: Mapping[Place, Chain]) -> Source:
    return replace(
        known,
        pid=grant.pid,
        generation=grant.generation,
        granted_ms=grant.granted_ms,
        expire_ms=grant.expire_ms,
        chains=chains,
    )


def _resumed(source: Place, there: Place, known: Source, grant: Grant, found: int) -> Chain:
    """Where a chain goes on.

    Parameters:
        known: what the last run committed.
        grant: what this one was granted.
        found: the last number that the destination's log has by the PID before, where that is
            another one; -1: none.

    Raises:
        SinkError: the destination has lost what was committed.
    """
    lease, saved = grant.leases[there], known.chains.get(there, _NOTHING)
    first, resumed = lease.sequence_number, lease.resume_at
    stored = max(first, resumed, found + 1)
    same = grant.pid == known.pid
    if first == 0 and (saved.first == 0 or not same):
        # Nothing stands there under this PID; what came before it, the server may have forgotten.
        return Chain(0, max(stored, saved.stored))
    if stored < saved.stored:
        raise SinkError(
            f"the checkpoint is ahead of the destination: of {source} of the source everything up"
            f" to number {saved.stored - 1} was written to {there}, which has only what comes"
            f" before {stored}. {RESTORE}"
        )
    return Chain(first, stored)


@asynccontextmanager
async def reached(settings: SinkSettings) -> AsyncIterator[Runs]:
    """Reach the destination.

    Raises:
        SinkError: it cannot be, or what is done there fails.
    """
    producer = settings.producer()
    security = {
        "security_protocol": producer.security_protocol, "ssl_context": producer.ssl_context,
    }  # fmt: skip
    patience = _Patience(settings.request_timeout_ms, settings.delivery_timeout_ms)
    servers = settings.bootstrap_servers.split(",")
    timeout_s = settings.request_timeout_ms / 1000
    async with LeaseClient(settings.leases, timeout_s=timeout_s) as leases:
        cluster = ClusterConnection("the destination", servers, patience, security)
        try:
            await cluster.start()
            yield Runs(settings, cluster, leases)
        except CopyError as error:
            raise SinkError(str(error)) from None
        finally:
            await cluster.close()
