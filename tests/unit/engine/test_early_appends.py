"""Appends that wait for an earlier one: the end of their wait, and errors of one of them."""

import asyncio
from typing import Any, cast

import pytest

from pidlease.core.state import Batch
from pidlease.engine.append_outcome import Done, GapWait, Outcome, Status
from pidlease.engine.early_appends import EarlyAppends

_KEY: Any = (7, cast("Any", object()))
_GAP = Outcome(Status.GAP, expected=0)
_APPENDED = Outcome(Status.APPENDED, offset=0)


def _batch(number: int) -> Batch:
    return Batch(0, number, number, 1)


def _gap(done: Done, refusals: list[Outcome] | None = None) -> None:
    """Find a gap, as the partition does; it notes the refusals that it gives to clients."""

    def refuse() -> None:
        if refusals is not None:
            refusals.append(_GAP)
        done(_GAP)

    assert isinstance(done, GapWait)
    if not done.waits(_GAP.expected, refuse):
        refuse()


async def test_a_timer_that_fires_early_ends_the_wait() -> None:
    early = EarlyAppends(1)
    validations: list[Done] = []
    outcomes: list[Outcome] = []
    early.submit(_KEY, _batch(1), validations.append, outcomes.append)
    _gap(validations.pop())  # it waits
    early.submit(_KEY, _batch(0), lambda done: None, outcomes.append)
    assert len(validations) == 1, "it is validated again"
    loop = asyncio.get_running_loop()
    now = loop.time()
    with pytest.MonkeyPatch.context() as patch:
        # By this clock, the timer's time never comes.
        fired = asyncio.Event()
        loop.call_later(0.05, fired.set)
        await fired.wait()
        patch.setattr(loop, "time", lambda: now)
        _gap(validations.pop())
    assert outcomes == [_GAP]


async def test_an_error_of_one_request_does_not_keep_back_the_next() -> None:
    early = EarlyAppends(60_000)
    first: list[Done] = []
    second: list[Done] = []
    outcomes: list[Outcome] = []

    def fails(outcome: Outcome) -> None:
        raise RuntimeError(str(outcome.status))

    early.submit(_KEY, _batch(1), second.append, outcomes.append)
    _gap(second.pop())
    early.submit(_KEY, _batch(0), first.append, fails)
    assert len(second) == 1
    _gap(second.pop())  # the first one has not landed: it waits again
    with pytest.raises(RuntimeError):
        first.pop()(_APPENDED)
    assert len(second) == 1, "it is validated again"
    second.pop()(_APPENDED)
    assert outcomes == [_APPENDED]


async def test_an_append_that_meets_many_gaps_is_refused_once() -> None:
    early = EarlyAppends(20)
    validations: list[Done] = []
    refusals: list[Outcome] = []
    ended = asyncio.Event()
    early.submit(_KEY, _batch(1), validations.append, lambda _: ended.set())
    for _ in range(3):
        _gap(validations.pop(), refusals)
        early.submit(_KEY, _batch(0), lambda done: None, lambda _: None)
    _gap(validations.pop(), refusals)
    assert not refusals
    await asyncio.wait_for(ended.wait(), 30)
    assert refusals == [_GAP]
