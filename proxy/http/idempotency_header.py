"""Reads the header Idempotency-Key (draft-ietf-httpapi-idempotency-key-header-07).

Its value is a string of structured fields (RFC 9651, section 3.3.3): in quotes, of blanks and ASCII
that can be seen. Many clients send the key without quotes, which is accepted: both are one key.
"""

import re
from collections.abc import Sequence
from typing import Final

from pidlease.core.idempotency_keys import KEY_BYTES_MAX, name_of_key
from pidlease.kafka.records.identity_header import Identity
from proxy.http.record_responses import IdempotencyKeyError

_QUOTED: Final = re.compile(rb'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_ESCAPED: Final = re.compile(rb"\\(.)")
#: Without quotes: what can be seen, but for what has a meaning in structured fields.
_BARE: Final = re.compile(rb"[!#-+\--:<-\[\]-~]+")


def by_key(values: Sequence[bytes]) -> Identity:
    """Return the producer that a key makes of a request. Its last sequence number is not set yet.

    Parameters:
        values: of the headers Idempotency-Key, without blanks around them; one at least.

    Raises:
        IdempotencyKeyError: the header is repeated or invalid.
    """
    if len(values) > 1:
        raise IdempotencyKeyError(f"is there {len(values)} times")
    (value,) = values
    quoted = _QUOTED.fullmatch(value)
    key = _ESCAPED.sub(rb"\1", quoted[1]) if quoted else value
    if not quoted and not _BARE.fullmatch(value):
        raise IdempotencyKeyError(
            'is a text of visible ASCII in quotes, as in "8e03978e-40d5"; the quotes may be left'
            " out if it has no blanks, quotes, commas, semicolons or backslashes"
        )
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise IdempotencyKeyError(f"has {len(key)} bytes; it has 1 to {KEY_BYTES_MAX}")
    return Identity(-1, name_of_key(key.decode("ascii")), 0, 0, 0)
