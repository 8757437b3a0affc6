"""Slots of partitions, and their division among servers."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pidlease.core.slots import (
    EMPTY_MAP,
    NO_OWNER,
    SLOTS,
    SlotMap,
    reassigned,
    slot_of,
    slot_weights,
)
from pidlease.core.topic_partition import TopicPartition

NO_WEIGHTS = [0] * SLOTS


def test_a_partition_has_the_same_slot_in_every_version() -> None:
    assert [slot_of("orders", number) for number in (0, 1, SLOTS)] == [494, 495, 494]
    assert slot_of("bestellungen-ü", 0) == 286


def test_weights_count_partitions() -> None:
    weights = slot_weights({"orders": 3, "large": SLOTS + 1})
    assert sum(weights) == SLOTS + 4
    for number in range(3):
        assert weights[slot_of("orders", number)] >= 2
    assert max(weights) <= 3


@given(st.dictionaries(st.text(max_size=8), st.integers(0, 3 * SLOTS), max_size=20))
def test_weights_are_those_of_each_partition(topics: dict[str, int]) -> None:
    expected = Counter(
        slot_of(topic, number) for topic in topics for number in range(topics[topic])
    )
    assert slot_weights(topics) == [expected[slot] for slot in range(SLOTS)]


def test_weights_at_the_end_of_the_slots() -> None:
    first = slot_of("orders", 0)
    for count in (SLOTS - first - 1, SLOTS - first, SLOTS - first + 1, SLOTS):
        expected = Counter(slot_of("orders", number) for number in range(count))
        assert slot_weights({"orders": count}) == [expected[slot] for slot in range(SLOTS)]


def test_internal_topics_take_no_place_from_those_of_producers() -> None:
    """Once a server that came back got only these, and no partition of a topic of six."""
    topics = {"orders": 6, "__consumer_offsets": 50, "__transaction_state": 50}
    slots = reassigned(EMPTY_MAP, [1, 2], slot_weights(topics))
    slots = reassigned(slots, [1, 2, 3], slot_weights(topics))
    owners = Counter(slots.owner(TopicPartition("orders", number)) for number in range(6))
    assert owners == {1: 2, 2: 2, 3: 2}


def test_the_first_server_gets_everything() -> None:
    slots = reassigned(EMPTY_MAP, [7], NO_WEIGHTS)
    assert slots.count(7) == SLOTS
    assert set(slots.epochs) == {1}
    assert slots.owner(TopicPartition("orders", 0)) == 7


def test_while_the_servers_are_the_same_nothing_moves() -> None:
    slots = reassigned(EMPTY_MAP, [1, 2], NO_WEIGHTS)
    assert reassigned(slots, [2, 1], slot_weights({"new": 500})) is slots
    assert reassigned(slots, [], NO_WEIGHTS) is slots


@pytest.mark.parametrize("count", [2, 3, 5, 16])
def test_a_joining_server_gets_its_part_and_no_other_slot_moves(count: int) -> None:
    before = reassigned(EMPTY_MAP, list(range(1, count)), NO_WEIGHTS)
    after = reassigned(before, list(range(1, count + 1)), NO_WEIGHTS)
    moved = [slot for slot in range(SLOTS) if before.owners[slot] != after.owners[slot]]
    assert {after.owners[slot] for slot in moved} == {count}
    share = SLOTS / count
    assert all(share - count <= after.count(member) <= share + 1 for member in range(1, count + 1))
    for slot in range(SLOTS):
        assert after.epochs[slot] == before.epochs[slot] + (slot in moved)


@pytest.mark.parametrize("count", [2, 3, 5, 16])
def test_only_the_slots_of_a_leaving_server_move(count: int) -> None:
    before = reassigned(EMPTY_MAP, list(range(1, count + 1)), NO_WEIGHTS)
    after = reassigned(before, list(range(1, count)), NO_WEIGHTS)
    for former, owner in zip(before.owners, after.owners, strict=True):
        assert former in (owner, count)
    assert max(map(after.count, range(1, count))) - min(map(after.count, range(1, count))) <= 1


@pytest.mark.parametrize("partitions", [2, 6, 12, 100])
def test_the_partitions_of_a_topic_are_spread(partitions: int) -> None:
    """Of one that exists when a server joins, and of one that is created later."""
    weights = slot_weights({"orders": partitions})
    alone = reassigned(EMPTY_MAP, [1], weights)
    for known in (weights, NO_WEIGHTS):
        both = reassigned(alone, [1, 2], known)
        owners = [both.owner(TopicPartition("orders", number)) for number in range(partitions)]
        assert abs(owners.count(1) - owners.count(2)) <= 2
        assert min(owners.count(1), owners.count(2)) > 0


def test_new_topics_move_nothing_until_the_slots_are_divided_anew() -> None:
    random = Random(7)
    slots = reassigned(EMPTY_MAP, [1, 2, 3], NO_WEIGHTS)
    for count in (1, 5, 40):
        weights = slot_weights({f"topic-{random.random()}": 1 for _ in range(count)})
        assert reassigned(slots, [3, 2, 1], weights) is slots
        after = reassigned(slots, [1, 2, 3], weights, anew=True)
        loads = [
            sum(weights[slot] for slot in range(SLOTS) if after.owners[slot] == member)
            for member in (1, 2, 3)
        ]
        assert max(loads) - min(loads) <= 1
        assert reassigned(after, [1, 2, 3], weights, anew=True) is after
        slots = after


def test_servers_come_and_go_in_any_order() -> None:
    random = Random(4)
    slots: SlotMap = EMPTY_MAP
    topics = {f"topic-{number}": random.randint(1, 40) for number in range(30)}
    weights = slot_weights(topics)
    for _ in range(60):
        members = random.sample(range(1, 9), random.randint(1, 8))
        after = reassigned(slots, members, weights)
        assert set(after.owners) <= set(members)
        assert NO_OWNER not in after.owners
        for slot in range(SLOTS):
            moved = after.owners[slot] != slots.owners[slot]
            assert after.epochs[slot] == slots.epochs[slot] + moved
        loads = [
            sum(weights[slot] for slot in range(SLOTS) if after.owners[slot] == member)
            for member in members
        ]
        assert max(loads) <= sum(weights) / len(members) + 2 * max(weights)
        slots = after
