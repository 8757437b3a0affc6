"""Leases: PIDs from blocks of the sequence, and their expiry.

A lease changes neither the log nor a producer's state. A leased PID that never wrote needs no
state: its block is recorded with its time, and a young block proves that a producer without state
starts at 0. The lease table only bounds the number of leases.
"""

import asyncio
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import structlog

from pidlease.coordination.pid_sequence import PidSequence, SequenceError
from pidlease.core.idempotency_keys import is_of_key
from pidlease.core.judge import Age
from pidlease.core.packed import arrival_of
from pidlease.core.pid import POLICY_SHIFT, Policy, make_pid, number_of, policy_of
from pidlease.core.producer_names import ProducerNames, is_stand_in
from pidlease.core.ring import LeaseRing, RingFullError
from pidlease.engine.leases.lease_owners import LeaseOwners
from pidlease.engine.leases.lease_table import LeasedPartition, LeaseTable
from pidlease.engine.leases.pid_blocks import PidBlocks
from pidlease.engine.recent_events import RecentEvents
from pidlease.storage.errors import LogError
from pidlease.storage.io_pool import IoPool
from pidlease.storage.snapshots import LeaseRow, LeaseRows

#: Numbers from here on are not from the sequence: they belong to stand-in PIDs.
_NUMBERS_MAX: Final = 1 << (POLICY_SHIFT - 1)
#: PIDs handled before other tasks can run.
_AT_ONCE: Final = 500
#: Why leases are refused.
_NO_BLOCK: Final = "no block"
_RING_FULL: Final = "ring full"
_KEYS_FULL: Final = "keys full"
_USER_BOUND: Final = "user's bound"

#: Clocks of servers differ by less, in ms.
_SKEW_MS: Final = 300_000

_log = structlog.get_logger(__name__)


class NoPidError(Exception):
    """No PID can be leased now: there is no block, or the lease table is full. Try again.

    Parameters:
        why: the reason under which the refusal is counted.
        text: the error's message.
    """

    def __init__(self, why: str, text: str) -> None:
        super().__init__(text)
        self.why: Final = why


class UserBoundError(NoPidError):
    """The clients of a user lease as many PIDs as they may."""


class Leases:
    """All leases of this server.

    Parameters:
        sequence: the source of blocks.
        pool: the threads for it.
        clock_ms: the time, in ms since 1970.
        lease_ms: the length of every lease.
        capacity: the most leases at once, of idempotency keys aside.
        keys_capacity: the most idempotency keys at once.
        names: the producer ids of policy epoch; an id is removed with its lease.
        recent: gets the grants, refusals and ends of leases.
    """

    def __init__(  # noqa: PLR0913 - built in one place
        self,
        sequence: PidSequence,
        pool: IoPool,
        clock_ms: Callable[[], int],
        *,
        lease_ms: int,
        capacity: int,
        keys_capacity: int = 100_000,
        names: ProducerNames | None = None,
        recent: RecentEvents | None = None,
    ) -> None:
        self.lease_ms: Final = lease_ms
        self.ring: Final = LeaseRing(capacity)
        #: The idempotency keys; they take no slots of others, and others none of theirs.
        self.keys: Final = LeaseRing(keys_capacity)
        self.blocks: Final = PidBlocks(sequence, pool, clock_ms, lease_ms)
        self._clock_ms = clock_ms
        self._names = ProducerNames() if names is None else names
        #: The last grants, refusals and ends of leases.
        self.recent: Final = RecentEvents() if recent is None else recent
        #: Of PIDs that a name is bound to, the last generation granted: lower ones are fenced.
        self.fences: dict[int, int] = {}
        #: Whether fences are kept beyond the leases here: another server may keep a PID for longer,
        #: and this one may take over a partition with its batches.
        self.keeps_fences = False
        #: Learns what other servers have granted to names; None: there are none.
        self.read_fences: Callable[[], Awaitable[None]] | None = None
        #: The PID that the name of a PID had before.
        self.formers: dict[int, int] = {}
        #: The names of PIDs. They are kept as long as fences are: a batch under a PID of a name
        #: needs the right to the name.
        self.bound_names: dict[int, str] = {}
        #: Bounds the leases of users; None: there is no bound.
        self.owners: LeaseOwners | None = None
        self._table = LeaseTable()
        #: Leases of PIDs from blocks taken up to this time have ended: an unknown PID of them may
        #: have written, even if the clock was set back and its block looks young again.
        self._forgotten_ms = -1
        #: How many PIDs were leased, by policy.
        self.granted_by: Final[Counter[Policy]] = Counter()
        #: How many leases were refused, by reason and policy; None: a PID without a policy.
        self.refused_by: Final[Counter[tuple[str, Policy | None]]] = Counter()
        self.expired = 0

    def first_block(self) -> None:
        """Take the first block of this run. Blocks the thread; call before the listeners open.

        Raises:
            SequenceError: no block can be taken.
        """
        leased = (number_of(pid) for pid, _ in self.ring)
        # Larger numbers cannot be from a sequence, although the log has them.
        self.blocks.first(max((n for n in leased if n < _NUMBERS_MAX), default=0))

    @property
    def granted(self) -> int:
        """PIDs leased."""
        return self.granted_by.total()

    @property
    def refused(self) -> dict[str, int]:
        """Leases refused, by reason."""
        found = dict.fromkeys((_NO_BLOCK, _RING_FULL), 0)
        for (reason, _), count in self.refused_by.items():
            found[reason] = found.get(reason, 0) + count
        return found

    # ------------------------------------------------------------------ leasing

    def lease(self, policy: Policy) -> int:
        """Lease a fresh PID.

        Raises:
            NoPidError: none is available now. The caller tries again, or counts it with `refuse`.
        """
        now_ms = self._clock_ms()
        self.expire()
        if not self.blocks.prepare():
            raise NoPidError(_NO_BLOCK, "the next block of PIDs is not there yet; try again")
        if len(self.ring) >= self.ring.capacity:
            text = f"all {self.ring.capacity} lease slots are taken; try again later"
            raise NoPidError(_RING_FULL, text)
        owners = self.owners
        if owners is not None and (refusal := owners.refusal()):
            raise UserBoundError(_USER_BOUND, refusal)
        pid = make_pid(policy, self.blocks.take())
        if owners is not None:
            owners.leased(pid)
        self.ring.grant(pid, now_ms + self.lease_ms)
        self._table.put(pid, now_ms)
        self.granted_by[policy] += 1
        self.recent.leased(pid, now_ms)
        return pid

    def refuse(self, policy: Policy, error: NoPidError) -> None:
        """Count a refused lease."""
        self.refused_by[error.why, policy] += 1
        self.recent.no_pid(str(error), self._clock_ms())

    def expire_ms(self, pid: int) -> int:
        """Return when the lease of a PID ends at the earliest, in ms since 1970."""
        _, granted_ms, first_ms = self._table.get(pid) or (pid, -1, -1)
        begun_ms = max(granted_ms, first_ms)
        return (begun_ms if begun_ms >= 0 else self.blocks.ages.taken_ms(pid)) + self.lease_ms

    def age(self, pid: int, hole_ms: int) -> Age:
        """Return how old the PID's block is; blocks taken before `hole_ms` count as old.

        A lease that is kept here since its grant is as good as a young block: its state has never
        expired. So a PID that was leased late from its block, or is in long use, may still begin on
        another partition.
        """
        lease = self._table.get(pid)
        if self._table.is_other(pid):
            return Age.NEVER
        if policy_of(pid) is Policy.MONOTONIC and pid not in self.fences:
            # Monotonic PIDs have names. One without a name is a former PID with expired state: if
            # it could begin anywhere, it would store again what its successor has stored.
            return Age.NEVER
        if lease is not None and lease.granted_ms > hole_ms:
            return Age.YOUNG
        young_after_ms = max(self._clock_ms() - self.lease_ms, hole_ms, self._forgotten_ms)
        return self.blocks.ages.age(pid, young_after_ms)

    def unsure(self, pid: int) -> bool:
        """Return whether another server may have leased a PID."""
        if self.blocks.unsure(pid):
            return True
        # Only a name's fence shows that a PID of policy monotonic may begin.
        named = self.read_fences is not None and policy_of(pid) is Policy.MONOTONIC
        return named and pid not in self.fences

    async def look(self) -> None:
        """Learn which PIDs other servers have leased, by a read that begins after this call.

        Raises:
            SequenceError: the coordinator cannot be read now.
        """
        await self.blocks.look()
        if self.read_fences is not None:
            try:
                await self.read_fences()
            except LogError as error:
                raise SequenceError(str(error)) from error

    def now_ms(self) -> int:
        """Return the time by which leases end, in ms since 1970."""
        return self._clock_ms()

    def fence_until_ms(self) -> int:
        """Return until when a PID must be fenced that is fenced now, in ms since 1970.

        Its lease has ended then. With other servers, one may have begun it anew at its own start.
        """
        lease_ms = 2 * self.lease_ms + _SKEW_MS if self.keeps_fences else self.lease_ms
        return self._clock_ms() + lease_ms

    def hold(self, pid: int, granted_ms: int) -> None:
        """Keep a lease recorded in a name's binding, unless it is kept since its grant.

        Parameters:
            granted_ms: when it was granted, in ms since 1970: less than a lease length ago, so that
                none of its state can have expired.
        """
        lease = self._table.get(pid)
        if lease is None:
            self._table.put(pid, granted_ms)
            self.ring.restore(pid, granted_ms + self.lease_ms)
        elif lease.granted_ms < 0:
            self._table.put(pid, granted_ms, lease.first_ms)

    def adopt(self, pid: int, partition: LeasedPartition) -> bool:
        """Note that a PID writes to a partition for the first time; False: no slot is free."""
        now_ms = self._clock_ms()
        lease = self._table.get(pid)
        if lease is None:
            try:
                self._adopt_unknown(pid, now_ms)
            except RingFullError:
                self.refused_by[_KEYS_FULL if is_of_key(pid) else _RING_FULL, policy_of(pid)] += 1
                return False
            except UserBoundError as error:
                self.refused_by[error.why, policy_of(pid)] += 1
                return False
            self._table.put(pid, -1, now_ms)
        elif lease.first_ms < 0:
            self._table.put(pid, lease.granted_ms, now_ms)
        self._table.add_partition(pid, partition)
        return True

    def _adopt_unknown(self, pid: int, now_ms: int) -> None:
        """Take a slot for a PID that lost its own by a crash, or had expired."""
        due_ms = now_ms + self.lease_ms
        if self.blocks.ages.age(pid, now_ms - self.lease_ms) is Age.YOUNG:
            # Its slot was granted less than a lease ago: keep it, even beyond the capacity.
            self.ring.restore(pid, due_ms)
            return
        self.expire()
        owners = None if is_of_key(pid) else self.owners
        if owners is not None and (refusal := owners.refusal()):
            raise UserBoundError(_USER_BOUND, refusal)
        self._ring_of(pid).grant(pid, due_ms)
        if owners is not None:
            owners.leased(pid)

    def _ring_of(self, pid: int) -> LeaseRing:
        return self.keys if is_of_key(pid) else self.ring

    # ------------------------------------------------------------------ ending

    def expire(self) -> int:
        """End leases that are due, a bounded number at a time; return how many ended."""
        now_ms = self._clock_ms()
        self.blocks.refresh()
        gone = self.ring.expire(now_ms, self._stays_until_ms)
        gone += self.keys.expire(self._clock_ms(), self._stays_until_ms)
        for pid in gone:
            self._forgotten_ms = max(self._forgotten_ms, self.blocks.ages.taken_ms(pid))
            for partition in self._table.pop(pid):
                partition.forget(pid)
            if not self.keeps_fences:
                self.unbind(pid)
            self.recent.ended(pid, self._names.name(pid), now_ms)
            if self.owners is not None:
                self.owners.ended(pid)
            self._names.drop(pid)
        self.expired += len(gone)
        return len(gone)

    def unbind(self, pid: int) -> None:
        """Forget that a PID has, or had, a name."""
        for each in (self.fences, self.formers, self.bound_names):
            each.pop(pid, None)

    def _stays_until_ms(self, pid: int) -> int | None:
        _, granted_ms, first_ms = self._table.get(pid) or (pid, -1, -1)
        partitions = self._table.partitions(pid)
        now_ms = self._clock_ms()
        if any(partition.is_in_flight(pid) for partition in partitions):
            return now_ms + self.lease_ms
        until_ms = max(granted_ms, first_ms) + self.lease_ms
        if policy_of(pid) is not Policy.STRICT:
            # Kafka clients do not know about leases: an active one gets a second chance. The lease
            # of a producer with its own numbers ends a lease length after its last append.
            states = (partition.producers.get(pid) for partition in partitions)
            arrivals = (arrival_of(state) + self.lease_ms for state in states if state)
            until_ms = max(until_ms, *arrivals, 0)
        return until_ms if until_ms > now_ms else None

    def lease_of(self, pid: int) -> LeaseRow | None:
        """Return the lease of a PID; None: it has none."""
        return self._table.get(pid)

    def partitions_of(self, pid: int) -> tuple[LeasedPartition, ...]:
        """Return the partitions that a leased PID writes to."""
        return self._table.partitions(pid)

    def has_name(self, pid: int) -> bool:
        """Return whether a PID is none of a producer id, or is its stand-in still."""
        return not is_stand_in(pid) or bool(self._names.name(pid))

    def is_in_flight(self, pid: int) -> bool:
        """Return whether batches of a PID are in flight, on any partition."""
        return any(partition.is_in_flight(pid) for partition in self._table.partitions(pid))

    async def leave(self, partition: LeasedPartition) -> None:
        """Remove a deleted partition from all leases; the leases continue."""
        for number, pid in enumerate(list(partition.producers)):
            if pid in self._table:
                self._table.remove_partition(pid, partition)
            partition.forget(pid)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)

    # ------------------------------------------------------------------ snapshots

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, pid: int) -> bool:
        return pid in self._table

    async def rows(self) -> LeaseRows:
        """Return the leases in the order of the lease table, a part at a time.

        The event loop stays free meanwhile. Each row was true at some time in between. A lease that
        moves to the end meanwhile may occur twice; the last one counts.
        """
        rows = LeaseRows()
        position = self.ring.head
        while True:
            position, pids = self.ring.read(position, _AT_ONCE)
            if not pids:
                return rows
            self._table.visit([pid for pid in pids if not is_stand_in(pid)], rows.append)
            await asyncio.sleep(0)

    def restore_rows(self, rows: LeaseRows) -> None:
        """Restore the leases of a snapshot."""
        pids, begun_ms = self._table.restore_rows(rows)
        self.ring.restore_many(pids, array("q", (each + self.lease_ms for each in begun_ms)))

    def restore(
        self,
        pids: Iterable[int],
        partition: LeasedPartition,
        former: LeasedPartition | None = None,
    ) -> None:
        """Note that the log holds batches of PIDs on a partition.

        A PID that only the log knows has its full lease again.

        Parameters:
            former: the partition takes the place of this one in the leases of these PIDs.
        """
        now_ms = self._clock_ms()
        # Every lease begins anew: while the server was down, producers could not write.
        for pid in self._table.restore(pids, partition, now_ms, former):
            self._ring_of(pid).restore(pid, now_ms + self.lease_ms)
