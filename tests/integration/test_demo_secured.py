"""The verdict of the secured demo can fail."""

from collections import Counter
from typing import Any

import pytest

from deploy.demo.secured import Verdict


def verdict(**other: Any) -> Verdict:
    """One that is well, but for that."""
    given: dict[str, Any] = {
        "sent": [b"a", b"b"],
        "stored": [b"a", b"b"],
        "kills": 3,
        "tried": Counter(read=4, append=4),
        "let_in": Counter(),
    }
    return Verdict(**{**given, **other})


def test_all_refused() -> None:
    good = verdict()
    assert good.problems() == []
    assert good.summary() == (
        "demo, secured: sent 2, stored 2, kills 3, lost 0, doubled 0, out of order 0; the intruder"
        " tried 8 times, refused 8, let in 0"
    )


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (verdict(stored=[b"a"]), "1 records lost"),
        (verdict(stored=[b"a", b"b", b"a"]), "1 records doubled"),
        (verdict(stored=[b"b", b"a"]), "1 records out of order"),
        (verdict(stored=[b"a", b"b", b"forged"]), "1 records stored that alice did not send"),
        (verdict(kills=2), "only 2 kills"),
        (verdict(tried=Counter()), "the intruder tried nothing"),
        (verdict(let_in=Counter(read=1)), "the intruder was let in 1 times: read"),
    ],
)
def test_what_fails_it(bad: Verdict, text: str) -> None:
    (problem,) = bad.problems()
    assert text in problem
