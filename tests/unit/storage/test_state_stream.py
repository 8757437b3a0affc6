"""Updates of producers' states as bytes: what is sent is what arrives, or an error."""

from contextlib import suppress
from random import Random

import pytest
from crc32c import crc32c

from pidlease.core.packed import Packed, fold_packed
from pidlease.core.pid import Policy, make_pid
from pidlease.core.producer_names import ProducerNames
from pidlease.core.rules import rules_of
from pidlease.core.state import Batch
from pidlease.core.topic_partition import TopicPartition
from pidlease.storage import state_stream
from pidlease.storage.snapshot_rows import PartitionRows, SnapshotError
from pidlease.storage.state_stream import decode_updates, encode_updates
from pidlease.storage.state_updates import StateUpdate, StateUpdates
from tests.crash.seeds import new_random

POLICIES = (Policy.KAFKA, Policy.STRICT, Policy.MONOTONIC)


def states(random: Random, names: ProducerNames, count: int) -> dict[int, Packed]:
    """Producers of all policies, with one to five batches each."""
    found: dict[int, Packed] = {}
    for number in range(1, count + 1):
        pid = make_pid(random.choice(POLICIES), number)
        if random.random() < 0.3:
            pid = names.take(f"id {number} \N{SNOWMAN}")
        rules = rules_of(pid)
        assert rules is not None
        state: Packed | None = None
        for first in range(random.randrange(1, 7)):
            batch = Batch(random.randrange(3) if state is None else 2, first, first, 1, 7)
            state = fold_packed(rules, state, batch, 100 * number + first, 1234)
        assert state is not None
        found[pid] = state
    return found


def by_name(names: ProducerNames, found: dict[int, Packed]) -> dict[int | str, Packed]:
    return {names.name(pid) or pid: state for pid, state in found.items()}


@pytest.mark.parametrize("number", range(5))
def test_what_is_sent_arrives(number: int) -> None:
    random = new_random(f"state-stream-{number}")
    names = ProducerNames()
    updates = [
        StateUpdate(
            PartitionRows(
                TopicPartition("t\N{SNOWMAN}", part), "1" * 32, random.randrange(1 << 60),
                random.choice((-1, 1 << 41)), states(random, names, random.choice((0, 1, 3000))),
                random.choice((-1, 7)), random.randrange(1 << 60), random.randrange(1 << 60),
            ),
            random.random() < 0.5, random.random() < 0.5, random.random() < 0.5,
        )
        for part in range(4)
    ]  # fmt: skip
    sent = StateUpdates(updates, random.random() < 0.5)
    names_there = ProducerNames()
    for shift in range(random.randrange(3)):  # the stand-in PIDs there are others
        names_there.take(f"other {shift}")
    found = decode_updates(encode_updates(sent, names), names_there)
    assert found.more == sent.more
    for there, here in zip(found.updates, updates, strict=True):
        assert there[1:] == here[1:]
        assert there.rows._replace(producers={}) == here.rows._replace(producers={})
        assert by_name(names_there, dict(there.rows.producers)) == by_name(
            names, dict(here.rows.producers)
        )


def test_what_is_damaged_is_an_error() -> None:
    random = new_random("state-stream-damage")
    names = ProducerNames()
    rows = PartitionRows(TopicPartition("t", 0), "1" * 32, 5, -1, states(random, names, 50))
    content = encode_updates(StateUpdates([StateUpdate(rows, True, True)], False), names)
    for _ in range(200):
        at = random.randrange(len(content))
        changed = content[:at] + bytes([content[at] ^ 1 << random.randrange(8)]) + content[at + 1 :]
        for wrong in (content[:at], changed):
            with pytest.raises(SnapshotError):
                decode_updates(wrong, ProducerNames())
    # What is damaged at the server that sends it has a valid checksum.
    for _ in range(200):
        at = random.randrange(4, len(content))
        cut = content[4:at]
        with suppress(SnapshotError):
            decode_updates(crc32c(cut).to_bytes(4) + cut, ProducerNames())


def test_a_newer_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_stream, "FORMAT_VERSION", 99)
    content = encode_updates(StateUpdates([], more=False), ProducerNames())
    monkeypatch.undo()
    with pytest.raises(SnapshotError, match="format 99 come from a server of a newer version"):
        decode_updates(content, ProducerNames())
