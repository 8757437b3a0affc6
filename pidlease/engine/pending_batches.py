"""Batches between judging and the log's answer."""

from collections import deque
from typing import Final

import structlog

from pidlease.core.state import Batch
from pidlease.engine.append_outcome import UNKNOWN_OUTCOME, Done, Outcome, Status
from pidlease.log.ports import Forwarded, NewBatch

#: How much one append takes at most; it bounds what a crash can tear, and a waiting answer.
GROUP_BYTES_MAX: Final = 8 << 20
GROUP_BATCHES_MAX: Final = 1000

_log = structlog.get_logger(__name__)


class Pending:
    """A batch on its way into the log, and who waits for it."""

    __slots__ = ("batch", "done", "new", "pid", "retries")

    def __init__(self, pid: int, batch: Batch, new: NewBatch, done: Done) -> None:
        self.pid = pid
        self.batch = batch
        self.new = new
        self.done = done
        self.retries: list[tuple[Batch, Done]] = []

    @property
    def sent(self) -> tuple[Batch, NewBatch, Done]:
        """What was sent, without by whom."""
        return self.batch, self.new, self.done


def next_group(queue: deque[Pending]) -> list[Pending]:
    """Take what goes into the next append."""
    group: list[Pending] = []
    size = 0
    while queue and len(group) < GROUP_BATCHES_MAX:
        size += len(queue[0].new.data)
        if group and size > GROUP_BYTES_MAX:
            break
        group.append(queue.popleft())
    return group


def original(flying: deque[Pending], batch: Batch) -> Pending:
    """The batch in flight that a retry repeats; where it only overlaps some, the last of them."""
    for pending in flying:
        if pending.batch[:3] == batch[:3]:  # generation, first, last
            return pending
    return flying[-1]


def tell(done: Done, outcome: Outcome) -> None:
    """Tell one of many; what goes wrong there is not to keep the others waiting."""
    try:
        done(outcome)
    except Exception:  # noqa: BLE001 - a door's bug
        _log.exception("an outcome could not be told", outcome=outcome)


def not_taken(answer: Forwarded) -> Outcome:
    """What is said of a batch that the log behind did not take, or perhaps did."""
    if answer.definite and answer.code:
        return Outcome(Status.REFUSED, reason=answer.reason, code=answer.code)
    code = 0 if answer.definite else UNKNOWN_OUTCOME
    return Outcome(Status.FAILED, reason=answer.reason, code=code)


def behind_failed(expected: int) -> Outcome:
    """What is said of a batch behind one that failed."""
    reason = f"sequence {expected} failed and comes first again"
    return Outcome(Status.FAILED, expected=expected, reason=reason)
