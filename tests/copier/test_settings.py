"""Options of a copy that make no sense are refused by name."""

from typing import Any

import pytest

from pidlease.copier import CopySettings

GOOD: dict[str, Any] = {
    "source": "a:1", "destination": "b:2", "leases": "http://b:3", "group": "g", "topics": ["t"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"group": ""}, "group is the name"),
        ({"topics": []}, "either topics, or topics_regex"),
        ({"topics_regex": ".*"}, "either topics, or topics_regex"),
        ({"topics": "orders"}, "topics is a list"),
        ({"topics": [], "topics_regex": "("}, r"topics_regex '\('"),
        ({"topics": [], "topics_regex": "(?i)x"}, r"topics_regex '\(\?i\)x'"),
        ({"topics": ["a", "b"], "rename": "c"}, "would make one topic of several"),
        ({"topics": [], "topics_regex": ".*", "rename": "c"}, "would make one topic of several"),
        ({"leases": "b:3"}, "leases is the URL"),
        ({"source_security": {"user": "me"}}, "source_security: unknown: user"),
        ({"start": -3}, "start is"),
        ({"max_in_flight": 6}, "max_in_flight is 1 to 5"),
        ({"buffer_bytes": 0}, "buffer_bytes is above 0"),
        ({"memory_bytes": 0}, "memory_bytes is above 0"),
        ({"commit_interval_ms": 0}, "commit_interval_ms is above 0"),
        ({"fetch_wait_ms": -1}, "fetch_wait_ms is not below 0"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CopySettings(**{**GOOD, **change})


def test_topics_are_chosen_and_renamed() -> None:
    one = CopySettings(**GOOD, rename="mirror.{topic}")
    assert (one.selects("t"), one.selects("tt"), one.renamed("t")) == (True, False, "mirror.t")
    several = CopySettings(**{**GOOD, "topics": (), "topics_regex": "a|ab.*"})
    assert [each for each in ("a", "ab", "abc", "ba", "a\n") if several.selects(each)] == [
        "a", "ab", "abc",
    ]  # fmt: skip
    assert CopySettings(**GOOD, rename="other").renamed("t") == "other"
