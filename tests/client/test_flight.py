"""In which order batches are sent, whatever becomes of them."""

from itertools import count
from random import Random

from pidlease.client.in_flight_batches import Flight
from pidlease.client.record_accumulator import Batch, Span
from tests.crash.seeds import new_random


def batch(number: int) -> Batch:
    made = Batch(100, 0.0)
    made.span = Span(1, 1, number, number, number)
    return made


def number_of(each: Batch) -> int:
    return each.sealed.last


def test_what_failed_comes_again_before_anything_behind_it() -> None:
    random = new_random("client-flight")
    for _ in range(200):
        _play(Random(random.random()))


def _play(random: Random) -> None:
    flight, numbers = Flight(), count()
    resolved: list[int] = []
    for _ in range(100):
        if not flight.failed and len(flight.open) < 5 and random.random() < 0.6:
            # Not all that is to be sent again need be sent at once.
            flight.begin(flight.again.popleft() if flight.again else batch(next(numbers)))
        elif flight.open:
            each = random.choice(flight.open)
            before = {number_of(other) for other in flight.all()}
            if random.random() < 0.5:
                turned_back = flight.fail(each)
            else:
                turned_back = flight.resolve(each)
                before.remove(number_of(each))
                resolved.append(number_of(each))
            assert {number_of(other) for other in flight.all()} == before
            if turned_back:
                assert not flight.open
                again = [number_of(other) for other in flight.again]
                assert again == sorted(before)
    assert [number_of(each) for each in flight.all()] == sorted(
        set(range(next(numbers))) - set(resolved)
    )
    assert len(set(resolved)) == len(resolved)
    left = flight.all()
    assert flight.clear() == left
    assert not flight.all()
