"""Appends that overtook an earlier one of their producer on the network wait for it.

The partition validates each as any other. At a sequence gap it asks whether the append waits: then
the gap is neither logged nor counted, and the append is submitted again when one that may close the
gap was submitted or stored. The last refusal counts, when the client gets it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from pidlease.core.state import Batch
from pidlease.engine.append_outcome import Done, GapWait, Outcome, Status
from pidlease.engine.partition import Partition

#: How many appends of one producer wait on a partition; more get their refusal at once.
EARLY_MAX: Final = 64

#: The producer's PID, and the partition.
_Key = tuple[int, Partition]


@dataclass(slots=True, eq=False)
class _Early(GapWait):
    """An append that may wait.

    Attributes:
        appends: those that wait.
        key: its producer's PID, and the partition.
        batch: its identity.
        submit: submits it.
        done: gets its outcome.
        refuse: refuses it for the last gap; None: it has met none, or is complete.
        timer: ends the wait; None: it has not waited yet.
        late: its time is over; the next refusal is its outcome.
    """

    appends: "EarlyAppends"
    key: _Key
    batch: Batch
    submit: Callable[[Done], None]
    done: Done
    refuse: Callable[[], None] | None = None
    timer: asyncio.TimerHandle | None = None
    late: bool = False

    @override
    def __call__(self, outcome: Outcome) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.refuse = None  # it refers to this again
        try:
            self.done(outcome)
        finally:  # an error of one request must not keep back those after it
            if outcome.status in (Status.APPENDED, Status.DUPLICATE):
                self.appends.wake(self.key, self.batch)

    @override
    def waits(self, expected: int, refuse: Callable[[], None]) -> bool:
        return self.appends.hold(self, expected, refuse)


class EarlyAppends:
    """The appends that wait for an earlier one.

    Parameters:
        wait_ms: how long an append waits; 0: not at all.
    """

    def __init__(self, wait_ms: int) -> None:
        self._wait_ms: Final = wait_ms
        self._waiting: dict[_Key, list[_Early]] = {}

    def submit(self, key: _Key, batch: Batch, submit: Callable[[Done], None], done: Done) -> None:
        """Submit an append of a producer that numbers its requests.

        Parameters:
            key: the producer's PID, and the partition.
            submit: submits it; may be called again after a gap.
            done: gets the outcome.
        """
        if not self._wait_ms:
            submit(done)
            return
        self._submit(_Early(self, key, batch, submit, done))

    def _submit(self, early: _Early) -> None:
        early.submit(early)
        if early not in self._waiting.get(early.key, ()):
            # It may be in flight: those after it need not wait for its outcome.
            self.wake(early.key, early.batch)

    def hold(self, early: _Early, expected: int, refuse: Callable[[], None]) -> bool:
        """Let an append wait at a gap; False: it is refused.

        Parameters:
            early: the append.
            expected: the sequence number that would be admitted.
            refuse: refuses it for the gap.
        """
        waiting = self._waiting.get(early.key, [])
        if early.late or len(waiting) >= EARLY_MAX or early.batch.first <= expected:
            return False
        if early.timer is None:
            loop = asyncio.get_running_loop()
            early.timer = loop.call_later(self._wait_ms / 1000, self._give_up, early)
        early.refuse = refuse
        self._waiting.setdefault(early.key, waiting).append(early)
        return True

    def _give_up(self, early: _Early) -> None:
        # Not by the clock: uvloop's timers may fire before their time.
        early.late = True
        if early not in self._waiting.get(early.key, ()) or early.refuse is None:
            return  # it is being validated again
        self._remove(early.key, [early])
        early.refuse()

    def wake(self, key: _Key, batch: Batch) -> None:
        """Submit again what may follow a batch."""
        if not self._waiting:  # the usual case, for all producers
            return
        ready = [
            each
            for each in self._waiting.get(key, ())
            if each.batch[:2] <= (batch.generation, batch.last + 1)
        ]
        if not ready:
            return
        self._remove(key, ready)
        for each in sorted(ready, key=lambda early: early.batch[:2]):
            self._submit(each)

    def _remove(self, key: _Key, gone: list[_Early]) -> None:
        self._waiting[key] = [each for each in self._waiting[key] if each not in gone]
        if not self._waiting[key]:
            del self._waiting[key]
