"""Random histories of producers with violations planted in them, and the rows they make."""

from collections.abc import Iterator
from random import Random
from typing import Any, Final, NamedTuple

from pidlease.core.pid import Policy, make_pid
from tests.spark.audit.oracle import KAFKA_NUMBERS, RESTARTS, Send

#: Columns of a send; see `pidlease.spark.reader.send_rows`.
SCHEMA: Final = (
    "topic string, partition int, offset long, last_offset long, records int, pid long,"
    " producer_id string, generation long, first long, last long, crc long, timestamp long,"
    " bytes int, position long, segment string, previous_generation long, previous_first long,"
    " previous_last long, begins boolean, damage string"
)
POLICIES: Final = ("strict", "kafka", "monotonic", "epoch")
_PIDS: Final = {"strict": 1, "kafka": 2, "monotonic": 3}


class History(NamedTuple):
    """A producer's sends on a partition, in the order of the log."""

    policy: str
    pid: int
    producer_id: str
    sends: list[Send]


def history(random: Random, policy: str, number: int, *, whole: bool) -> History:
    """Return a random history; some have no violation.

    Parameters:
        number: unique to it.
        whole: whether the log is complete; otherwise it begins anywhere, also near the wrap.
    """
    sends: list[Send] = []
    generation, top = random.randrange(3), -1
    if not whole:
        top = random.choice([random.randrange(50), KAFKA_NUMBERS - random.randint(1, 30)])
    wild = random.choice([0.0, 0.0, 0.1, 0.4])
    for _ in range(random.randint(1, 25)):
        length = random.choice([1, 1, random.randint(1, 6)])
        first, its = top + 1, generation
        if random.random() < wild:
            first, its = _wrong(random, sends, top, generation)
        elif random.random() < 0.1:
            its = generation + 1
            first = 0 if policy in RESTARTS else first
        if policy == "monotonic" and random.random() < 0.3:
            first += random.randrange(4)
        send = Send(its, first, first + length - 1, length)
        if random.random() < wild:
            send = _changed(random, policy, sends, send)
        sends.append(send)
        if send.generation >= generation:
            new = send.generation > generation and policy in RESTARTS
            top = send.last if new or random.random() < 0.2 else max(top, send.last)
            generation = send.generation
    pid = -1 if policy == "epoch" else make_pid(Policy(_PIDS[policy]), number + 1)
    return History(policy, pid, f"p{number}" if policy == "epoch" else "", sends)


def _wrong(random: Random, sends: list[Send], top: int, generation: int) -> tuple[int, int]:
    """Return a first sequence number and a generation that are likely to be wrong."""
    kind = random.randrange(6)
    if kind == 0:
        return top + 1 + random.randint(1, 9), generation
    if kind == 1 and sends:
        return random.choice(sends).first, generation
    if kind == 2:
        return max(top - random.randrange(12), 0), generation
    if kind == 3:
        return top + 1, max(generation - 1, 0)
    if kind == 4:
        return top + 1, generation + random.randint(1, 3)
    return 0, generation + random.randrange(2)


def _changed(random: Random, policy: str, sends: list[Send], send: Send) -> Send:
    if sends and random.random() < 0.5:
        return random.choice(sends)._replace(generation=send.generation)
    if policy in ("strict", "monotonic"):
        return send._replace(records=random.randint(1, send.records + 1))
    if policy == "kafka" and random.random() < 0.3:
        return send._replace(records=send.records + 1)
    return send


class Placed(NamedTuple):
    """A send of a history, with its position."""

    history: History
    place: int
    offset: int


def interleaved(random: Random, histories: list[History], start: int) -> Iterator[Placed]:
    """Interleave the histories in one partition, each in its own order."""
    left = [(each, 0) for each in histories if each.sends]
    offset = start
    while left:
        at = random.randrange(len(left))
        one, place = left[at]
        yield Placed(one, place, offset)
        offset += one.sends[place].records
        left[at] = (one, place + 1)
        if place + 1 == len(one.sends):
            del left[at]


def rows(random: Random, topic: str, placed: list[Placed], segments: int) -> list[tuple[Any, ...]]:
    """The rows of a partition, with segments of random lengths."""
    cuts = set(random.sample(range(len(placed)), min(segments, len(placed))))
    found: list[tuple[Any, ...]] = []
    before: dict[Any, tuple[int, int, int]] = {}
    segment = "first"
    for number, (one, place, offset) in enumerate(placed):
        if number in cuts:
            segment, before = f"{offset:020d}.log", {}
        send = one.sends[place].wire(one.policy)
        key = one.producer_id or one.pid
        previous = before.get(key)
        numbers = send.generation, send.first, send.last
        before[key] = numbers
        found.append((
            topic, 0, offset, offset + send.records - 1, send.records, one.pid, one.producer_id,
            *numbers, number, 1000 * number, 100, 100 * number, segment,
            *(previous or (None, None, None)), previous is None, None,
        ))  # fmt: skip
    return found
