"""What is read of the subscriptions of a consumer group's members, and how much at most."""

import struct

from proxy.kafka.groups import subscription
from proxy.kafka.groups.subscription import subscribed_topics


def subscribing(*topics: str, data: bytes = b"") -> bytes:
    names = [struct.pack(">h", len(each)) + each.encode() for each in topics]
    return struct.pack(">hi", 1, len(topics)) + b"".join(names) + struct.pack(">i", 0) + data


def test_all_topics_of_all_members() -> None:
    members = [subscribing("a", "b"), subscribing("a"), subscribing(), subscribing("a", "c")]
    assert subscribed_topics(members) == frozenset("abc")
    assert subscribed_topics([]) == frozenset()
    # One that begins like another, and goes on.
    assert subscribed_topics([subscribing("a"), subscribing("a", "d")]) == frozenset("ad")


def test_one_that_does_not_say_it() -> None:
    assert subscribed_topics([subscribing("a"), b"no subscription"]) is None
    assert subscribed_topics([subscribing("a"), subscribing("a", "b")[:9]]) is None


def test_what_all_say_is_read_once_and_too_much_is_not_read() -> None:
    many = [f"topic-{number}" for number in range(2_000)]
    same = [subscribing(*many, data=bytes([number])) for number in range(200)]
    assert subscribed_topics(same) == frozenset(many)
    different = [subscribing(f"{number}", *many) for number in range(200)]
    assert sum(map(len, different)) > subscription._BYTES_MAX
    assert subscribed_topics(different) is None
