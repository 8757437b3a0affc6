"""The error code that stands in an answer itself, read without reading the answer.

Most answers about groups, leases and transactions begin with one, after the header and, where the
version has it, the throttle time. Those about partitions have one in each row instead.
"""

import dataclasses
from functools import cache
from typing import Final

from kio.index import load_response_schema

from pidlease.kafka.codec.primitives import INT16, INT32

_THROTTLE: Final = "throttle_time"
_CODE: Final = "error_code"


@cache
def code_place(api_key: int, version: int) -> int:
    """Where the code stands in such an answer, in bytes; -1: nowhere, or not in front.

    Parameters:
        api_key: of the request; not ApiVersions, which has another response header.
        version: of the request.
    """
    kind = load_response_schema(api_key, version)
    fields = [each.name for each in dataclasses.fields(kind)]
    place = INT32.size + (1 if kind.__flexible__ else 0)  # the correlation id, and tags
    if fields[:1] == [_THROTTLE]:
        place, fields = place + INT32.size, fields[1:]
    return place if fields[:1] == [_CODE] else -1


def code_of(api_key: int, version: int, answer: bytes) -> int:
    """The code that an answer begins with; 0: none, or it has none there.

    Parameters:
        api_key: what was asked.
        version: of the request.
        answer: from its header on.
    """
    place = code_place(api_key, version)
    if place < 0 or len(answer) < place + INT16.size:
        return 0
    code: int = INT16.unpack_from(answer, place)[0]
    return code
