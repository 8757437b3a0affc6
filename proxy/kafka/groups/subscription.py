"""Which topics the members of a consumer group read: the one look into what members say."""

from collections.abc import Iterable
from typing import Final

from pidlease.kafka.codec.primitives import MalformedError, Reader

#: What groups of consumers call themselves (Kafka's ConsumerProtocol.PROTOCOL_TYPE).
CONSUMER = "consumer"

#: Subscriptions that differ: bytes of them that are read for one generation, on the event loop,
_BYTES_MAX: Final = 64 << 10
#: and how many are compared with those that follow.
_KNOWN_MAX: Final = 16


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics that members subscribe to.

    Members mostly subscribe to the same: that is read once.

    Parameters:
        metadata: of each member: a version, then the topics; all versions begin like that.

    Returns:
        None where one does not say it as consumers do, or they say too much to be read.
    """
    topics: set[str] = set()
    known: list[bytes] = []
    left = _BYTES_MAX
    for each in metadata:
        if any(each.startswith(some) for some in known):
            continue
        left -= len(each)
        if left < 0:
            return None
        try:
            found, end = _topics(each)
        except MalformedError:
            return None
        topics |= found
        if len(known) < _KNOWN_MAX:
            known.append(each[:end])
    return frozenset(topics)


def _topics(metadata: bytes) -> tuple[set[str], int]:
    """The topics, and where what says them ends."""
    reader = Reader(bytearray(metadata), 0, flexible=False)
    reader.int16()
    return {reader.string() or "" for _ in range(reader.array())}, reader.at
