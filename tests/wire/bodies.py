"""Random bodies for the readers, in a process of its own: a reader may take it down.

Run as `python -m tests.wire.bodies SEED COUNT`; prints each body before it is read.
"""

import random
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Final

from proxy.kafka.door import VERSIONS
from proxy.kafka.messages import read_request
from proxy.kafka.wire import MalformedRequestError, RequestHeader
from tests.wire.messages import encode_request

#: Lengths and tags that readers like to believe.
_EVIL: Final = tuple(
    bytes.fromhex(text)
    for text in ("ffffffff0f", "ffffffff7f", "7fffffff", "80000000", "ffff", "ffffffff", "01", "00")
)
_VALUES: Final[dict[int, dict[str, object]]] = {
    1: {"topics": [{"topic": "t", "partitions": [{"partition": 1, "fetch_offset": 2}]}]},
    2: {"topics": [{"name": "t", "partitions": [{"partition_index": 1, "timestamp": -1}]}]},
    3: {"topics": [{"name": "t"}]},
    10: {"key": "k", "coordinator_keys": ["k"]},
    19: {"topics": [{"name": "t", "configs": [{"name": "a", "value": "b"}]}]},
    22: {"transactional_id": "x", "transaction_timeout": timedelta(seconds=1)},
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
    """Read random bodies; anything but MalformedRequestError comes out."""
    choice = random.Random(seed)
    each = [
        (key, version)
        for key, (lowest, highest) in VERSIONS.items()
        if key in _VALUES
        for version in range(lowest, highest + 1)
    ]
    for _ in range(count):
        key, version = choice.choice(each)
        body = spoilt(plain(key, version), choice)
        print(key, version, body.hex(), flush=True)
        with suppress(MalformedRequestError):
            read_request(RequestHeader(key, version, 1, "", 0), bytearray(body))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
