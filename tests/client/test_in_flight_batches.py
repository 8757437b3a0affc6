"""In which order batches are sent, whatever becomes of them."""

from itertools import count
from random import Random

from pidlease.client.in_flight_batches import InFlightBatches
from pidlease.client.pending_batch import PendingBatch, SequenceRange
from tests.crash.seeds import new_random


def batch(number: int) -> PendingBatch:
    made = PendingBatch(100, 0.0)
    made.span = SequenceRange(1, 1, number, number, number)
    return made


def number_of(each: PendingBatch) -> int:
    return each.sealed.last


def test_failed_batches_are_sent_again_in_order() -> None:
    random = new_random("in-flight-batches")
    for _ in range(200):
        _play(Random(random.random()))


def _play(random: Random) -> None:
    in_flight, numbers = InFlightBatches(), count()
    resolved: list[int] = []
    for _ in range(100):
        if not in_flight.failed and len(in_flight.open) < 5 and random.random() < 0.6:
            # Not all that is to be sent again need be sent at once.
            in_flight.begin(in_flight.again.popleft() if in_flight.again else batch(next(numbers)))
        elif in_flight.open:
            each = random.choice(in_flight.open)
            before = {number_of(other) for other in in_flight.all()}
            if random.random() < 0.5:
                turned_back = in_flight.fail(each)
            else:
                turned_back = in_flight.resolve(each)
                before.remove(number_of(each))
                resolved.append(number_of(each))
            assert {number_of(other) for other in in_flight.all()} == before
            if turned_back:
                assert not in_flight.open
                again = [number_of(other) for other in in_flight.again]
                assert again == sorted(before)
    assert [number_of(each) for each in in_flight.all()] == sorted(
        set(range(next(numbers))) - set(resolved)
    )
    assert len(set(resolved)) == len(resolved)
    left = in_flight.all()
    assert in_flight.clear() == left
    assert not in_flight.all()
