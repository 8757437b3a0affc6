"""Idempotency keys: a request with one is a producer of policy epoch that sends once.

The producer id is the key after a mark, which no Producer-Id can have. The generation is 0, and the
sequence numbers are 0 to a digest of the request. So the rules of policy epoch say everything:

- the same request again has the same numbers: a duplicate, with the offset of the original;
- another request has another last number: it overlaps the original, or counts as one so old that
  its offset is forgotten. Nothing else of a key is ever forgotten while its lease lasts.
"""

import hashlib
from typing import Final

from pidlease.core.pid import POLICY_SHIFT, Policy
from pidlease.core.rules import EPOCH

#: The longest key, in bytes.
KEY_BYTES_MAX: Final = 256
#: Begins the producer id of a key. It cannot be seen, so no Producer-Id has it.
KEY_MARK: Final = "\x1f"

#: The stand-in PIDs of keys are those from here on (`producer_names`).
FIRST_OF_KEYS: Final = Policy.EPOCH << POLICY_SHIFT | 3 << (POLICY_SHIFT - 2)
_END: Final = (Policy.EPOCH + 1) << POLICY_SHIFT
_DIGEST_BITS: Final = EPOCH.sequence_max.bit_length()


def is_of_key(pid: int) -> bool:
    """Return whether a PID is the stand-in of an idempotency key."""
    return FIRST_OF_KEYS <= pid < _END


def is_key_name(name: str) -> bool:
    """Return whether a producer id is that of an idempotency key."""
    return name.startswith(KEY_MARK)


def key_of_name(name: str) -> str:
    """Return the key of a producer id as people know it; of a key of 256 bytes: its SHA-256."""
    return name.lstrip(KEY_MARK)


def name_of_key(key: str) -> str:
    """Return the producer id of a key.

    Parameters:
        key: 1 to 256 characters of ASCII that can be seen, or blanks.
    """
    if len(key) < KEY_BYTES_MAX:
        return KEY_MARK + key
    # With the mark it would be longer than a producer id may be.
    return KEY_MARK * 2 + hashlib.sha256(key.encode()).hexdigest()


def digest_of(kind: bytes, body: bytes | bytearray) -> int:
    """Return the last sequence number of a request: a digest of its body.

    Parameters:
        kind: the media type of the body.
        body: without compression.
    """
    found = hashlib.sha256(kind + b"\0")
    found.update(body)
    return int.from_bytes(found.digest()) >> (found.digest_size * 8 - _DIGEST_BITS)
