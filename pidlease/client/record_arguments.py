"""Validates the arguments of `send`, before the record is accepted."""

from collections.abc import Callable
from typing import Any, Final

from pidlease.client.pending_batch import Headers
from pidlease.kafka.records.identity_header import HEADER_KEY
from pidlease.storage.topics.topic_store import illegal_name

#: Bytes of a record beside key, value and headers, and of the batch around it.
_FRAME_BYTES: Final = 200
_HEADER: Final = HEADER_KEY.decode()
_SERIALIZED: Final = ("value", "key")
_BUFFERS: Final = (bytes, bytearray, memoryview)
_NO_HEADERS: Final[Headers] = []
SEQUENCE_MAX: Final = 2**63 - 1

#: Makes the bytes of a key or a value; None stays None without a call.
Serializer = Callable[[Any], bytes | None]
#: Returns the key of a value.
KeyOf = Callable[[Any], object]


def record_bytes_max(max_request_size: int) -> int:
    """Return how many bytes key, value and headers of a record may have together."""
    return max_request_size - _FRAME_BYTES


def serialized(serializer: Serializer | None, value: object, what: str) -> object:
    """Return a record's key or value as its serializer makes it.

    Parameters:
        serializer: None: the value stays as it is.
        what: value or key, for the message.

    Raises:
        TypeError: the serializer returned something else than bytes.
    """
    if serializer is None or value is None:
        return value
    found: object = serializer(value)
    if found is not None and not isinstance(found, _BUFFERS):
        raise TypeError(f"{what}_serializer returned {type(found).__name__}; bytes are needed")
    return found


def check_record(
    value: object,
    key: object,
    headers: Headers | None,
    timestamp_ms: int | None,
    sequence_id: int | None,
    bytes_max: int,
) -> tuple[bytes | None, bytes | None, Headers, int]:
    """Validate a record, except for its topic and partition.

    Parameters:
        bytes_max: see `record_bytes_max`.

    Returns:
        Value, key and headers as the producer's own, and their size in bytes.

    Raises:
        TypeError: one of them has the wrong type.
        ValueError: one of them has an impossible value, or the record is too large.
    """
    data = value if type(value) is bytes else octets(value, "value")
    size = len(data) if data is not None else 0
    name = None
    if key is not None:
        name = octets(key, "key") or b""
        size += len(name)
    if headers is None:
        headers = _NO_HEADERS
    else:
        headers = checked_headers(headers)
        size += size_of_headers(headers)
    if size > bytes_max:
        raise ValueError(
            f"a record of {size} bytes; with max_request_size {bytes_max + _FRAME_BYTES}"
            f" it has at most {bytes_max}"
        )
    if timestamp_ms is not None or sequence_id is not None:
        check_timestamp(timestamp_ms)
        check_sequence_id(sequence_id)
    return data, name, headers, size


def check_topic(topic: str) -> None:
    """Validate a topic's name by Kafka's rule.

    Raises:
        TypeError: it is no str.
        ValueError: it is not a legal name.
    """
    if not isinstance(topic, str):
        raise TypeError(f"topic is {type(topic).__name__}; a topic's name is str")
    if why := illegal_name(topic):
        raise ValueError(f"illegal topic name {topic!r}: {why}")


def octets(value: object, what: str) -> bytes | None:
    """Return a record's key or value as bytes of its own.

    Parameters:
        what: its name, for the message.

    Raises:
        TypeError: it has another type.
    """
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, _BUFFERS):
        return bytes(value)
    hint = ", encode it first" if isinstance(value, str) else ""
    if what in _SERIALIZED:
        example = "=str.encode" if isinstance(value, str) else ""
        hint += f", or give the producer a {what}_serializer{example}"
    raise TypeError(f"{what} is {type(value).__name__}; bytes are needed{hint}")


def checked_headers(headers: Headers) -> Headers:
    """Copy and validate a record's headers.

    Raises:
        TypeError: a name is no str, or a value is neither bytes nor None.
        ValueError: one has the producer's own name, `pidlease`.
    """
    found: Headers = []
    for name, text in headers:
        if not isinstance(name, str):
            raise TypeError(f"a header's name is {type(name).__name__}; str is needed")
        if name == _HEADER:
            raise ValueError(f"the header {_HEADER} is the producer's own")
        found.append((name, octets(text, f"header {name}")))
    return found


def size_of_headers(headers: Headers) -> int:
    """Return the largest size that headers may have when encoded."""
    return sum(len(name) * 4 + len(text or b"") for name, text in headers)


def check_timestamp(timestamp_ms: int | None) -> None:
    """Validate a time in ms since 1970.

    Raises:
        TypeError: it is no int.
        ValueError: it is outside the 64 bits of Kafka's records.
    """
    if timestamp_ms is None:
        return
    if not isinstance(timestamp_ms, int):
        raise TypeError(f"timestamp_ms is {type(timestamp_ms).__name__}; int is needed")
    if not -SEQUENCE_MAX - 1 <= timestamp_ms <= SEQUENCE_MAX:
        raise ValueError(f"timestamp_ms {timestamp_ms} has more than 64 bits")


def check_sequence_id(sequence_id: int | None) -> None:
    """Validate a sequence_id.

    Raises:
        TypeError: it is no int.
        ValueError: it is outside 0..2^63 - 1.
    """
    if sequence_id is None:
        return
    if not isinstance(sequence_id, int):
        raise TypeError(f"sequence_id is {type(sequence_id).__name__}; int is needed")
    if not 0 <= sequence_id <= SEQUENCE_MAX:
        raise ValueError(f"sequence_id {sequence_id} is outside 0..{SEQUENCE_MAX}")
