"""The verdict of the demo's fourth part can fail."""

from typing import Any

import pytest

from deploy.demo.orders import Verdict
from tests.crash.readback import Stored


def stored(*values: bytes) -> list[Stored]:
    """Records of the one partition."""
    return [Stored("web-orders", 0, offset, value, b"") for offset, value in enumerate(values)]


def verdict(**other: Any) -> Verdict:
    """One that is well, but for that."""
    given: dict[str, Any] = {
        "orders": [b"a", b"b"],
        "stored": stored(b"b", b"a"),
        "requests": 5,
        "duplicates": 2,
        "misplaced": 0,
        "kills": 3,
    }
    return Verdict(**{**given, **other})


def test_all_orders_once() -> None:
    good = verdict()
    assert good.problems() == []
    assert good.summary() == (
        "demo, part four: orders 2 over HTTP by 5 requests, stored 2, kills 3, answered as"
        " duplicates 2, lost 0, doubled 0"
    )


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (verdict(stored=stored(b"a")), "1 lost, 0 doubled"),
        (verdict(stored=stored(b"a", b"b", b"a")), "0 lost, 1 doubled"),
        (verdict(stored=stored(b"a", b"b", b"c")), "0 lost, 1 doubled"),
        (verdict(misplaced=1), "1 not at the answered offset"),
        (verdict(duplicates=0), "proved nothing"),
        (verdict(kills=2), "only 2 kills"),
    ],
)
def test_what_fails_it(bad: Verdict, text: str) -> None:
    (problem,) = bad.problems()
    assert text in problem
