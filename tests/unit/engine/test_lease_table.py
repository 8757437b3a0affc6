"""The table of leases against a dictionary, and reading a ring that changes meanwhile."""

from random import Random

import pytest

from pidlease.core.pid import Policy, make_pid
from pidlease.core.ring import LeaseRing
from pidlease.engine.leases.lease_table import LeaseTable
from pidlease.storage.snapshots import LeaseRow, LeaseRows
from tests.unit.engine.test_leases import FakePartition


@pytest.mark.parametrize("seed", range(20))
def test_the_table_is_a_dictionary(seed: int) -> None:
    random = Random(seed)
    table = LeaseTable()
    times: dict[int, LeaseRow] = {}
    where: dict[int, list[FakePartition]] = {}
    partitions = [FakePartition() for _ in range(4)]
    # Neighbours, the ends of blocks, and one of which nobody knows where it comes from.
    numbers = [1, 2, 99, 100, 101, 200, 201, 5000, 2**48 - 1]
    pids = [make_pid(Policy.KAFKA, n) for n in numbers]
    for _ in range(600):
        pid = random.choice(pids)
        match random.choice(["put", "pop", "add", "remove"]):
            case "put":
                lease = LeaseRow(pid, random.choice([-1, 0, 7]), random.choice([-1, 0, 9]))
                table.put(*lease)
                times[pid] = lease
                where.setdefault(pid, [])
            case "pop" if pid in times:
                assert set(table.pop(pid)) == set(where.pop(pid))
                del times[pid]
            case "add" if pid in times:
                partition = random.choice(partitions)
                table.add_partition(pid, partition)
                if partition not in where[pid]:
                    where[pid].append(partition)
            case "remove" if pid in times:
                partition = random.choice(partitions)
                table.remove_partition(pid, partition)
                where[pid] = [each for each in where[pid] if each is not partition]
        assert len(table) == len(times)
        assert {pid: table.get(pid) for pid in pids} == {pid: times.get(pid) for pid in pids}
        assert all(list(table.partitions(pid)) == where[pid] for pid in times)
        lists = (of for block in table._blocks.values() for of in block.partitions)
        assert not any(isinstance(of, list) and len(of) == 1 for of in lists), "no list for one"
        rows = LeaseRows()
        table.visit(pids, rows.append)
        assert list(rows) == [times[pid] for pid in pids if pid in times]
    for pid in list(times):
        table.pop(pid)
    assert not table._blocks, "nothing is kept of what is gone"


@pytest.mark.parametrize("seed", range(30))
def test_a_ring_that_is_read_in_parts_leaves_nobody_out(seed: int) -> None:
    """Whoever is in the ring from the first part to the last one is read."""
    random = Random(seed)
    ring = LeaseRing(10_000)
    for pid in range(random.randint(0, 400)):
        ring.restore(pid, pid)
    there = {pid for pid, _ in ring}
    gone: set[int] = set()
    read: list[int] = []
    new, position = 10_000, ring.head
    while True:
        position, pids = ring.read(position, random.randint(1, 60))
        if not pids:
            break
        read += pids
        for _ in range(random.randint(0, 20)):
            ring.restore(new, new)
            new += 1
        due = random.choice([0, 0, 20, 100])
        gone |= set(ring.expire(due, lambda pid: None if pid % 3 else 1000, limit=50))
        if new > 12_000:
            break
    assert there - gone <= set(read)
