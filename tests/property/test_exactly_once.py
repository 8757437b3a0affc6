"""The point of it all, without an oracle: every record once, in order, none skipped.

Two ways to look. First whoever sends whatever: what a dense policy admits is one unbroken run of
numbers for each generation. Then producers that keep their side (the design's client rules), over
a channel that loses, repeats and reorders: in the end the log holds their source, record by
record.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import example, given, note
from hypothesis import strategies as st

from pidlease.core.judge import Age, Kind, Verdict, judge
from pidlease.core.state import Batch, ProducerState, fold
from tests.property.both import rules_of
from tests.property.oracle import KAFKA_NUMBERS, PolicyName
from tests.property.profile import examples

DENSE: list[PolicyName] = ["strict", "kafka", "epoch"]


@dataclass
class Log:
    """A partition: judge, append, apply.

    Attributes:
        policy: of its one producer.
        records: (generation, sequence) of each record, in order.
    """

    policy: PolicyName
    state: ProducerState | None = None
    records: list[tuple[int, int]] = field(default_factory=list)

    def produce(self, generation: int, first: int, count: int) -> Verdict:
        rules = rules_of(self.policy)
        modulus = KAFKA_NUMBERS if self.policy == "kafka" else 2**64
        batch = Batch(generation, first % modulus, (first + count - 1) % modulus, count)
        verdict = judge(rules, self.state, batch, Age.YOUNG)
        if verdict.kind is Kind.ADMIT:
            self.state = fold(rules, self.state, batch, len(self.records), 0)
            self.records += [(generation, (first + i) % modulus) for i in range(count)]
        return verdict


# --- whoever sends whatever ---------------------------------------------------------------------

ARBITRARY = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(1, 5)), max_size=60
)


@pytest.mark.parametrize("policy", DENSE)
@examples(200)
@given(sends=ARBITRARY)
def test_admitted_numbers_are_one_unbroken_run(
    policy: PolicyName, sends: list[tuple[int, int, int]]
) -> None:
    log = Log(policy)
    for generation, first, count in sends:
        log.produce(generation, first, count)
    assert len(set(log.records)) == len(log.records), "a record twice"
    generations = [generation for generation, _ in log.records]
    assert generations == sorted(generations), "a zombie's record behind its successor's"
    if policy == "strict":
        assert [sequence for _, sequence in log.records] == list(range(len(log.records)))
    else:
        for generation in set(generations):
            run = [sequence for g, sequence in log.records if g == generation]
            assert run == list(range(len(run)))


@examples(200)
@given(sends=ARBITRARY)
def test_monotonic_numbers_only_grow(sends: list[tuple[int, int, int]]) -> None:
    log = Log("monotonic")
    for generation, first, count in sends:
        log.produce(generation, first, count)
    sequences = [sequence for _, sequence in log.records]
    assert all(a < b for a, b in pairwise(sequences))


# --- producers that keep their side -------------------------------------------------------------

IN_FLIGHT_MAX = 5


@dataclass(frozen=True, slots=True)
class Flying:
    """Records [at, at + count) of the source, under a producer's numbers.

    Attributes:
        generation: of the incarnation that sent it.
        base: the place in the source that its sequence 0 stands for.
    """

    generation: int
    base: int
    at: int
    count: int


@dataclass
class Channel:
    """A producer with a source of records, and a channel on which anything may happen.

    Attributes:
        log: where the records go.
        start: for kafka, the sequence of the source's first record, to come near the wrap.
        position: the source's next record to send.
        flying: sent, neither arrived nor lost.
        past: everything ever sent: any of it may arrive again.
    """

    log: Log
    start: int = 0
    generation: int = 0
    base: int = 0
    position: int = 0
    flying: list[Flying] = field(default_factory=list)
    past: list[Flying] = field(default_factory=list)
    contents: list[int] = field(default_factory=list)

    def send(self, count: int) -> None:
        if len(self.flying) < IN_FLIGHT_MAX:
            self.flying.append(Flying(self.generation, self.base, self.position, count))
            self.past.append(self.flying[-1])
            self.position += count

    def arrive(self, batch: Flying) -> Verdict:
        first = batch.at - batch.base + (self.start if batch.generation == 0 else 0)
        verdict = self.log.produce(batch.generation, first, batch.count)
        if verdict.kind is Kind.ADMIT:
            self.contents += range(batch.at, batch.at + batch.count)
        return verdict

    def drain(self, records: int) -> None:
        """A fault-free end: send from the oldest record that may be missing, as told."""
        self.flying.clear()
        position = self.base
        for _ in range(2 * records + 10):
            if position >= records:
                return
            count = min(3, records - position)
            batch = Flying(self.generation, self.base, position, count)
            verdict = self.arrive(batch)
            assert verdict.kind in (Kind.ADMIT, Kind.DUPLICATE, Kind.OVERLAP), (batch, verdict)
            if verdict.kind is Kind.OVERLAP:  # cut, and send the rest
                shift = self.start if self.generation == 0 else 0
                position = self.base + (verdict.expected - shift) % KAFKA_NUMBERS
            else:
                position += count
        raise AssertionError(f"stuck at record {position}")


#: (what happens, to which batch, how many records or how far back)
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "send", "arrive", "arrive", "lose", "again", "new"]),
        st.integers(0, 9),
        st.integers(1, 4),
    ),
    max_size=80,
)


def act(channel: Channel, what: str, which: int, amount: int) -> None:
    """What all policies have in common; "new" is for each to say."""
    flying, past = channel.flying, channel.past
    if what == "send":
        channel.send(amount)
    elif what == "arrive" and flying:
        channel.arrive(flying.pop(which % len(flying)))
    elif what == "lose" and flying:
        flying.pop(which % len(flying))
    elif what == "again" and past:
        channel.arrive(past[-1 - which % len(past)])


@examples(200)
@given(actions=ACTIONS)
@example(actions=[("send", 0, 4), ("arrive", 0, 1), ("new", 0, 4), ("new", 0, 4), ("send", 0, 4)])
def test_strict_source_arrives_once_whoever_crashes(actions: list[tuple[str, int, int]]) -> None:
    """A crash begins again from a saved position, at the log's generation + 1, and what the dead
    incarnation had on the wire may still come: the numbers are the source's own."""
    channel = Channel(Log("strict"))
    for what, which, amount in actions:
        if what == "new":
            state = channel.log.state
            channel.generation = 0 if state is None else state.generation + 1
            high = -1 if state is None else state.high
            channel.position = max(0, high + 1 - amount + which % 2)
        act(channel, what, which, amount)
    records = max(20, max((b.at + b.count for b in channel.past), default=0))
    state = channel.log.state
    channel.generation = 0 if state is None else state.generation
    channel.drain(records)
    note(f"log: {channel.log.records}")
    assert channel.contents == list(range(len(channel.contents)))
    assert len(channel.contents) >= records


@pytest.mark.parametrize("policy", ["kafka", "epoch"])
@examples(200)
@given(actions=ACTIONS)
def test_restarting_source_arrives_once(
    policy: PolicyName, actions: list[tuple[str, int, int]]
) -> None:
    """A bump begins at 0 with the first record not yet accepted, and only when nothing is
    unresolved: that is the client's side of it. Older copies may come at any time."""
    channel = Channel(Log(policy))
    for what, which, amount in actions:
        if what == "new":
            end = len(channel.contents)
            if any(b.at + b.count > end for b in channel.past):
                continue
            channel.flying.clear()
            channel.generation += amount
            channel.base = channel.position = end
        act(channel, what, which, amount)
    records = max(20, max((b.at + b.count for b in channel.past), default=0))
    channel.drain(records)
    note(f"log: {channel.log.records}")
    assert channel.contents == list(range(records))


@examples(200)
@given(actions=ACTIONS, before_the_wrap=st.integers(1, 12))
def test_kafka_source_arrives_once_across_the_wrap(
    actions: list[tuple[str, int, int]], before_the_wrap: int
) -> None:
    """The same without bumps, on a partition whose numbers are about to wrap."""
    start = KAFKA_NUMBERS - before_the_wrap
    log = Log("kafka", ProducerState(0, start - 1, start - 100, (), 0))
    channel = Channel(log, start)
    for what, which, amount in actions:
        act(channel, what, which, amount)
    records = max(20, max((b.at + b.count for b in channel.past), default=0))
    channel.drain(records)
    assert channel.contents == list(range(records))


@examples(200)
@given(
    holes=st.lists(st.integers(1, 4), min_size=20, max_size=20),
    actions=st.lists(st.tuples(st.sampled_from(["go", "break", "crash"]), st.integers(0, 5))),
)
def test_monotonic_source_arrives_once_over_sessions(
    holes: list[int], actions: list[tuple[str, int]]
) -> None:
    """No density protects it, so a session is a connection: what arrives of it is a beginning of
    what was sent, in order. A break loses the rest, and perhaps answers; then all is sent again
    from the first record without an answer."""
    ids = [sum(holes[: i + 1]) for i in range(len(holes))]
    log = Log("monotonic")
    generation = position = answered = 0
    for what, amount in actions:
        if what == "go":
            for at in range(position, min(position + amount, len(ids))):
                log.produce(generation, ids[at], 1)
            position = min(position + amount, len(ids))
        else:
            answered = max(answered, position - amount)
            position = answered
            generation += what == "crash" and bool(log.records) and log.records[-1][0] == generation
    for at in range(position, len(ids)):
        verdict = log.produce(generation, ids[at], 1)
        assert verdict.kind in (Kind.ADMIT, Kind.DUPLICATE)
    assert [sequence for _, sequence in log.records] == ids
