"""Which topics the members of a consumer group read: the one look into what members say."""

from collections.abc import Iterable

from proxy.kafka.wire import MalformedRequestError, Reader

#: What groups of consumers call themselves (Kafka's ConsumerProtocol.PROTOCOL_TYPE).
CONSUMER = "consumer"


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics that members subscribe to; None where one does not say it as consumers do.

    Parameters:
        metadata: of each member: a version, then the topics; all versions begin like that.
    """
    topics: set[str] = set()
    for each in metadata:
        try:
            topics |= _topics(each)
        except MalformedRequestError:
            return None
    return frozenset(topics)


def _topics(metadata: bytes) -> set[str]:
    reader = Reader(bytearray(metadata), 0, flexible=False)
    reader.int16()
    return {reader.string() or "" for _ in range(reader.array())}
