"""Random producers against the core, with the naive oracle beside it.

The machine is a producer with everything that happens to one: pipelined sends that arrive late,
out of order, twice or never; retries with other batching; zombies of lower generations; bumps and
grants; and plain nonsense. Every verdict, and the state after it, is compared.
"""

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.property.both import Both, assert_state
from tests.property.oracle import KAFKA_NUMBERS, LIMITS, PolicyName, Sent
from tests.property.profile import examples

#: Which of several (modulo how many there are): shrinks to the oldest.
WHICH = st.integers(0, 63)
FEW = st.integers(1, 4)
CRC = st.integers(0, 1)
#: Near-wrap starts, and others: Kafka's numbers go on behind the largest with 0.
KAFKA_STARTS = st.one_of(
    st.integers(0, 3), st.integers(KAFKA_NUMBERS - 8, KAFKA_NUMBERS - 1), st.just(2**30)
)
#: Five of them are less than all of Kafka's numbers. Otherwise a new batch may have the very range
#: of a kept one: disputed, see test_a_new_batch_that_comes_round_to_a_kept_range_is_no_duplicate.
STRIDES = [2**26, 2**27, 2**28 - 1, 2**28]
EDGES = st.sampled_from([2**15, 2**30, 2**31, 2**53, 2**63])
ODD = st.one_of(st.integers(-2, 6), st.builds(int.__add__, EDGES, st.integers(-2, 2)))


class Producers(RuleBasedStateMachine):
    """One PID on one partition, and all who use it."""

    policy: PolicyName

    def __init__(self) -> None:
        super().__init__()
        self.both = Both(self.policy, "young")
        self.generation = 0
        self.next = 0
        self.on_the_wire: list[Sent] = []
        self.sent: list[Sent] = []

    @property
    def goes_on(self) -> bool:
        return not self.both.oracle.restarts

    @initialize(
        age=st.sampled_from(["young", "young", "old", "never"]),
        generation=st.sampled_from([0, 0, 5, 32760]),
        start=KAFKA_STARTS,
    )
    def begin(self, age: str, generation: int, start: int) -> None:
        self.both = Both(self.policy, age)
        self.generation = generation
        any_start = self.policy == "monotonic" or (self.policy == "kafka" and age == "old")
        self.next = start if any_start else 0

    def batch(self, first: int, numbers: int, crc: int = 0, fewer: int = 0) -> Sent:
        """A batch of the producer, wrapped where the policy wraps; fewer: a chained range."""
        records = max(1, numbers - fewer) if self.policy == "strict" else numbers
        last = first + numbers - 1
        wire = self.both.oracle.wire
        return Sent(self.generation, wire(first), wire(last), records, crc)

    def numbers(self, sent: Sent) -> int:
        distance = sent.last - sent.first
        return (distance % KAFKA_NUMBERS if self.policy == "kafka" else distance) + 1

    # --- what a producer does

    @rule(numbers=FEW, crc=CRC, fewer=st.integers(0, 2))
    def send(self, numbers: int, crc: int, fewer: int) -> None:
        sent = self.batch(self.next, numbers, crc, fewer)
        self.next += numbers
        self.on_the_wire.append(sent)
        self.sent.append(sent)

    @rule(numbers=FEW)
    def send_and_arrive(self, numbers: int) -> None:
        """So that histories get long enough for a sixth batch, among all that goes wrong."""
        sent = self.batch(self.next, numbers)
        self.next += numbers
        self.sent.append(sent)
        self.both.arrive(sent)

    @rule(hole=st.integers(1, 5))
    def skip(self, hole: int) -> None:
        """A hole for monotonic; for the others a record lost before it was sent."""
        self.next += hole

    @rule(back=st.integers(0, 6))
    def resume(self, back: int) -> None:
        """Go on from what is known to be there, or from a position saved before that."""
        current = self.both.oracle.current
        high = current[-1].last if current else -1
        self.next = max(0, high + 1 - back)

    @rule(step=st.integers(0, 3), at_zero=st.booleans())
    def bump(self, step: int, at_zero: bool) -> None:
        """A new incarnation, from the log's generation or its own."""
        self.generation = max(self.both.oracle.generation, 0) + step
        if at_zero:
            self.next = 0

    @precondition(lambda self: self.goes_on)
    @rule(step=st.integers(1, 4), use=st.booleans())
    def grant(self, step: int, use: bool) -> None:
        """The name is leased again: the old incarnation may go on (a zombie), or the new one."""
        oracle = self.both.oracle
        oracle.granted = max(oracle.granted, oracle.generation) + step
        if use:
            self.generation = oracle.granted

    # --- what becomes of it on the way

    @precondition(lambda self: self.on_the_wire)
    @rule(which=WHICH)
    def arrive(self, which: int) -> None:
        self.both.arrive(self.on_the_wire.pop(which % len(self.on_the_wire)))

    @precondition(lambda self: self.on_the_wire)
    @rule(which=WHICH)
    def lose(self, which: int) -> None:
        self.on_the_wire.pop(which % len(self.on_the_wire))

    @precondition(lambda self: self.sent)
    @rule(which=WHICH, crc=CRC)
    def retry(self, which: int, crc: int) -> None:
        """Of any age, perhaps with other bytes."""
        sent = self.sent[-1 - which % len(self.sent)]
        self.both.arrive(Sent(sent.generation, sent.first, sent.last, sent.records, crc))

    @precondition(lambda self: self.sent)
    @rule(which=WHICH, up=st.integers(-3, 3))
    def retry_under_another_generation(self, which: int, up: int) -> None:
        """A zombie of a lower one, or a successor that reads the same source again."""
        sent = self.sent[-1 - which % len(self.sent)]
        generation = sent.generation + up
        self.both.arrive(Sent(generation, sent.first, sent.last, sent.records, sent.crc))

    @precondition(lambda self: self.sent)
    @rule(which=WHICH, at=FEW)
    def split(self, which: int, at: int) -> None:
        sent = self.sent[-1 - which % len(self.sent)]
        numbers = self.numbers(sent)
        if numbers > at:
            self.generation = sent.generation
            self.both.arrive(self.batch(sent.first, at))
            self.both.arrive(self.batch(sent.first + at, numbers - at))

    @precondition(lambda self: self.sent)
    @rule(which=WHICH, numbers=st.integers(1, 12))
    def merge(self, which: int, numbers: int) -> None:
        """Re-batched: from the start of one batch, over whatever followed it."""
        sent = self.sent[-1 - which % len(self.sent)]
        self.generation = sent.generation
        self.both.arrive(self.batch(sent.first, numbers))

    # --- what no producer of ours does

    @rule(away=st.integers(-8, 4), numbers=st.integers(1, 9), up=st.integers(-1, 2), crc=CRC)
    def anything_near_high(self, away: int, numbers: int, up: int, crc: int) -> None:
        current = self.both.oracle.current
        first = max(0, (current[-1].last if current else -1) + 1 + away)
        self.generation = max(0, self.both.oracle.generation + up)
        self.both.arrive(self.batch(first, numbers, crc))

    @precondition(lambda self: self.policy in ("kafka", "strict"))
    @rule(numbers=st.sampled_from(STRIDES), times=FEW)
    def leap(self, numbers: int, times: int) -> None:
        """Far enough to drag Kafka's low mark along, and to come round."""
        for _ in range(times):
            current = self.both.oracle.current
            first = (current[-1].last if current else -1) + 1
            self.both.arrive(self.batch(first, numbers))

    @precondition(lambda self: self.policy == "kafka")
    @rule(half=st.sampled_from([-1, 1]), away=st.integers(-2, 2))
    def half_the_space_away(self, half: int, away: int) -> None:
        current = self.both.oracle.current
        first = (current[-1].last if current else -1) + 1 + half * 2**30 + away
        self.both.arrive(self.batch(first, 1))

    @rule(generation=ODD, first=ODD, last=ODD, records=st.one_of(st.integers(-1, 4), EDGES))
    def nonsense(self, generation: int, first: int, last: int, records: int) -> None:
        """At the edges of the number widths too, as long as the batch, if well formed, is one
        that the machine can go on from: a huge generation or H would end the history."""
        sent = Sent(generation, first, last, records)
        oracle = self.both.oracle
        if oracle.judge(sent).kind != "admit" or max(generation, last) < 2**14:
            self.both.arrive(sent)

    @rule(
        up=st.integers(0, 1),
        beyond_sequences=st.integers(-2, 3),
        beyond_generations=st.sampled_from([None, -1, 0, 1]),
        records=st.integers(1, 3),
    )
    def at_the_widths(
        self, up: int, beyond_sequences: int, beyond_generations: int | None, records: int
    ) -> None:
        """The last numbers that a policy has, and the first that it has not. Judged, not folded:
        a history that has reached them cannot go on."""
        sequence_max, generation_max = LIMITS[self.policy]
        generation = max(0, self.both.oracle.generation + up)
        if beyond_generations is not None:
            generation = generation_max + beyond_generations
        last = sequence_max + beyond_sequences
        sent = Sent(generation, last - records + 1, last, records)
        self.both.copy().arrive(sent)

    @invariant()
    def state_says_what_the_history_says(self) -> None:
        assert_state(self.both.oracle, self.both.state)

    @invariant()
    def generations_never_fall(self) -> None:
        generations = [a.sent.generation for a in self.both.oracle.accepted]
        assert generations == sorted(generations)
        assert max(generations, default=0) <= LIMITS[self.policy][1]


class StrictProducers(Producers):
    policy = "strict"


class KafkaProducers(Producers):
    policy = "kafka"


class MonotonicProducers(Producers):
    policy = "monotonic"


class EpochProducers(Producers):
    policy = "epoch"


TestStrict = StrictProducers.TestCase
TestKafka = KafkaProducers.TestCase
TestMonotonic = MonotonicProducers.TestCase
TestEpoch = EpochProducers.TestCase

TestStrict.settings = TestKafka.settings = examples(100, steps=40)
TestMonotonic.settings = TestEpoch.settings = examples(100, steps=40)
