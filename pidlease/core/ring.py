"""The lease ring: a circular buffer of fixed capacity that tracks which leases end when.

A grant takes a slot at the tail. The head is the only place where leases leave, so both cost
a constant; an unexpired entry is never evicted, a full ring refuses. Where the PID's clock was
started again (its first message; for Kafka clients any message) the entry goes back to the
tail instead of leaving: a second chance, so a PID is kept at least as long as promised.
"""

from array import array
from collections.abc import Callable, Iterator
from typing import Final

#: Asked when a slot is due: the time in ms until which the PID must stay, or None to let it go.
Renewal = Callable[[int], int | None]

_INITIAL_SLOTS: Final = 1024


class RingFullError(Exception):
    """No slot is free, and none may be taken away. Try again when a lease has ended."""


class LeaseRing:
    """PIDs with the time at which their slot is due, in the order in which they came.

    Parameters:
        capacity: slots for new leases. What a restore brings may exceed it; new leases are then
            refused until the ring has drained below it.
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
        """The entries as (pid, due_ms), oldest first."""
        slots = len(self._pids)
        for i in range(self._used):
            at = (self._head + i) % slots
            yield self._pids[at], self._due_ms[at]

    @property
    def head(self) -> int:
        """The position of the oldest entry, counted from the first that there ever was."""
        return self._gone

    def read(self, position: int, limit: int) -> tuple[int, list[int]]:
        """Return PIDs from a position on, to read the table in parts while it changes.

        Parameters:
            position: as `head` counts; entries before the head are left out, they have gone.
            limit: how many at most.

        Returns:
            The position to go on from, and the PIDs; none at the end.
        """
        begin = max(position - self._gone, 0)
        end = min(begin + limit, self._used)
        slots = len(self._pids)
        pids = [self._pids[(self._head + i) % slots] for i in range(begin, end)]
        return self._gone + end, pids

    def grant(self, pid: int, due_ms: int) -> None:
        """Take a slot for a new lease.

        Raises:
            RingFullError: all are taken by leases that have not ended.
        """
        if self._used >= self.capacity:
            raise RingFullError(f"all {self.capacity} lease slots are taken")
        self.restore(pid, due_ms)

    def restore(self, pid: int, due_ms: int) -> None:
        """Take a slot for a PID that the log knows already, even beyond the capacity."""
        if self._used == len(self._pids):
            self._grow()
        at = (self._head + self._used) % len(self._pids)
        self._pids[at] = pid
        self._due_ms[at] = due_ms
        self._used += 1

    def expire(self, now_ms: int, renewal: Renewal, limit: int = 1000) -> list[int]:
        """Let go of what is due at the head.

        Parameters:
            now_ms: the time, in ms since 1970.
            renewal: asked for each due entry whether, and until when, it must stay.
            limit: entries to look at, so that one call stays short.

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
        padding = bytes(8 * (slots - len(entries)))
        self._pids.frombytes(padding)
        self._due_ms.frombytes(padding)
        self._head = 0
