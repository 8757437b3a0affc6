"""The addresses of a member's listeners: stored by name, and read of members without names."""

import json
from typing import Any

import pytest

from pidlease.coordination.members import Member, member_fields, member_of

_OLD = {
    "version": 1, "node_id": 7, "server": "host:1", "kafka": ["proxy7", 9092],
    "http": "http://proxy7:8080", "draining": False,
}  # fmt: skip
_LISTENERS = (("INTERNAL", "proxy7", 9092), ("EXTERNAL", "proxy7.example.org", 9093))


def _stored(member: Member) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(member_fields(member)))
    return found


def test_a_row_of_the_version_before() -> None:
    old = member_of(_OLD, 3)
    assert old == Member(7, "host:1", "proxy7", 9092, "http://proxy7:8080", joined=3)
    assert _stored(old) == _OLD, "without names, the row stays as it was"
    assert old.kafka_address("INTERNAL", default=True) == ("proxy7", 9092)
    assert old.kafka_address("", default=True) == ("proxy7", 9092)
    assert old.kafka_address("EXTERNAL", default=False) is None
    assert old.shown_kafka() == "proxy7:9092"


def test_a_row_with_names() -> None:
    named = member_of(_OLD, 3)._replace(listeners=_LISTENERS)
    fields = _stored(named)
    assert member_of(fields, 3) == named
    assert {name: fields[name] for name in _OLD} == _OLD, "the version before reads its fields"
    assert named.kafka_address("EXTERNAL", default=False) == ("proxy7.example.org", 9093)
    assert named.kafka_address("INTERNAL", default=False) == ("proxy7", 9092)
    assert named.kafka_address("OTHER", default=True) is None
    assert named.kafka_address("", default=True) == ("proxy7", 9092), "of a server without names"
    assert named.shown_kafka() == "INTERNAL://proxy7:9092,EXTERNAL://proxy7.example.org:9093"


@pytest.mark.parametrize("listeners", [[["A", "h"]], [["A", "h", "x"]], [None], 3])
def test_a_row_that_is_none(listeners: object) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        member_of({**_OLD, "listeners": listeners}, 0)
