"""Appends that overtook an earlier one of their producer on the network wait for it.

The partition validates each as any other. This only keeps back the refusal for a sequence gap,
and submits the append again when one that may close the gap was submitted or stored.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pidlease.core.state import Batch
from pidlease.engine.append_outcome import Done, Outcome, Status
from pidlease.engine.partition import Partition

#: How many appends of one producer wait on a partition; more get their refusal at once.
EARLY_MAX: Final = 64

#: The producer's PID, and the partition.
_Key = tuple[int, Partition]


@dataclass(slots=True, eq=False)
class _Early:
    """An append that may wait.

    Attributes:
        batch: its identity.
        submit: submits it.
        done: gets its outcome.
        outcome: the last refusal.
        timer: ends the wait; None: it has not waited yet.
        late: its time is over; the next refusal is its outcome.
    """

    batch: Batch
    submit: Callable[[Done], None]
    done: Done
    outcome: Outcome | None = None
    timer: asyncio.TimerHandle | None = None
    late: bool = False


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
            submit: submits it; may be called again after a refusal.
            done: gets the outcome.
        """
        if not self._wait_ms:
            submit(done)
            return
        self._submit(key, _Early(batch, submit, done))

    def _submit(self, key: _Key, early: _Early) -> None:
        def completed(outcome: Outcome) -> None:
            if outcome.status is Status.GAP and self._waits(key, early, outcome):
                return
            if early.timer is not None:
                early.timer.cancel()
            try:
                early.done(outcome)
            finally:  # an error of one request must not keep back those after it
                if outcome.status in (Status.APPENDED, Status.DUPLICATE):
                    self._wake(key, early.batch)

        early.submit(completed)
        if early not in self._waiting.get(key, ()):
            # It may be in flight: those after it need not wait for its outcome.
            self._wake(key, early.batch)

    def _waits(self, key: _Key, early: _Early, outcome: Outcome) -> bool:
        waiting = self._waiting.get(key, [])
        if early.late or len(waiting) >= EARLY_MAX or early.batch.first <= outcome.expected:
            return False
        if early.timer is None:
            loop = asyncio.get_running_loop()
            early.timer = loop.call_later(self._wait_ms / 1000, self._give_up, key, early)
        early.outcome = outcome
        self._waiting.setdefault(key, waiting).append(early)
        return True

    def _give_up(self, key: _Key, early: _Early) -> None:
        # Not by the clock: uvloop's timers may fire before their time.
        early.late = True
        waiting = self._waiting.get(key, [])
        if early not in waiting or early.outcome is None:
            return  # it is being validated again
        self._remove(key, [early])
        early.done(early.outcome)

    def _wake(self, key: _Key, batch: Batch) -> None:
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
            self._submit(key, each)

    def _remove(self, key: _Key, gone: list[_Early]) -> None:
        self._waiting[key] = [each for each in self._waiting[key] if each not in gone]
        if not self._waiting[key]:
            del self._waiting[key]
