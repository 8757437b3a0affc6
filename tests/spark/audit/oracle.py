"""A naive audit to compare with the real one: it remembers all sequence numbers that it has seen.

It counts Kafka's sequence numbers without a wrap; only `wire` wraps them. It must import nothing
from pidlease.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

KAFKA_NUMBERS: Final = 2**31
HALF: Final = 2**30
RESTARTS: Final = ("kafka", "epoch")


class Send(NamedTuple):
    """A send, with sequence numbers that do not wrap."""

    generation: int
    first: int
    last: int
    records: int

    def wire(self, policy: str) -> "Send":
        """Return the send as it is in the log."""
        if policy != "kafka":
            return self
        first, last = self.first % KAFKA_NUMBERS, self.last % KAFKA_NUMBERS
        return self._replace(first=first, last=last)


class OracleFinding(NamedTuple):
    """A finding: its send's index in the history, a kind, and how many numbers."""

    at: int
    kind: str
    numbers: int


@dataclass
class Oracle:
    """One producer's history on one partition.

    Attributes:
        policy: strict, kafka, monotonic or epoch.
        whole: whether the log is complete.
    """

    policy: str
    whole: bool = True
    generation: int = -1
    top: int = -1
    low: int = 0
    #: All numbers below are known, or left out, from here on.
    since: int = 0
    seen: set[int] = field(default_factory=set)
    findings: list[OracleFinding] = field(default_factory=list)

    def audit(self, sends: Sequence[Send]) -> list[OracleFinding]:
        """The findings about the sends, in order."""
        for index, send in enumerate(sends):
            follower = sends[index + 1] if index + 1 < len(sends) else None
            self._look(index, send, follower)
        return self.findings

    def _look(self, index: int, send: Send, follower: Send | None) -> None:
        send = self._meant(send)
        numbers = send.last - send.first + 1
        ranges = self.policy in ("strict", "monotonic")
        if send.records > numbers or (not ranges and send.records != numbers):
            self.findings.append(OracleFinding(index, "malformed", send.records))
            if self._would_pass(send):
                cut = self.generation < 0 and not self.whole
                self._take(send, since=send.first if cut else None)
            return
        if send.generation < self.generation:
            self.findings.append(OracleFinding(index, "fenced", send.records))
            return
        if self._begins(send):
            if self.generation < 0 and not self.whole:
                self._take(send, since=send.first)
                return
            if send.first and self.policy != "monotonic":
                self.findings.append(OracleFinding(index, "gap", send.first))
            self._take(send, since=0)
            return
        if self._restarts(send, follower):
            self.findings.append(OracleFinding(index, "restart", send.records))
            self.seen.clear()
            self._take(send, since=0)
            return
        if send.generation > self.generation + 1:
            self.findings.append(OracleFinding(index, "generation jump", send.records))
        self._by_numbers(index, send)

    def _by_numbers(self, index: int, send: Send) -> None:
        numbers = range(send.first, min(send.last, self.top) + 1)
        stored = sum(each in self.seen or each < self.since for each in numbers)
        if send.last <= self.top:
            if not stored:
                self.findings.append(OracleFinding(index, "late", send.records))
            elif self.policy in RESTARTS and send.first < self.low and stored == len(numbers):
                self.findings.append(OracleFinding(index, "gap", 0))
                return
            else:
                self.findings.append(OracleFinding(index, "duplicate", min(stored, send.records)))
            self.seen.update(numbers)
            self.low = min(self.low, send.first)
            return
        if send.first <= self.top:
            self.findings.append(OracleFinding(index, "overlap", min(stored, send.records)))
        elif send.first > self.top + 1 and self.policy != "monotonic":
            self.findings.append(OracleFinding(index, "gap", send.first - self.top - 1))
        self._take(send)

    def _meant(self, send: Send) -> Send:
        """Kafka: of all the numbers that it may mean, the one near H; far ahead means earlier."""
        if self.policy != "kafka":
            return send
        if self._begins(send):
            first = send.first % KAFKA_NUMBERS
        else:
            ahead = (send.first - self.top - 1 + HALF) % KAFKA_NUMBERS - HALF
            first = self.top + 1 + ahead
        return send._replace(first=first, last=first + send.last - send.first)

    def _begins(self, send: Send) -> bool:
        higher = self.policy in RESTARTS and send.generation > self.generation
        return self.generation < 0 or higher

    def _would_pass(self, send: Send) -> bool:
        if send.generation < self.generation:
            return False
        if self._begins(send):
            cut = self.generation < 0 and not self.whole
            return send.first == 0 or self.policy == "monotonic" or cut
        beyond = self.policy == "monotonic" and send.first > self.top
        return send.first == self.top + 1 or beyond

    def _restarts(self, send: Send, follower: Send | None) -> bool:
        if self.policy != "epoch" or send.first or send.generation != self.generation:
            return False
        goes_on = (
            follower is not None
            and follower.generation == send.generation
            and follower.first == send.last + 1
        )
        return goes_on and send.last < self.top

    def _take(self, send: Send, since: int | None = None) -> None:
        if self._begins(send) or since is not None:
            self.seen.clear()
            self.low = send.first
            self.since = 0 if since is None else since
        self.generation = max(self.generation, send.generation)
        self.top = send.last
        self.low = min(self.low, send.first)
        self.seen.update(range(send.first, send.last + 1))
