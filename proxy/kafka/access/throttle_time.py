"""Where responses have the time for which their client is throttled (KIP-219)."""

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from typing import Final

from pidlease.kafka.api import API_API_VERSIONS, API_PRODUCE
from pidlease.kafka.codec.messages import response_class
from pidlease.kafka.codec.primitives import INT16, INT32

_FIELD: Final = "throttle_time"
#: Length and correlation id.
_HEAD_BYTES: Final = 8
_MS_MAX: Final = 2**31 - 1


@cache
def _position(api_key: int, version: int) -> int | None:
    """Return where the field begins, from the response's end if negative; None: nowhere known."""
    kind = response_class(api_key, version)
    names = [each.name for each in fields(kind)]
    tags = 1 if kind.__flexible__ else 0
    if _FIELD not in names or api_key == API_API_VERSIONS:
        return None
    if names[0] == _FIELD:
        return _HEAD_BYTES + tags
    if names[:2] == ["error_code", _FIELD]:  # OffsetDelete
        return _HEAD_BYTES + tags + INT16.size
    if api_key == API_PRODUCE:  # the last field; from version 10 on, tags may follow, none do
        return -INT32.size - tags
    return None


def has_throttle_time(api_key: int, version: int) -> bool:
    """Whether `with_throttle_time` finds the field in a response."""
    return _position(api_key, version) is not None


def with_throttle_time(
    parts: Sequence[bytes], api_key: int, version: int, seconds: float
) -> tuple[bytes, ...]:
    """Return a response with the time for which its client is throttled, if it has the field.

    Parameters:
        parts: the response's bytes, with its length.
    """
    position = _position(api_key, version)
    found = tuple(parts)
    if position is None:
        return found
    value = INT32.pack(min(max(round(seconds * 1000), 1), _MS_MAX))
    if position < 0:
        # A client that throttles itself needs little of it: Produce has small responses.
        whole = bytearray().join(found)
        at = len(whole) + position
        whole[at : at + INT32.size] = value
        return (bytes(whole),)
    for number, part in enumerate(found):
        if position + INT32.size <= len(part):
            changed = part[:position] + value + part[position + INT32.size :]
            return (*found[:number], changed, *found[number + 1 :])
        if position < len(part):
            break  # the field is in two parts
        position -= len(part)
    return with_throttle_time((b"".join(found),), api_key, version, seconds)
