"""The golden histories of policy kafka, through the door: rules must not fork."""

from typing import Final

import pytest

from pidlease.core.pid import Policy, make_pid
from tests.golden import HISTORIES, GoldenBatch, GoldenState, GoldenVerdict, History, history_id
from tests.wire.batches import batch, changed
from tests.wire.client import Answer, WireClient
from tests.wire.harness import Server

_MODULUS: Final = 2**31
_CODES: Final = {"admit": 0, "gap": 45, "overlap": 45, "fenced": 47, "malformed": 87, "unknown": 59}


def _has_room(sent: GoldenBatch) -> bool:
    """Whether the numbers fit into a batch's header."""
    numbers = (sent.first, sent.last)
    return -(2**15) <= sent.generation < 2**15 and all(-_MODULUS <= n < _MODULUS for n in numbers)


_KAFKA = [each for each in HISTORIES if each.policy == "kafka" and not each.seeded]
_SPOKEN = [each for each in _KAFKA if all(_has_room(step.batch) for step in each.steps)]


def test_there_are_histories_for_this_door() -> None:
    assert len(_SPOKEN) >= 10
    assert len(_SPOKEN) >= len(_KAFKA) - 2


@pytest.mark.parametrize("history", _SPOKEN, ids=history_id)
async def test_history(server: Server, client: WireClient, history: History) -> None:
    await client.create("t")
    pid = await _pid(server, client, history)
    for number, step in enumerate(history.steps):
        answer = await client.produce("t", _data(step.batch, pid))
        _compare(f"step {number}", answer, step.verdict, step.offset)
        _look_inside(f"step {number}", server, pid, step.next)


async def _pid(server: Server, client: WireClient, history: History) -> int:
    if history.age == "never":
        return make_pid(Policy.KAFKA, 10**12)
    pid = await client.lease()
    if history.age == "old":
        server.let_leases_end()
    return pid


def _data(sent: GoldenBatch, pid: int) -> bytes:
    """The batch; its one record stands for however many its header speaks of."""
    return changed(
        batch([b"%d" % sent.crc]),
        producer_id=pid,
        producer_epoch=sent.generation,
        base_sequence=sent.first,
        last_offset_delta=(sent.last - sent.first) % _MODULUS,
        records=sent.count,
    )


def _compare(step: str, answer: Answer, verdict: GoldenVerdict, offset: int) -> None:
    if verdict.kind == "duplicate":
        wanted = (0, verdict.offset) if verdict.offset >= 0 else (46, -1)
    else:
        wanted = (_CODES[verdict.kind], offset)
    assert (answer.code, answer.offset) == wanted, (step, answer)
    if verdict.expected >= 0:
        assert f"expected sequence {verdict.expected}" in (answer.message or ""), (step, answer)


def _look_inside(step: str, server: Server, pid: int, wanted: GoldenState | None) -> None:
    partition = server.engine.partition("t", 0)
    assert partition is not None
    state = dict(partition.described_producers()).get(pid)
    if wanted is None or state is None:
        assert wanted is None, (step, state)
        assert state is None, (step, state)
        return
    found = (state.generation, state.high, state.lowest)
    assert found == (wanted.generation, wanted.high, wanted.lowest), step
    if wanted.batches is not None:
        kept = [(each.first, each.last, each.offset) for each in state.batches]
        assert kept == [(each.first, each.last, each.offset) for each in wanted.batches], step
