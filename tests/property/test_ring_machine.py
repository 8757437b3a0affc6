"""The lease ring against a plain list, and what a lease was promised."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pidlease.core.ring import LeaseRing, RingFullError
from tests.property.profile import examples

#: Around the reserve that a ring begins with (1024), growth is another path.
CAPACITIES = st.one_of(st.integers(1, 6), st.integers(1020, 1100))
MANY = st.one_of(st.integers(1, 4), st.integers(1, 700))


class Ring(RuleBasedStateMachine):
    """Leases come, are restored, renewed and let go; a list remembers what must be there."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = LeaseRing(1)
        self.entries: list[tuple[int, int]] = []
        self.now_ms = 0
        self.last_pid = 0

    @initialize(capacity=CAPACITIES)
    def begin(self, capacity: int) -> None:
        self.ring = LeaseRing(capacity)

    def new_pid(self) -> int:
        self.last_pid += 1
        return self.last_pid

    @rule(lease_ms=st.integers(0, 9), times=MANY)
    def grant(self, lease_ms: int, times: int) -> None:
        for _ in range(times):
            pid, due_ms = self.new_pid(), self.now_ms + lease_ms
            try:
                self.ring.grant(pid, due_ms)
            except RingFullError:
                assert len(self.entries) >= self.ring.capacity
            else:
                assert len(self.entries) < self.ring.capacity
                self.entries.append((pid, due_ms))

    @rule(lease_ms=st.integers(0, 9), times=MANY)
    def restore(self, lease_ms: int, times: int) -> None:
        for _ in range(times):
            pid = self.new_pid()
            self.ring.restore(pid, self.now_ms + lease_ms)
            self.entries.append((pid, self.now_ms + lease_ms))

    @rule(ms=st.integers(0, 15))
    def time_goes_on(self, ms: int) -> None:
        self.now_ms += ms

    @rule(ms=st.integers(-1, 1))
    def time_goes_on_to_the_head(self, ms: int) -> None:
        """To the ms before, at and after a lease's end: that is where an error would sit."""
        if self.entries:
            self.now_ms = max(self.now_ms, self.entries[0][1] + ms)

    @rule(
        limit=st.one_of(st.integers(0, 5), st.just(1000)),
        stays=st.integers(1, 4),
        stays_ms=st.integers(-3, 20),
    )
    def expire(self, limit: int, stays: int, stays_ms: int) -> None:
        """Every `stays`-th PID has a second chance, some of them with a time that has passed
        already (an entry with batches in flight)."""

        def renewal(pid: int) -> int | None:
            return self.now_ms + stays_ms if pid % stays == 1 else None

        due_ms = dict(self.entries)
        gone = self.ring.expire(self.now_ms, renewal, limit)
        assert all(due_ms[pid] <= self.now_ms for pid in gone), "evicted before its time"

        expected: list[int] = []
        for pid, due in self.entries[:limit]:
            if due > self.now_ms:
                break
            self.entries.remove((pid, due))
            until_ms = renewal(pid)
            if until_ms is None:
                expected.append(pid)
            else:
                self.entries.append((pid, until_ms))
        assert gone == expected

    @invariant()
    def holds_what_the_list_holds(self) -> None:
        assert len(self.ring) == len(self.entries)
        assert list(self.ring) == self.entries


TestRing = Ring.TestCase
TestRing.settings = examples(250, steps=30)
