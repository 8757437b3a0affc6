"""The verdict of the demo's third part can fail."""

from dataclasses import replace
from typing import Any

import pytest

from deploy.demo.copied import Verdict
from tests.crash.readback import Stored


def stored(*keys: bytes, value: bytes = b"{}") -> list[Stored]:
    """Records of one partition."""
    return [Stored("airports", 1, offset, value, key) for offset, key in enumerate(keys)]


SOURCE = stored(b"0", b"1", b"2")


def verdict(**other: Any) -> Verdict:
    """One that is well, but for that."""
    given: dict[str, Any] = {
        "sent": 3,
        "source": SOURCE,
        "copy": SOURCE,
        "kills": 3,
        "server_kills": 2,
        "duplicates": 7,
        "zombie": "fenced",
        "fenced": True,
        "verified": True,
    }
    return Verdict(**{**given, **other})


def test_a_whole_copy() -> None:
    good = verdict()
    assert good.problems() == []
    assert "source 3, copy 3, kills 5 (3 of the copier), duplicates caught 7" in good.summary()
    assert good.summary().endswith("zombie fenced, lost 0, doubled 0, out of order 0")


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (verdict(copy=stored(b"0", b"2")), "1 lost, 0 doubled, 0 out of order"),
        (
            verdict(copy=[*SOURCE, SOURCE[0]]),
            "0 lost, 1 doubled, 0 out of order",
        ),
        (verdict(copy=stored(b"1", b"0", b"2")), "0 lost, 0 doubled, 1 out of order"),
        (verdict(copy=stored(b"0", b"1", b"2", b"9")), "0 lost, 1 doubled, 0 out of order"),
        (verdict(copy=stored(b"0", b"1", b"2", value=b"")), "3 lost, 3 doubled"),
        (verdict(sent=4), "3 records at the source, 4 were acknowledged"),
        (verdict(verified=False), "--verify finds a difference"),
        (verdict(fenced=False, zombie="it said nothing"), "not fenced: it said nothing"),
        (verdict(duplicates=0), "proved nothing"),
    ],
)
def test_what_fails_it(bad: Verdict, text: str) -> None:
    (problem,) = bad.problems()
    assert text in problem


def test_a_copy_on_another_partition_is_lost_and_foreign() -> None:
    elsewhere = [replace(each, partition=0) for each in SOURCE]
    (problem,) = verdict(copy=elsewhere).problems()
    assert problem == "3 lost, 3 doubled, 0 out of order"
