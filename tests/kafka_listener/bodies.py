"""Random bodies for the readers, in a process of its own: a reader may take it down.

Run as `python -m tests.kafka_listener.bodies SEED COUNT`; prints each body before it is read.
"""

import random
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from pidlease.kafka.codec import messages
from pidlease.kafka.codec.fetch import read_fetch_request
from pidlease.kafka.codec.messages import read_request, read_request_slowly
from pidlease.kafka.codec.metadata import MetadataReader
from pidlease.kafka.codec.offsets import read_commit, read_fetch
from pidlease.kafka.codec.primitives import MalformedError, RequestHeader
from proxy.kafka.served_versions import SERVED_VERSIONS
from tests.kafka_listener.admin_requests import ADMIN_KEYS, admin_request
from tests.kafka_listener.group_requests import OFFSET_COMMIT, OFFSET_FETCH, group_request
from tests.kafka_listener.messages import FETCH, METADATA, encode_request

#: Lengths and tags that readers like to believe.
_EVIL: Final = tuple(
    bytes.fromhex(text)
    for text in ("ffffffff0f", "ffffffff7f", "7fffffff", "80000000", "ffff", "ffffffff", "01", "00")
)
_VALUES: Final[dict[int, dict[str, object]]] = {
    FETCH: {
        "topics": [
            {"topic": "t", "partitions": [{"partition": 1, "fetch_offset": 2}, {"partition": 3}]},
            {"topic": "u", "partitions": [{"partition": 0, "partition_max_bytes": 7}]},
        ],
        "forgotten_topics_data": [{"topic": "v", "partitions": [1, 2]}],
        "max_wait": timedelta(milliseconds=500),
        "min_bytes": 3,
    },
    2: {"topics": [{"name": "t", "partitions": [{"partition_index": 1, "timestamp": -1}]}]},
    METADATA: {"topics": [{"name": "t"}]},
    19: {"topics": [{"name": "t", "configs": [{"name": "a", "value": "b"}]}]},
    22: {"transactional_id": "x", "transaction_timeout": timedelta(seconds=1)},
}
_VALUES.update({key: admin_request(key, "t") for key in ADMIN_KEYS})
_VALUES.update({key: group_request(key, "t") for key in (*range(8, 17), 42, 47)})
_BY_HAND: Final[dict[int, Callable[[RequestHeader, bytearray], object]]] = {
    OFFSET_COMMIT: read_commit,
    OFFSET_FETCH: read_fetch,
}
_HEADER_BYTES: Final = 10  # with an empty client id


def spoilt(body: bytes, choice: random.Random) -> bytes:
    """A body with something else in the place of a part of it."""
    at = choice.randrange(len(body) + 1)
    end = min(len(body), at + choice.randrange(6))
    noise = choice.randbytes(choice.randrange(5))
    return body[:at] + choice.choice((*_EVIL, noise, b"")) + body[end:]


def plain(key: int, version: int) -> bytes:
    """A good body."""
    return encode_request(key, version, _VALUES[key], 1, "")[_HEADER_BYTES:]


def main(seed: int, count: int) -> None:
    """Read random bodies; anything but MalformedError comes out."""
    choice = random.Random(seed)
    messages._AT_ONCE_BYTES = 0  # type: ignore[misc] # so that none is too small to be read slowly
    each = [
        (key, version)
        for key, (lowest, highest) in SERVED_VERSIONS.items()
        if key in _VALUES
        for version in range(lowest, highest + 1)
    ]
    for _ in range(count):
        key, version = choice.choice(each)
        body = spoilt(plain(key, version), choice)
        print(key, version, body.hex(), flush=True)
        with suppress(MalformedError):
            _read(key, version, bytearray(body))


def _read(key: int, version: int, body: bytearray) -> None:
    if key == METADATA:
        reader = MetadataReader(body, 0, version)
        reader.read_topics(reader.left)
        reader.end()
        return
    header = RequestHeader(key, version, 1, "", 0)
    if key in _BY_HAND:
        _BY_HAND[key](header, body)
        return
    if key == FETCH:
        read_fetch_both_ways(header, body)
        return
    found = [_outcome(lambda: read_request(header, body)), _outcome(lambda: _slowly(header, body))]
    assert found[0] == found[1], found
    if isinstance(found[0], str):
        raise MalformedError(found[0])


def read_fetch_both_ways(header: RequestHeader, body: bytearray) -> None:
    """Read a Fetch by hand, and by kio: the same comes out."""
    by_hand = _outcome(lambda: read_fetch_request(body, 0, header.version))
    by_kio = _outcome(lambda: read_request(header, body))
    if isinstance(by_hand, str):
        assert isinstance(by_kio, str), (by_hand, by_kio)
        raise MalformedError(by_hand)
    if isinstance(by_kio, str):
        assert "null" in by_kio, by_kio  # of arrays and names that are not read
        return
    topics = [
        (
            topic.topic,
            [(each.partition, each.fetch_offset, each.partition_max_bytes)
             for each in topic.partitions],
        )
        for topic in by_kio.topics
    ]  # fmt: skip
    wait_ms = by_kio.max_wait // timedelta(milliseconds=1)
    sizes = by_kio.min_bytes, by_kio.max_bytes
    assert by_hand == (wait_ms, *sizes, by_kio.isolation_level, topics)


def _outcome(read: Callable[[], Any]) -> Any:
    """What was read, or why it could not be."""
    try:
        return read()
    except MalformedError as error:
        return str(error)


def _slowly(header: RequestHeader, body: bytearray) -> Any:
    """Read it as a large request is read; it waits for nothing but its turn."""
    work = read_request_slowly(header, body)
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            return end.value


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
