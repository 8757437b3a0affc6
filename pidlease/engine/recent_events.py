"""The last refused batches, duplicates and leases of a server, kept in memory for operators."""

from collections import deque
from itertools import count
from typing import Final, NamedTuple

from pidlease.core.topic_partition import TopicPartition
from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.pending_batches import Pending

#: How many events of each kind are kept.
EVENTS_KEPT: Final = 1000
#: The most characters of a reason that are kept: one may come from Kafka.
_REASON_MAX: Final = 500

#: The kinds of events of leases; those of batches have the names of their outcomes.
LEASED: Final = "leased"
GRANTED: Final = "granted"
RELEASED: Final = "released"
ENDED: Final = "ended"
NO_PID: Final = "no pid"


class Event(NamedTuple):
    """Something that happened to a producer.

    Attributes:
        number: counts the events of all kinds, from 1.
        at_ms: when, in ms since 1970.
        kind: the outcome of a batch, or what became of a lease.
        pid: the producer id; 0 or below: none.
        name: the producer's name or id; empty: none.
        topic: of the batch; empty: it concerns no partition.
        partition: of the batch; -1: it concerns no partition.
        generation: of the batch or the grant; -1: none.
        first_sequence: of the batch; -1: none.
        last_sequence: of the batch; -1: none.
        expected: the sequence number that would be admitted; -1: any, or unknown.
        known_generation: the stored generation; -1: it does not matter, or is unknown.
        former: the PID that the name had before; -1: none.
        reason: the error in words; empty: the kind says it all.
    """

    number: int
    at_ms: int
    kind: str
    pid: int
    name: str = ""
    topic: str = ""
    partition: int = -1
    generation: int = -1
    first_sequence: int = -1
    last_sequence: int = -1
    expected: int = -1
    known_generation: int = -1
    former: int = -1
    reason: str = ""


class RecentEvents:
    """Keeps a bounded number of events; used by the event loop only.

    Each kind has a bound of its own, so that many duplicates displace no refusal.

    Parameters:
        kept: how many events of each kind are kept.

    Attributes:
        refusals: refused and failed batches, and refused leases.
        duplicates: batches that were stored already.
        grants: leases granted, and names released.
        endings: leases that have ended.
    """

    def __init__(self, kept: int = EVENTS_KEPT) -> None:
        self.refusals: Final[deque[Event]] = deque(maxlen=kept)
        self.duplicates: Final[deque[Event]] = deque(maxlen=kept)
        self.grants: Final[deque[Event]] = deque(maxlen=kept)
        self.endings: Final[deque[Event]] = deque(maxlen=kept)
        self._numbers: Final = count(1)

    def batch(
        self, partition: TopicPartition, pending: Pending, outcome: Outcome, at_ms: int, name: str
    ) -> None:
        """Record a batch that was not appended.

        Parameters:
            at_ms: now, in ms since 1970.
            name: the producer id of policy epoch; empty: the batch has a PID.
        """
        status = outcome.status
        events = self.duplicates if status is Status.DUPLICATE else self.refusals
        batch = pending.batch
        events.append(
            Event(
                next(self._numbers), at_ms, status.value, pending.pid, name, *partition,
                batch.generation, batch.first, batch.last, outcome.expected, outcome.generation,
                reason=outcome.reason[:_REASON_MAX],
            )
        )  # fmt: skip

    def leased(self, pid: int, at_ms: int) -> None:
        """Record a fresh lease."""
        self.grants.append(Event(next(self._numbers), at_ms, LEASED, pid))

    def granted(self, name: str, pid: int, generation: int, former: int, at_ms: int) -> None:
        """Record a grant to a name; lower generations of the PID are fenced.

        Parameters:
            former: the name's former PID, which is fenced as well; -1: none.
            at_ms: now, in ms since 1970.
        """
        self.grants.append(
            Event(
                next(self._numbers), at_ms, GRANTED, pid, name, generation=generation, former=former
            )
        )

    def released(self, name: str, pid: int, at_ms: int) -> None:
        """Record the release of a name; its producer is fenced."""
        self.grants.append(Event(next(self._numbers), at_ms, RELEASED, pid, name))

    def ended(self, pid: int, name: str, at_ms: int) -> None:
        """Record the end of a lease."""
        self.endings.append(Event(next(self._numbers), at_ms, ENDED, pid, name))

    def no_pid(self, reason: str, at_ms: int) -> None:
        """Record a refused lease."""
        self.refusals.append(
            Event(next(self._numbers), at_ms, NO_PID, -1, reason=reason[:_REASON_MAX])
        )

    def of(self, pid: int, name: str) -> list[Event]:
        """Return the events of a producer, the newest first.

        Parameters:
            pid: its PID; events of names that had it before are included. 0 or below: none.
            name: its name; empty: none. The events of all PIDs that it was granted are included.
        """
        kinds = (self.refusals, self.duplicates, self.grants, self.endings)
        pids = {event.pid for event in self.grants if name and event.name == name} | {pid}
        found = [
            event
            for events in kinds
            for event in events
            if (event.pid > 0 and event.pid in pids)
            or (pid > 0 and event.former == pid)
            or (name and event.name == name)
        ]
        return sorted(found, reverse=True)  # by their numbers
