"""Reads the error code at the beginning of a response, without decoding the response.

Most responses about groups, leases and transactions begin with one, after the header and, in some
versions, the throttle time. Responses about partitions have one in each row instead.
"""

import dataclasses
from functools import cache
from typing import Final

from kio.index import load_response_schema

from pidlease.kafka.codec.primitives import INT16, INT32

_THROTTLE: Final = "throttle_time"
_CODE: Final = "error_code"


@cache
def code_position(api_key: int, version: int) -> int:
    """Return the position of the error code, in bytes; -1: the response does not begin with one.

    Parameters:
        api_key: of the request; not ApiVersions, which has another response header.
    """
    kind = load_response_schema(api_key, version)
    fields = [each.name for each in dataclasses.fields(kind)]
    position = INT32.size + (1 if kind.__flexible__ else 0)  # the correlation id, and tags
    if fields[:1] == [_THROTTLE]:
        position, fields = position + INT32.size, fields[1:]
    return position if fields[:1] == [_CODE] else -1


def code_of(api_key: int, version: int, response: bytes) -> int:
    """Return the error code at the beginning of a response; 0: none.

    Parameters:
        response: with its header.
    """
    position = code_position(api_key, version)
    if position < 0 or len(response) < position + INT16.size:
        return 0
    code: int = INT16.unpack_from(response, position)[0]
    return code
