"""The lease ring: who gets a slot, who leaves, and who is never evicted."""

import pytest

from pidlease.core.pid import Policy, make_pid
from pidlease.core.ring import LeaseRing, RingFullError


def go(_pid: int) -> None:
    """No renewal: whatever is due leaves."""
    return


def filled(capacity: int, *entries: tuple[int, int]) -> LeaseRing:
    ring = LeaseRing(capacity)
    for pid, due_ms in entries:
        ring.grant(pid, due_ms)
    return ring


def test_a_grant_takes_a_slot() -> None:
    ring = LeaseRing(3)
    assert (len(ring), list(ring)) == (0, [])
    ring.grant(11, 100)
    ring.grant(12, 200)
    assert (len(ring), list(ring)) == (2, [(11, 100), (12, 200)])


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_ring_has_at_least_one_slot(capacity: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        LeaseRing(capacity)


@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_a_full_ring_refuses_and_keeps_what_it_has(capacity: int) -> None:
    ring = filled(capacity, *[(n, 100) for n in range(1, capacity + 1)])
    before = list(ring)
    for _ in range(3):
        with pytest.raises(RingFullError, match=f"all {capacity} "):
            ring.grant(99, 10**9)
    assert list(ring) == before


def test_an_unexpired_entry_is_never_evicted() -> None:
    """Nor asked for: only what is due may be renewed."""
    ring = filled(2, (1, 100), (2, 100))
    asked: list[int] = []

    def record(pid: int) -> None:
        asked.append(pid)

    assert ring.expire(99, record) == []
    with pytest.raises(RingFullError):
        ring.grant(3, 300)
    assert (asked, len(ring)) == ([], 2)


def test_due_means_at_its_time_and_frees_the_slot() -> None:
    ring = filled(2, (1, 100), (2, 200))
    assert ring.expire(100, go) == [1]
    ring.grant(3, 300)
    assert list(ring) == [(2, 200), (3, 300)]
    assert ring.expire(300, go) == [2, 3]
    assert ring.expire(300, go) == []
    assert len(ring) == 0


def test_an_entry_waits_for_the_head_before_it() -> None:
    """Kept longer than promised is fine; the head is the only place to leave from."""
    ring = filled(2, (1, 500), (2, 100))
    assert ring.expire(200, go) == []
    assert ring.expire(500, go) == [1, 2]


def test_a_second_chance_goes_to_the_tail_with_its_new_time() -> None:
    ring = filled(3, (1, 100), (2, 100), (3, 150))
    assert ring.expire(120, lambda pid: 250 if pid == 1 else None) == [2]
    assert list(ring) == [(3, 150), (1, 250)]
    assert ring.expire(260, go) == [3, 1]


def test_a_second_chance_in_a_full_ring_needs_no_free_slot() -> None:
    ring = filled(2, (1, 100), (2, 100))
    assert ring.expire(100, lambda _pid: 300) == []
    assert list(ring) == [(1, 300), (2, 300)]
    with pytest.raises(RingFullError):
        ring.grant(3, 300)


def test_each_entry_is_asked_once_a_call_even_where_it_stays_due() -> None:
    """An entry with batches in flight stays, due or not; the call must come to its end."""
    ring = filled(3, (1, 100), (2, 100), (3, 100))
    asked: list[int] = []

    def stay(pid: int) -> int:
        asked.append(pid)
        return 100

    assert ring.expire(1000, stay) == []
    assert asked == [1, 2, 3]
    assert len(ring) == 3


def test_one_call_looks_at_no_more_than_its_limit() -> None:
    ring = filled(10, *[(n, 100) for n in range(1, 11)])
    assert ring.expire(100, go, limit=4) == [1, 2, 3, 4]
    assert ring.expire(100, lambda pid: 200 if pid == 5 else None, limit=2) == [6]
    assert ring.expire(100, go, limit=0) == []
    assert ring.expire(100, go) == [7, 8, 9, 10]
    assert list(ring) == [(5, 200)]


def test_a_restore_beyond_the_capacity_refuses_until_it_has_drained() -> None:
    ring = LeaseRing(3)
    for n in range(1, 8):
        ring.restore(n, 100 * n)
    assert len(ring) == 7
    for now_ms, left in ((100, 6), (200, 5), (300, 4), (400, 3)):
        with pytest.raises(RingFullError):
            ring.grant(99, 10**6)
        ring.expire(now_ms, go)
        assert len(ring) == left
    with pytest.raises(RingFullError):
        ring.grant(99, 10**6)
    ring.expire(500, go)
    ring.grant(99, 10**6)
    assert list(ring) == [(6, 600), (7, 700), (99, 10**6)]


def test_a_full_restore_takes_a_second_chance_as_well() -> None:
    ring = LeaseRing(1)
    for n in (1, 2, 3):
        ring.restore(n, 100)
    assert ring.expire(100, lambda pid: 200 if pid != 2 else None) == [2]
    assert list(ring) == [(1, 200), (3, 200)]


@pytest.mark.parametrize("turned", [0, 1, 500, 1023])
def test_growth_keeps_the_order_wherever_the_head_is(turned: int) -> None:
    """Slots are reserved as they are needed, not a million at the start."""
    ring = LeaseRing(5000)
    for n in range(1, 1025):
        ring.grant(n, n)
    assert ring.expire(turned, go, limit=5000) == list(range(1, turned + 1))
    for n in range(1025, turned + 5001):
        ring.grant(n, n)
    assert list(ring) == [(n, n) for n in range(turned + 1, turned + 5001)]
    with pytest.raises(RingFullError):
        ring.grant(1, 10**6)


def test_many_times_around() -> None:
    ring = LeaseRing(7)
    for n in range(1, 200):
        ring.grant(n, n + 5)
        ring.expire(n, go)
        assert list(ring) == [(k, k + 5) for k in range(max(1, n - 4), n + 1)]


def test_the_largest_pid_and_the_latest_time_fit() -> None:
    pid = make_pid(Policy.WRITER, 2**48 - 1)
    ring = filled(1, (pid, 2**62))
    assert list(ring) == [(pid, 2**62)]
    assert ring.expire(2**62, go) == [pid]
