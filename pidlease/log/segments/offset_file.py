"""The content of a small file with one offset and a checksum, for the marks beside a log."""

import struct
from typing import Final

from crc32c import crc32c

_OFFSET: Final = struct.Struct(">q")
_CHECKED: Final = struct.Struct(">qI")


def encode_offset(offset: int) -> bytes:
    """Return the content of the file for an offset."""
    return _CHECKED.pack(offset, crc32c(_OFFSET.pack(offset)))


def decode_offset(content: bytes) -> int | None:
    """Return the offset in a file's content; None: the content is not intact."""
    if len(content) != _CHECKED.size:
        return None
    offset, crc = _CHECKED.unpack(content)
    return int(offset) if crc32c(_OFFSET.pack(offset)) == crc else None
