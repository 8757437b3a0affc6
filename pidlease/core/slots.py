"""Slots: which of several active servers owns which partition.

A partition belongs to one of 1,024 slots, by its topic and number, so a new topic needs no
assignment. The map names the owner of each slot. A reassignment moves the fewest slots.
"""

import heapq
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple
from zlib import crc32

from pidlease.core.topic_partition import INTERNAL_TOPICS, TopicPartition

SLOTS: Final = 1024
#: The owner of a slot that no server owns. Node ids begin at 1.
NO_OWNER: Final = 0


class SlotMap(NamedTuple):
    """The owners of all slots.

    Attributes:
        owners: node ids, by slot; `NO_OWNER`: none.
        epochs: how often each slot has changed its owner.
        members: the servers among which the slots were divided last.
        version: of the coordinator's node; -1: there is no map yet.
    """

    owners: tuple[int, ...]
    epochs: tuple[int, ...]
    members: tuple[int, ...] = ()
    version: int = -1

    def owner(self, partition: TopicPartition) -> int:
        """Return the node id of a partition's owner; `NO_OWNER`: there is none."""
        return self.owners[slot_of(*partition)]

    def count(self, member: int) -> int:
        """Return how many slots a server owns."""
        return self.owners.count(member)


#: The map before the first assignment.
EMPTY_MAP: Final = SlotMap((NO_OWNER,) * SLOTS, (0,) * SLOTS)


def slot_of(topic: str, number: int) -> int:
    """Return the slot of a partition. Servers of all versions compute the same one."""
    return (crc32(topic.encode()) + number) % SLOTS


def slot_weights(topics: Mapping[str, int]) -> list[int]:
    """Count the partitions of each slot that producers may write to.

    Kafka's internal topics are not counted: a cluster has about a hundred partitions of them, and
    a server that got these would have no partition of a small topic.

    Parameters:
        topics: the number of partitions, by topic.
    """
    # By how much each slot has more than the one before it. A topic's partitions lie in adjacent
    # slots, so it changes a few of these, however many it has.
    steps = [0] * SLOTS
    for topic, count in topics.items():
        if topic in INTERNAL_TOPICS:
            continue
        rounds, rest = divmod(count, SLOTS)
        first = slot_of(topic, 0)
        end = first + rest
        steps[0] += rounds + (end > SLOTS)
        steps[first] += 1
        if end != SLOTS:
            steps[end % SLOTS] -= 1
    return list(accumulate(steps))


def are_divided(slots: SlotMap, members: Sequence[int]) -> bool:
    """Return whether the slots were divided among just these servers; or there are none."""
    return not members or tuple(sorted(members)) == slots.members


def reassigned(
    before: SlotMap, members: Sequence[int], weights: Sequence[int], *, anew: bool = False
) -> SlotMap:
    """Divide the slots among servers, and move the fewest.

    While the servers are the same, nothing moves: new topics do not move partitions of others.

    Parameters:
        before: the current map.
        members: the node ids of the servers that may own slots.
        weights: the number of partitions, by slot.
        anew: divide them even if the servers are the same.

    Returns:
        The new map; the current one itself if it stays.
    """
    if not members or (are_divided(before, members) and not anew):
        return before
    wanted = tuple(sorted(members))
    known = frozenset(wanted)
    owners = [owner if owner in known else NO_OWNER for owner in before.owners]
    # Slots with partitions and those without are divided separately: a topic that is created
    # later lies in slots without any, and its partitions should not all have one owner.
    _divide(owners, wanted, {slot: weight for slot, weight in enumerate(weights) if weight})
    _divide(owners, wanted, {slot: 1 for slot, weight in enumerate(weights) if not weight})
    if wanted == before.members and tuple(owners) == before.owners:
        return before
    epochs = tuple(
        epoch + (owner != former)
        for epoch, owner, former in zip(before.epochs, owners, before.owners, strict=True)
    )
    return SlotMap(tuple(owners), epochs, wanted, before.version)


def _divide(owners: list[int], members: Sequence[int], weights: Mapping[int, int]) -> None:
    """Divide some slots among servers.

    Parameters:
        owners: of all slots; changed in place.
        weights: the weights of the slots to divide.
    """
    held: dict[int, list[int]] = {member: [] for member in members}
    free = []
    for slot in weights:
        if owners[slot] == NO_OWNER:
            free.append(slot)
        else:
            held[owners[slot]].append(slot)
    target = -(-sum(weights.values()) // len(members))
    loads = {member: sum(weights[slot] for slot in slots) for member, slots in held.items()}
    for member, slots in held.items():
        for slot in _spread(slots, loads[member] - target, loads[member]):
            if loads[member] - weights[slot] < target:
                continue
            loads[member] -= weights[slot]
            free.append(slot)
    heap = [(load, member) for member, load in loads.items()]
    heapq.heapify(heap)
    for slot in sorted(free, key=lambda slot: (-weights[slot], slot)):
        load, member = heapq.heappop(heap)
        owners[slot] = member
        heapq.heappush(heap, (load + weights[slot], member))


def _spread(slots: Sequence[int], surplus: int, load: int) -> list[int]:
    """Return slots in an order that begins with as many, evenly spaced, as a surplus may need.

    What is left is evenly spaced, too: the partitions of a topic lie in adjacent slots.
    """
    count = -(-len(slots) * max(surplus, 0) // load) if load else 0
    first = {index * len(slots) // count for index in range(count)}
    rest = (slot for index, slot in enumerate(slots) if index not in first)
    return [*(slots[index] for index in sorted(first)), *rest]
