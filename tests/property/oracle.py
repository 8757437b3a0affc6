"""A naive judge, to hold the real one against. Written from the design's words alone.

It keeps everything that was ever accepted, for ever, and asks of each batch what the rules mean:
"was every one of its numbers accepted?" where the core compares with H. Kafka's numbers are
unwrapped into numbers that only grow, so that nothing here has to think about the wrap, about
half spaces (but for the one line of the design that says which way a number is meant), or about
dragging marks along. It imports nothing from pidlease, and must not.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

PolicyName = Literal["strict", "kafka", "monotonic", "epoch"]
POLICY_NAMES: Final[tuple[PolicyName, ...]] = ("strict", "kafka", "monotonic", "epoch")

#: policy -> (largest sequence, largest generation)
LIMITS: Final = {
    "strict": (2**63 - 1, 2**63 - 1),
    "kafka": (2**31 - 1, 2**15 - 1),
    "monotonic": (2**63 - 1, 2**63 - 1),
    "epoch": (2**53 - 1, 2**53 - 1),
}
KAFKA_NUMBERS: Final = 2**31
BEHIND: Final = 2**30
KAFKA_SPAN_MAX: Final = 2**28


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch as it arrives."""

    generation: int
    first: int
    last: int
    records: int
    crc: int = 0


@dataclass(frozen=True, slots=True)
class Accepted:
    """A batch in the log, with its numbers unwrapped."""

    sent: Sent
    first: int
    last: int
    offset: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What the design has a batch answered; -1 where the answer has no such field."""

    kind: str
    offset: int = -1
    expected: int = -1
    generation: int = -1
    differs: bool = False


@dataclass
class Oracle:
    """One producer on one partition.

    Attributes:
        policy: its policy.
        age: of its PID's block: young, old or never.
        granted: the last generation granted to its name, -1 for none.
        accepted: everything, in the order in which it was accepted.
    """

    policy: PolicyName
    age: str = "young"
    granted: int = -1
    accepted: list[Accepted] = field(default_factory=list)

    @property
    def restarts(self) -> bool:
        return self.policy in ("kafka", "epoch")

    @property
    def generation(self) -> int:
        """The highest generation seen; -1 before the first batch."""
        return max((a.sent.generation for a in self.accepted), default=-1)

    @property
    def current(self) -> list[Accepted]:
        """What the batch's numbers are compared with: strict and monotonic numbers go on across
        generations, the others begin anew."""
        if not self.restarts:
            return self.accepted
        return [a for a in self.accepted if a.sent.generation == self.generation]

    @property
    def high(self) -> int:
        """H, unwrapped."""
        return self.current[-1].last

    def wire(self, number: int) -> int:
        """An unwrapped number as it stands on the wire."""
        return number % KAFKA_NUMBERS if self.policy == "kafka" else number

    def judge(self, sent: Sent) -> Answer:
        """Rule by rule, in the design's order (but a name's binding before all of 2 to 5)."""
        if self._malformed(sent):
            return Answer("malformed")
        if sent.generation < self.granted:
            return Answer("fenced", generation=self.granted)
        if 0 <= self.granted < sent.generation:
            return Answer("malformed", generation=self.granted)
        if not self.accepted:
            return self._first_ever(sent)
        if sent.generation < self.generation:
            return Answer("fenced", generation=self.generation)
        if sent.generation > self.generation:
            if self.restarts:
                return Answer("admit") if sent.first == 0 else Answer("gap", expected=0)
            if sent.generation not in (self.generation + 1, self.granted):
                return Answer("malformed", generation=self.generation)
        return self._by_numbers(sent)

    def accept(self, sent: Sent, offset: int) -> None:
        """Put an admitted batch into the history."""
        new = not self.accepted or (self.restarts and sent.generation > self.generation)
        first = sent.first if new else self._unwrapped(sent)
        last = first + self._numbers(sent) - 1
        self.accepted.append(Accepted(sent, first, last, offset))

    def _malformed(self, sent: Sent) -> bool:
        sequence_max, generation_max = LIMITS[self.policy]
        if not 0 <= sent.generation <= generation_max:
            return True
        if not 0 <= sent.first <= sequence_max or not 0 <= sent.last <= sequence_max:
            return True
        numbers = self._numbers(sent)
        if self.policy in ("strict", "monotonic"):
            return not 1 <= sent.records <= numbers
        if self.policy == "kafka" and numbers > KAFKA_SPAN_MAX:
            return True
        return sent.records != numbers or numbers < 1

    def _numbers(self, sent: Sent) -> int:
        if self.policy == "kafka" and sent.last < sent.first:
            return KAFKA_NUMBERS - sent.first + sent.last + 1
        return sent.last - sent.first + 1

    def _first_ever(self, sent: Sent) -> Answer:
        at_zero = Answer("admit") if sent.first == 0 else Answer("gap", expected=0)
        if self.policy == "epoch":
            return at_zero
        if self.age == "never":
            return Answer("unknown")
        if self.policy == "monotonic":
            return Answer("admit")
        if self.age == "young":
            return at_zero
        return Answer("admit") if self.policy == "kafka" else Answer("unknown")

    def _by_numbers(self, sent: Sent) -> Answer:
        for accepted in self.current[-5:]:
            if (accepted.sent.first, accepted.sent.last) == (sent.first, sent.last):
                # The CRC covers the generation: of another one it says nothing.
                same = sent.generation == self.generation
                differs = same and accepted.sent.crc != sent.crc
                return Answer("duplicate", offset=accepted.offset, differs=differs)
        first = self._unwrapped(sent)
        last = first + self._numbers(sent) - 1
        expected = self.wire(self.high + 1)
        if self.policy == "monotonic":
            if last <= self.high:
                return Answer("duplicate")
            return Answer("overlap", expected=expected) if first <= self.high else Answer("admit")
        if self._all_accepted(first, last):
            return Answer("duplicate")
        if first <= self.high < last:
            return Answer("overlap", expected=expected)
        return Answer("admit") if first == self.high + 1 else Answer("gap", expected=expected)

    def _unwrapped(self, sent: Sent) -> int:
        """Kafka: of all the numbers that a first may mean, the one near H that the design says."""
        if self.policy != "kafka":
            return sent.first
        distance = (sent.first - (self.high + 1)) % KAFKA_NUMBERS
        if distance >= BEHIND:
            distance -= KAFKA_NUMBERS
        return self.high + 1 + distance

    def _all_accepted(self, first: int, last: int) -> bool:
        """Whether each of these numbers is in some accepted batch; a walk over all of them."""
        number = first
        while number <= last:
            holders = [a for a in self.current if a.first <= number <= a.last]
            if not holders:
                return False
            number = holders[0].last + 1
        return True
