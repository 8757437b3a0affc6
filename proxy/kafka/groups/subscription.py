"""Reads the subscribed topics from the metadata of a consumer group's members."""

from collections.abc import Iterable
from typing import Final

from pidlease.kafka.codec.primitives import MalformedError, Reader

#: The protocol type of groups of consumers (Kafka's ConsumerProtocol.PROTOCOL_TYPE).
CONSUMER = "consumer"

#: Bytes of different subscriptions that are decoded for one generation, on the event loop.
_BYTES_MAX: Final = 64 << 10
#: Different subscriptions that later ones are compared with.
_KNOWN_MAX: Final = 16


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics that members subscribe to; equal subscriptions are decoded once.

    Parameters:
        metadata: of each member: a version, then the topics; all versions begin like that.

    Returns:
        None if a member's metadata is not a consumer's, or all together are too large.
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
    """Return the topics, and the position after them."""
    reader = Reader(bytearray(metadata), 0, flexible=False)
    reader.int16()
    return {reader.string() or "" for _ in range(reader.array())}, reader.at
