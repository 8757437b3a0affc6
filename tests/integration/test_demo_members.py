"""The demo with three servers: what it counts, and what makes it fail."""

from dataclasses import replace
from typing import Any

import pytest

from deploy.demo.audit import Tally
from deploy.demo.members import Fault, MembersVerdict, _tally
from tests.crash.ledger import Ledger
from tests.crash.readback import Stored
from tests.crash.steady_writes import _longest

_ROW: dict[str, Any] = {
    "server": "host:7", "kafka": "h:1", "http": "http://h:2", "node_id": 1, "slots": 1024,
    "partitions": 12,
}  # fmt: skip
_GOOD = MembersVerdict(
    [Fault("a", "after kill -9", 4, 4.26)], Tally(sent=9, acknowledged=9, stored=9), [_ROW]
)


def test_a_good_run_ends_with_its_figures() -> None:
    assert not _GOOD.problems()
    assert _GOOD.summary() == (
        "demo, part three: 1 servers, sent 9, stored 9, a partition was not writable for at most"
        " 4.3 s after kill -9; lost 0, doubled 0, out of order 0"
    )


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"tally": Tally(sent=9, stored=8, lost=1)}, "1 records lost"),
        ({"tally": Tally(sent=9, stored=10, doubled=1)}, "1 records doubled"),
        ({"tally": Tally(foreign=2)}, "2 records stored that no client sent"),
        ({"faults": [Fault("a", "x", 0, 1.0)]}, "server a owned nothing: its fault proved nothing"),
        ({"rows": [{**_ROW, "slots": 0}]}, "a server owns no slot in the end"),
    ],
)
def test_what_makes_it_fail(changed: dict[str, Any], problem: str) -> None:
    assert replace(_GOOD, **changed).problems() == [problem]


def test_records_are_compared_by_client_and_partition() -> None:
    ledger = Ledger("x", given={0: 3, 1: 2})
    texts = [(0, b"x/0/0 "), (0, b"x/0/2 "), (0, b"x/0/2 "), (1, b"x/1/1 "), (1, b"x/1/0 "),
             (1, b"x/0/1 "), (0, b"other/0/0 ")]  # fmt: skip
    stored = [
        Stored("members", partition, offset, value, b"")
        for offset, (partition, value) in enumerate(texts)
    ]
    found = _tally([ledger], stored)
    assert (found.sent, found.stored) == (5, 7)
    assert (found.lost, found.doubled, found.out_of_order, found.foreign) == (1, 1, 1, 2)


def test_the_longest_time_without_an_acknowledgement() -> None:
    times = [1.0, 1.25, 3.25, 3.5]
    assert _longest(times, 0.0) == 2.0
    assert _longest(times, 2.0) == 1.25, "the time before does not count"
    assert _longest(times, 3.5) == 0
