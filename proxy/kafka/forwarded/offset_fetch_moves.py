"""Recognises responses to OffsetFetch of a broker that does not coordinate the group any more."""

from typing import Final

from pidlease.kafka.api import API_OFFSET_FETCH
from pidlease.kafka.codec.messages import is_flexible
from pidlease.kafka.codec.primitives import MalformedError, Reader
from pidlease.kafka.error_codes import COORDINATOR_MOVED

_BODY: Final = 4
#: The first versions with an error of the whole response, with a throttle time, and with groups.
_WITH_ERROR: Final = 2
_WITH_THROTTLE: Final = 3
_WITH_GROUPS: Final = 8


def has_moved(version: int, response: bytearray) -> bool:
    """Return whether a response says nothing but that another broker coordinates the group.

    Parameters:
        version: of the request.
        response: from the correlation id on.
    """
    if version < _WITH_ERROR:
        return False
    reader = Reader(response, _BODY, flexible=is_flexible(API_OFFSET_FETCH, version))
    try:
        reader.tags()
        if version >= _WITH_THROTTLE:
            reader.int32()
        if version >= _WITH_GROUPS:
            if reader.array() != 1:
                return False  # of several groups: the client reads it group by group
            reader.string()
        return not reader.array() and reader.int16() in COORDINATOR_MOVED
    except MalformedError:
        return False  # the client sees what it is
