"""The golden histories of policies epoch and strict, over HTTP: rules must not fork."""

from pathlib import Path
from typing import Any, Final

import pytest

from pidlease.core.pid import Policy, make_pid
from pidlease.http_api.record_messages import NUMBER_MAX
from tests.golden import HISTORIES, GoldenBatch, GoldenState, History, Step, history_id
from tests.http_api.appending import Answer, Door, door, producer

_STATUS: Final = {
    "admit": 200,
    "duplicate": 200,
    "gap": 409,
    "overlap": 409,
    "fenced": 409,
    "malformed": 400,
    "unknown": 410,
}
_ERRORS: Final = {
    "gap": "producer_seq_conflict",
    "overlap": "producer_seq_conflict",
    "fenced": "producer_fenced",
}
_EPOCH: Final = [each for each in HISTORIES if each.policy == "epoch" and not each.seeded]
_STRICT: Final = [each for each in HISTORIES if each.policy == "strict" and not each.seeded]


def test_there_are_histories_for_this_door() -> None:
    steps = [step for each in _EPOCH for step in each.steps]
    said = [step for step in steps if _can_be_said(step)]
    assert len(said) >= len(steps) - 12, "ranges that straddle, and counts that do not fit them"
    assert {step.verdict.kind for step in said} >= {
        "admit", "duplicate", "gap", "fenced", "malformed"
    }  # fmt: skip
    assert len(_EPOCH) >= 12
    assert len(_STRICT) >= 15


# ---------------------------------------------------------------------- epoch


@pytest.mark.parametrize("history", _EPOCH, ids=history_id)
async def test_a_history_of_policy_epoch(tmp_path: Path, history: History) -> None:
    """A request has one number here: a range of them is as many requests."""
    async with door(tmp_path) as here:
        differing = 0
        dense = True
        for number, step in enumerate(history.steps):
            if not _can_be_said(step):
                continue
            dense = dense and step.batch.first == step.batch.last
            for at, (seq, answer) in enumerate([x async for x in _requests(here, step)]):
                _compare(f"step {number}, seq {seq}", answer, step, at, exact=dense)
            differing += step.verdict.differs
            assert here.server.engine.counts.differing == differing, number
            pid = here.server.engine.names.find("golden")
            assert (pid is None) == (step.next is None), "what was not admitted leaves no trace"
            _look_inside(f"step {number}", here, pid or 0, step.next, exact=dense)


def _can_be_said(step: Step) -> bool:
    """Whether requests of one number each can say it, and are to be told the same."""
    sent, kind = step.batch, step.verdict.kind
    if kind in ("admit", "duplicate"):
        return True
    if kind == "malformed":
        numbers = (sent.generation, sent.first)
        return not all(0 <= each <= NUMBER_MAX for each in numbers)
    return kind != "overlap"  # gap, fenced: by the first number


async def _requests(here: Door, step: Step) -> Any:
    sent = step.batch
    last = sent.last if step.verdict.kind in ("admit", "duplicate") else sent.first
    for seq in range(sent.first, last + 1):
        body = {"records": [{"value": str(sent.crc), "timestamp_ms": 1}]}
        yield seq, await here.append(body, producer("golden", sent.generation, seq))


# ---------------------------------------------------------------------- strict


@pytest.mark.parametrize("history", _STRICT, ids=history_id)
async def test_a_history_of_policy_strict(tmp_path: Path, history: History) -> None:
    async with door(tmp_path) as here:
        pid = _pid(here, history)
        stored: dict[tuple[int, int], int] = {}
        differing = 0
        for number, step in enumerate(history.steps):
            if step.granted >= 0:
                here.server.engine.leases.fences[pid] = step.granted
            answer = await here.append(_body(step.batch, pid))
            _compare(f"step {number}", answer, step, 0, exact=True)
            _look_inside(f"step {number}", here, pid, step.next, exact=True)
            # The generation stands in the batch: under a higher one no bytes are compared, and what
            # was stored under a lower one differs.
            span = (step.batch.first, step.batch.last)
            if step.verdict.kind == "admit":
                stored[span] = step.batch.generation
            same = step.batch.generation == max(stored.values(), default=-1)
            other = step.verdict.offset >= 0 and stored[span] != step.batch.generation
            differing += same and (step.verdict.differs or other)
            assert here.server.engine.counts.differing == differing, number


def _pid(here: Door, history: History) -> int:
    if history.age == "never":
        return make_pid(Policy.STRICT, 10**12)
    pid = here.server.engine.leases.lease(Policy.STRICT)
    if history.age == "old":
        here.server.let_leases_end()
    return pid


def _body(sent: GoldenBatch, pid: int) -> dict[str, Any]:
    return {
        "records": [{"value": str(sent.crc), "timestamp_ms": 1}] * sent.count,
        "pid": pid,
        "generation": sent.generation,
        "first_sequence": sent.first,
        "last_sequence": sent.last,
    }


# ---------------------------------------------------------------------- both


def _compare(step: str, answer: Answer, wanted: Step, at: int, *, exact: bool) -> None:
    status, content = answer
    verdict = wanted.verdict
    assert status == _STATUS[verdict.kind], (step, content)
    if verdict.kind == "admit":
        assert content == {"offset": wanted.offset + at, "duplicate": False}, step
    elif verdict.kind == "duplicate":
        assert content["duplicate"], step
        if exact:
            assert content["offset"] == (verdict.offset if verdict.offset >= 0 else None), step
    elif verdict.kind in _ERRORS:
        assert content["error"] == _ERRORS[verdict.kind], step
        expected = verdict.expected if verdict.expected >= 0 else None
        assert content.get("expected_seq") == expected, step
        current = verdict.generation if verdict.kind == "fenced" else None
        assert content.get("current_epoch") == current, step
    if status != 200:
        assert content["field"], step


def _look_inside(
    step: str, here: Door, pid: int, wanted: GoldenState | None, *, exact: bool
) -> None:
    state = here.partition.producer(pid)
    if wanted is None or state is None:
        assert (wanted, state) == (None, None), step
        return
    found = (state.generation, state.high, state.lowest)
    assert found == (wanted.generation, wanted.high, wanted.lowest), step
    if exact and wanted.batches is not None:
        kept = [(each.first, each.last, each.offset) for each in state.batches]
        assert kept == [(each.first, each.last, each.offset) for each in wanted.batches], step
