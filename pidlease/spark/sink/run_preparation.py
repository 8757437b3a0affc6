"""Prepares a run: leases names at its start and as its source grows, and checks the destination.

The destination's log decides which rows are stored; the checkpoint says which must be.
"""

import logging
import secrets
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from pidlease.client.lease_client import LeaseClient
from pidlease.copier.cluster_pair import ClusterConnection
from pidlease.copier.errors import CopyError
from pidlease.copier.resume_position import last_in_log
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.offset_requests import EARLIEST, LATEST
from pidlease.spark.errors import NoLeaseError, SinkError
from pidlease.spark.partition_offsets import OffsetRange
from pidlease.spark.sink.name_leases import NameLease, NameLeases, ending_soon
from pidlease.spark.sink.run_state import Chain, RunState, SourceProducer
from pidlease.spark.sink.settings import SinkSettings
from pidlease.spark.sink.spark_checkpoint import MicroBatch

_log = logging.getLogger(__name__)
_EMPTY: Final = Chain(0, 0)
#: A renewal may fail: the next micro-batch tries again.
_RENEWAL_S: Final = 5.0
#: What to do if the destination has less than the checkpoint.
_RESTORE: Final = (
    "It was cut or recreated, or lost records: restore it, or write to a new topic with a new"
    " checkpoint"
)


class RunPreparation:
    """Prepares runs at the destination.

    Parameters:
        leases: a client of the destination's HTTP port.
    """

    def __init__(
        self, settings: SinkSettings, cluster: ClusterConnection, leases: LeaseClient
    ) -> None:
        self._settings: Final = settings
        self._cluster: Final = cluster
        self._leases: Final = leases
        self._logs: Final = _DestinationLogs(settings, cluster)

    # ------------------------------------------------------------------ before the start

    async def prepare(
        self, earlier: Sequence[RunState], query: Mapping[str, Any], *, spread: bool
    ) -> RunState:
        """Return the state that a run begins with, and fence all earlier runs.

        Parameters:
            earlier: states of earlier runs, the newest first.
            query: what the query does.
            spread: whether its rows name their destination partition.

        Raises:
            SinkError: the run cannot begin.
        """
        query = {**query, "cluster": self._cluster.cluster_id}
        if not earlier:
            name = f"spark/{secrets.token_hex(8)}"
            return RunState(name, -1, -1, "", query, spread, {}, {})
        before = earlier[0]
        self._check_same(before, query, spread=spread)
        state = replace(before, prepared=-1)
        topics = {each.topic for each in state.ends}
        if missing := topics - (await self._cluster.topics()).keys():
            raise SinkError(
                f"the checkpoint is ahead of the destination, which has no topic {min(missing)} any"
                f" more. {_RESTORE}"
            )
        for topic in topics:
            await self._cluster.check_judged(topic)
        if spread:
            state = await self._with_partitions(state, topics, earlier)
        await self._logs.ranges(state)  # a run that is refused for its logs fences no other
        wanted = {source: self._destinations(state, source) for source in state.sources}
        leased = await self._names(state).grant(wanted)
        old_highs = await self._logs.last_of_old_pids(state, leased)
        for source, lease in leased.items():
            known = state.sources[source]
            chains = {
                destination: _resumed(
                    source, destination, known, lease, old_highs.get((destination, known.pid), -1)
                )
                for destination in lease.leases
            }
            state = state.with_source(source, _with_lease(known, lease, chains))
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
        self, state: RunState, batch: MicroBatch, earlier: Sequence[RunState] = ()
    ) -> RunState:
        """Return the state with the source partitions that are new in a micro-batch.

        Parameters:
            earlier: states of earlier runs, the newest first: a run that was replaced may have
                grown in its last moments.

        Raises:
            SinkError: their destinations cannot be written to.
        """
        new = sorted(batch.ranges.keys() - state.sources.keys())
        if not new:
            return state
        topics: dict[str, int] = {}
        for source in new:
            topic = self._settings.renamed(source.topic)
            topics[topic] = max(topics.get(topic, 0), source.partition + 1)
        for topic, partitions in topics.items():
            # If rows have a column partition, the number of partitions is unknown: at least one.
            await self._cluster.provide(topic, 1 if state.spread else partitions)
        state = await self._with_partitions(state, topics, earlier)
        wanted = {source: self._destinations(state, source) for source in new}
        for source, lease in (await self._names(state).grant(wanted)).items():
            known = next(
                (old.sources[source] for old in earlier
                 if old.name == state.name and source in old.sources),
                SourceProducer(lease.pid, lease.generation, 0, 0),
            )  # fmt: skip
            chains = {
                destination: _resumed(source, destination, known, lease, -1)
                for destination in lease.leases
            }
            if known.pid != lease.pid or (
                not known.granted_ms and any(chain != _EMPTY for chain in chains.values())
            ):
                raise SinkError(
                    f"rows of {source} of the source were written under this checkpoint's name, but"
                    " the checkpoint does not know that: it was restored from a backup, or copied."
                    " Begin with a new checkpoint and a new topic"
                )
            state = state.with_source(source, _with_lease(known, lease, chains))
        return state

    async def _with_partitions(
        self, state: RunState, topics: Collection[str], earlier: Sequence[RunState]
    ) -> RunState:
        """Return the state with all partitions that some destination topics have by now.

        Parameters:
            earlier: states of earlier runs, the newest first. A partition that is in one of them
                may have records of this query.

        Raises:
            SinkError: a new one has records that this query did not write.
        """
        ends = dict(state.ends)
        known = {
            destination: end
            for old in reversed(earlier)
            if old.name == state.name
            for destination, end in old.ends.items()
        }
        for topic in topics:
            for number in range(await self._cluster.partitions(topic)):
                destination = TopicPartition(topic, number)
                if destination in ends:
                    continue
                if destination in known:
                    ends[destination] = known[destination]
                    continue
                has_records, end = await self._cluster.reader.records_until(destination)
                if has_records and not self._settings.append:
                    raise SinkError(
                        f"{destination} of the destination has records that this checkpoint does"
                        " not know: another query's, or this query's, if its checkpoint was"
                        " deleted; then every row would be stored twice. Choose a new topic, or"
                        " give option append to write everything after them"
                    )
                ends[destination] = end
        return replace(state, ends=ends)

    def _destinations(self, state: RunState, source: TopicPartition) -> list[TopicPartition]:
        """Return the destination partitions of a source partition."""
        topic = self._settings.renamed(source.topic)
        if not state.spread:
            return [TopicPartition(topic, source.partition)]
        return [destination for destination in state.ends if destination.topic == topic]

    # ------------------------------------------------------------------ as leases end

    async def renew(self, state: RunState) -> RunState:
        """Return the state with the leases renewed that are about to end, as far as possible.

        Call it before a micro-batch, when nothing but abandoned task attempts is in flight. Without
        a renewal the leases may last for this micro-batch; if not, its tasks fail.

        Raises:
            SinkFencedError: another run has taken over.
        """
        ending = ending_soon(state.sources, int(time.time() * 1000))
        names = NameLeases(self._leases, state.name, _RENEWAL_S)
        try:
            async for granted in names.renew(ending):
                for source, lease in granted.items():
                    state = state.with_source(source, _renewed(state.sources[source], lease))
        except NoLeaseError as error:
            _log.warning("leases are not renewed yet: %s", error)
        return state

    def _names(self, state: RunState) -> NameLeases:
        return NameLeases(self._leases, state.name, self._settings.delivery_timeout_ms / 1000)


def _renewed(known: SourceProducer, lease: NameLease) -> SourceProducer:
    chains = {
        destination: chain if lease.pid == known.pid else Chain(0, chain.stored)
        for destination, chain in known.chains.items()
    }
    return _with_lease(known, lease, chains)


def _with_lease(
    known: SourceProducer, lease: NameLease, chains: Mapping[TopicPartition, Chain]
) -> SourceProducer:
    return replace(
        known,
        pid=lease.pid,
        generation=lease.generation,
        granted_ms=lease.granted_ms,
        expire_ms=lease.expire_ms,
        chains=chains,
    )


def _resumed(
    source: TopicPartition,
    destination: TopicPartition,
    known: SourceProducer,
    leased: NameLease,
    old_high: int,
) -> Chain:
    """Return where a chain resumes.

    Parameters:
        known: what the last run has committed.
        old_high: the last sequence number that the destination's log has under the name's old PID,
            if the PID has changed; -1: none.

    Raises:
        SinkError: the destination has lost what was committed.
    """
    lease, saved = leased.leases[destination], known.chains.get(destination, _EMPTY)
    first, resume_at = lease.sequence_number, lease.resume_at
    stored = max(first, resume_at, old_high + 1)
    same = leased.pid == known.pid
    if first == 0 and (saved.first == 0 or not same):
        # Nothing is stored under this PID; the server may have forgotten the old one.
        return Chain(0, max(stored, saved.stored))
    if stored < saved.stored:
        raise SinkError(
            f"the checkpoint is ahead of the destination: of {source} of the source everything up"
            f" to number {saved.stored - 1} was written to {destination}, which has only what comes"
            f" before {stored}. {_RESTORE}"
        )
    return Chain(first, stored)


class _DestinationLogs:
    """Compares the destination's logs with a state."""

    def __init__(self, settings: SinkSettings, cluster: ClusterConnection) -> None:
        self._settings: Final = settings
        self._cluster: Final = cluster

    async def ranges(self, state: RunState) -> dict[TopicPartition, OffsetRange]:
        """Return the offsets that each destination partition has.

        Raises:
            SinkError: a log is shorter than it was.
        """
        ranges: dict[TopicPartition, OffsetRange] = {}
        for destination, offset in state.ends.items():
            start = await self._cluster.reader.offset(destination, EARLIEST)
            end = await self._cluster.reader.offset(destination, LATEST)
            if end < offset:
                raise SinkError(
                    f"the checkpoint is ahead of the destination: {destination} ends at {end}, and"
                    f" was written up to {offset}. {_RESTORE}"
                )
            ranges[destination] = OffsetRange(start, end)
        return ranges

    async def last_of_old_pids(
        self, state: RunState, leased: Mapping[TopicPartition, NameLease]
    ) -> dict[tuple[TopicPartition, int], int]:
        """Find the last sequence number of each old PID, for names with a new PID.

        A PID that its name has lost writes no more, so the result is final. Until the name was
        granted its batches could land, so the logs are searched up to the ends that they have now.

        Returns:
            Sequence numbers by destination partition and PID.

        Raises:
            SinkError: the log no longer reaches back far enough, or is shorter than it was; or
                other PIDs have written since, which may be of later runs that this state does not
                contain.
        """
        changed = {
            source: state.sources[source]
            for source, lease in leased.items()
            if state.sources[source].pid != lease.pid
        }
        old = {each.pid for each in changed.values()}
        last: dict[tuple[TopicPartition, int], int] = {}
        if not old:
            return last
        # A lease raises the generation of a name by one; with a new PID by two.
        complete = all(
            leased[source].generation == each.generation + 2 for source, each in changed.items()
        )
        ours = {each.pid for each in leased.values()}
        ours |= {each.pid for each in state.sources.values()}
        for destination, (start, end) in (await self.ranges(state)).items():
            offset = state.ends[destination]
            if start > offset:
                self._doubt(
                    f"the lease of PID {min(old)} has ended, and {destination} of the destination"
                    f" begins at {start}, after {offset}: it is unknown whether the last rows that"
                    " were sent were stored"
                )
            searched = max(start, offset), end
            highs = await last_in_log(self._cluster.reader, destination, searched)
            if not complete and (others := {pid for pid in highs if pid > 0} - ours):
                self._doubt(
                    f"the lease of PID {min(old)} has ended, and its name was granted to others"
                    f" since, of which this checkpoint does not know; {destination} has rows of PID"
                    f" {min(others)}, which may be one of them: was the checkpoint restored from a"
                    " backup?"
                )
            last |= {(destination, pid): high for pid, high in highs.items()}
        return last

    def _doubt(self, problem: str) -> None:
        """Refuse, unless option trustCheckpoint is set.

        Raises:
            SinkError: it is not set.
        """
        if not self._settings.trust:
            raise SinkError(
                f"{problem}. Compare both sides, and give option trustCheckpoint to resume from"
                " what the checkpoint says"
            )
        _log.warning("%s; the checkpoint is trusted", problem)


@asynccontextmanager
async def connect(settings: SinkSettings) -> AsyncIterator[RunPreparation]:
    """Connect to the destination.

    Raises:
        SinkError: the connection, or a request in the block, has failed.
    """
    producer = settings.producer()
    servers = settings.bootstrap_servers.split(",")
    timeout_s = settings.request_timeout_ms / 1000
    async with LeaseClient.of(producer, timeout_s) as leases:
        cluster = ClusterConnection(
            "the destination", servers, settings, producer, only_pidlease=True
        )
        try:
            await cluster.start()
            leases.cluster_id = cluster.cluster_id
            yield RunPreparation(settings, cluster, leases)
        except CopyError as error:
            raise SinkError(str(error)) from None
        finally:
            await cluster.close()
