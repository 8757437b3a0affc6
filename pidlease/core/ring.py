"""The lease table: a ring buffer of fixed capacity that tracks when leases end.

A new lease takes a slot at the tail, and leases leave only at the head, so both take constant time.
A lease that has not ended is never evicted; a full ring refuses new ones. If a PID's lease was
extended (by its first message; for Kafka clients by any message), its entry moves from the head to
the tail instead of leaving. So a PID is kept at least as long as promised.
"""

from array import array
from collections.abc import Callable, Iterator
from typing import Final

#: Returns until when a due PID must stay, in ms since 1970, or None to let it leave.
Renewal = Callable[[int], int | None]

_INITIAL_SLOTS: Final = 1024


class RingFullError(Exception):
    """All slots are taken by leases that have not ended. Try again when one has ended."""


class LeaseRing:
    """PIDs in the order of their leases, each with the time at which it is due to leave.

    Parameters:
        capacity: slots for new leases. A restore may exceed it; new leases are then refused
            until enough have ended.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError("a ring has at least one slot")
        self.capacity: Final = capacity
        slots = min(capacity, _INITIAL_SLOTS)
        self._pids = array("q", bytes(8 * slots))
        self._due_ms = array("q", bytes(8 * slots))
        self._head = 0
        self._used = 0
        self._gone = 0

    def __len__(self) -> int:
        return self._used

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the entries as (pid, due_ms), oldest first."""
        slots = len(self._pids)
        for i in range(self._used):
            at = (self._head + i) % slots
            yield self._pids[at], self._due_ms[at]

    @property
    def head(self) -> int:
        """The position of the oldest entry, counted from the first entry ever."""
        return self._gone

    def read(self, position: int, limit: int) -> tuple[int, list[int]]:
        """Return PIDs from a position on, to read a changing table in parts.

        Parameters:
            position: counted like `head`; entries before the head have left and are skipped.
            limit: the most PIDs to return.

        Returns:
            The position to continue from, and the PIDs; none at the end.
        """
        begin = max(position - self._gone, 0)
        end = min(begin + limit, self._used)
        slots = len(self._pids)
        pids = [self._pids[(self._head + i) % slots] for i in range(begin, end)]
        return self._gone + end, pids

    def grant(self, pid: int, due_ms: int) -> None:
        """Take a slot for a new lease.

        Raises:
            RingFullError: all slots are taken by leases that have not ended.
        """
        if self._used >= self.capacity:
            raise RingFullError(f"all {self.capacity} lease slots are taken")
        self.restore(pid, due_ms)

    def restore(self, pid: int, due_ms: int) -> None:
        """Take a slot for a lease from a snapshot or the log, even beyond the capacity."""
        if self._used == len(self._pids):
            self._grow()
        at = (self._head + self._used) % len(self._pids)
        self._pids[at] = pid
        self._due_ms[at] = due_ms
        self._used += 1

    def restore_many(self, pids: "array[int]", due_ms: "array[int]") -> None:
        """Take slots for many leases from a snapshot, in their order, even beyond the capacity.

        Parameters:
            pids: the PIDs.
            due_ms: when each is due to leave, in ms since 1970.
        """
        entries = list(self)
        slots = max(len(self._pids), len(entries) + len(pids))
        self._pids = array("q", (pid for pid, _ in entries)) + pids
        self._due_ms = array("q", (due for _, due in entries)) + due_ms
        self._used = len(self._pids)
        self._pad(slots)

    def expire(self, now_ms: int, renewal: Renewal, limit: int = 1000) -> list[int]:
        """Remove due entries from the head.

        Parameters:
            now_ms: the time, in ms since 1970.
            renewal: is called for each due entry.
            limit: the most entries to look at, so that one call stays short.

        Returns:
            The PIDs that left.
        """
        gone: list[int] = []
        for _ in range(min(limit, self._used)):
            if self._due_ms[self._head] > now_ms:
                break
            pid = self._pids[self._head]
            stays_until_ms = renewal(pid)
            self._head = (self._head + 1) % len(self._pids)
            self._used -= 1
            self._gone += 1
            if stays_until_ms is None:
                gone.append(pid)
            else:
                self.restore(pid, stays_until_ms)
        return gone

    def _grow(self) -> None:
        entries = list(self)
        slots = len(self._pids) * 2
        if len(self._pids) < self.capacity:
            slots = min(slots, self.capacity)
        self._pids = array("q", (pid for pid, _ in entries))
        self._due_ms = array("q", (due_ms for _, due_ms in entries))
        self._pad(slots)

    def _pad(self, slots: int) -> None:
        """Let the entries, which begin at slot 0, be followed by free slots."""
        padding = bytes(8 * (slots - self._used))
        self._pids.frombytes(padding)
        self._due_ms.frombytes(padding)
        self._head = 0
