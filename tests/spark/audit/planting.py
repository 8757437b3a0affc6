"""Logs of real segments with violations planted at known places."""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from pidlease.core.pid import Policy, make_pid
from pidlease.log.ports import NewBatch
from tests.sim.batches import TIME_MS
from tests.spark.audit.logs import Logs, Origin, encoded

PLANTS = ("duplicate", "other bytes", "gap", "zombie", "overlap", "late")


class Planted(NamedTuple):
    """A finding that the audit must report."""

    topic: str
    partition: int
    producer: Origin
    kind: str
    offset: int
    numbers: int
    differs: bool = False


class Plan(NamedTuple):
    """A send, with the finding about it; an empty kind: none."""

    data: NewBatch
    kind: str = ""
    numbers: int = 0
    differs: bool = False


class Grower:
    """A producer with correct sends, except for what is planted.

    Parameters:
        random: chooses where violations are planted.
        policy: of the producer.
        count: records of a send.
    """

    def __init__(
        self, random: Random, producer: Origin, policy: str, count: int, codec: str | None
    ) -> None:
        self._random = random
        self.producer = producer
        self._policy = policy
        self._count = count
        self._codec = codec
        self._generation = 0
        self._first = 0
        self._time_ms = TIME_MS

    def sends(self, number: int, plants: int) -> Iterator[Plan]:
        """Return so many sends, with so many violations among them."""
        places = set(self._random.sample(range(3, number), plants))
        kinds = list(PLANTS)
        self._random.shuffle(kinds)
        for place in range(number):
            if place in places:
                kind = kinds.pop() if kinds else self._random.choice(PLANTS)
                yield from self._plant(kind)
            if self._random.random() < 0.01 and self._policy != "monotonic":
                self._raise()
                # A send at 0 of policy epoch may be planted as a duplicate only after others.
                yield from (self._next() for _ in range(2))
            yield self._next()

    def _plant(self, kind: str) -> Iterator[Plan]:
        first, count = self._first, self._count
        if kind in ("duplicate", "other bytes"):
            differs = kind == "other bytes"
            value = b"w" if differs else b"v" * 20
            yield Plan(self._send(first - count, count, value), "duplicate", count, differs)
        elif kind == "gap" and self._policy != "monotonic":
            self._first += 7
            yield self._next()._replace(kind="gap", numbers=7)
        elif kind == "zombie" and self._policy != "monotonic":
            self._raise()
            yield self._next()
            yield self._next()
            self._generation -= 1
            yield Plan(self._send(first, count), "fenced", count)
            self._generation += 1
        elif kind == "overlap" and count > 1:
            self._first = first + count // 2
            yield Plan(self._send(first - count + count // 2, count), "overlap", count - count // 2)
        elif kind == "late":
            late = self._send(first, count)
            self._first += count
            planted = "" if self._policy == "monotonic" else "gap"
            yield self._next()._replace(kind=planted, numbers=count)
            yield Plan(late, "late", count)

    def _raise(self) -> None:
        self._generation += 1
        if self._policy in ("kafka", "epoch"):
            self._first = 0

    def _next(self) -> Plan:
        plan = Plan(self._send(self._first, self._count))
        self._first += self._count
        return plan

    def _send(self, first: int, count: int, value: bytes = b"v" * 20) -> NewBatch:
        return encoded(
            self.producer, self._generation, first, count, codec=self._codec, value=value
        )


def grow(
    logs: Logs,
    random: Random,
    topic: str,
    records: int,
    count: int,
    codec: str | None,
    *,
    plants: int = 9,
) -> list[Planted]:
    """Fill a topic of two partitions with producers of all policies; return the findings."""
    logs.topic(topic, 2)
    planted: list[Planted] = []
    for partition in range(2):
        growers = [
            Grower(random, producer, policy, count, codec)
            for policy, producer in (
                ("strict", Origin(make_pid(Policy.STRICT, 1 + partition))),
                ("kafka", Origin(make_pid(Policy.KAFKA, 3))),
                ("monotonic", Origin(make_pid(Policy.MONOTONIC, 4))),
                ("epoch", Origin(-1, f"{topic} <{partition}>")),
            )
        ]
        number = records // count // len(growers) // 2
        left = [(each, each.sends(number, min(plants, number // 5))) for each in growers]
        while left:
            at = random.randrange(len(left))
            grower, plans = left[at]
            plan = next(plans, None)
            if plan is None:
                del left[at]
                continue
            (offset,) = logs.append(topic, partition, [plan.data])
            if plan.kind:
                planted.append(Planted(topic, partition, grower.producer, plan.kind, offset,
                                    plan.numbers, plan.differs))  # fmt: skip
    return planted
