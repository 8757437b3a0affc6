"""The golden histories that come by this door: rules must not fork."""

from typing import Final

import pytest

from pidlease.core.pid import Policy, make_pid
from pidlease.kafka.records.identity_header import Identity
from tests.golden import HISTORIES, GoldenBatch, GoldenState, GoldenVerdict, History, history_id
from tests.kafka_listener.batches import batch, changed, identified
from tests.kafka_listener.client import Answer, WireClient
from tests.kafka_listener.harness import Server

_MODULUS: Final = 2**31
_GZIP: Final = 1
_CODES: Final = {"admit": 0, "gap": 45, "overlap": 45, "fenced": 47, "malformed": 87, "unknown": 59}
_INT64: Final = 2**63


def _has_room(policy: str, sent: GoldenBatch) -> bool:
    """Whether the numbers fit where they are sent."""
    numbers = (sent.first, sent.last)
    if policy != "kafka":
        return all(-_INT64 <= n < _INT64 for n in (sent.generation, *numbers))
    return -(2**15) <= sent.generation < 2**15 and all(-_MODULUS <= n < _MODULUS for n in numbers)


_HERE = [
    each
    for each in HISTORIES
    if each.policy in ("kafka", "strict", "monotonic") and not each.seeded
]
_SPOKEN = [each for each in _HERE if all(_has_room(each.policy, step.batch) for step in each.steps)]


def test_there_are_histories_for_this_door() -> None:
    for policy in ("kafka", "strict", "monotonic"):
        assert len([each for each in _SPOKEN if each.policy == policy]) >= 10
    assert len(_SPOKEN) >= len(_HERE) - 5  # those whose numbers have no place on the wire


@pytest.mark.parametrize("codec", [0, 4], ids=["none", "zstd"])
@pytest.mark.parametrize("history", _SPOKEN, ids=history_id)
async def test_history(server: Server, client: WireClient, history: History, codec: int) -> None:
    await client.create("t")
    pid = _pid(server, history)
    for number, step in enumerate(history.steps):
        if step.granted >= 0:
            server.engine.leases.fences[pid] = step.granted
        data = _data(history.policy, step.batch, pid, codec)
        answer = await client.produce("t", data)
        _compare(f"step {number}", answer, step.verdict, step.offset)
        _look_inside(f"step {number}", server, pid, step.next)
        if history.policy == "monotonic" and answer.code not in (0, 46):
            # Any error ends its session on that connection.
            assert (await client.produce("t", data)).code == 13
            client = await server.connect()


def _pid(server: Server, history: History) -> int:
    policy = Policy[history.policy.upper()]
    if history.age == "never":
        return make_pid(policy, 10**12)
    pid = server.engine.leases.lease(policy)
    if history.age == "old":
        server.let_leases_end()
    if policy is Policy.MONOTONIC:
        server.engine.leases.fences[pid] = -1  # a name is bound to it
    return pid


def _data(policy: str, sent: GoldenBatch, pid: int, codec: int) -> bytes:
    """The batch; its one record stands for however many its header speaks of."""
    content = b"%d" % sent.crc
    if sent.count > 1:
        codec = codec or _GZIP  # uncompressed, so many records would need more bytes
    if policy == "kafka":
        return changed(
            batch([content], codec=codec),
            producer_id=pid,
            producer_epoch=sent.generation,
            base_sequence=sent.first,
            last_offset_delta=(sent.last - sent.first) % _MODULUS,
            records=sent.count,
        )
    identity = Identity(pid, "", sent.generation, sent.first, sent.last)
    return changed(
        identified([content], identity, codec=codec),
        last_offset_delta=sent.count - 1,
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
    state = dict(partition.table.described_producers()).get(pid)
    if wanted is None or state is None:
        assert wanted is None, (step, state)
        assert state is None, (step, state)
        return
    found = (state.generation, state.high, state.lowest)
    assert found == (wanted.generation, wanted.high, wanted.lowest), step
    if wanted.batches is not None:
        kept = [(each.first, each.last, each.offset) for each in state.batches]
        assert kept == [(each.first, each.last, each.offset) for each in wanted.batches], step
