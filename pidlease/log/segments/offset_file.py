"""An offset in a small file of its own, with a checksum: the marks beside a log."""

import struct
from typing import Final

from crc32c import crc32c

_OFFSET: Final = struct.Struct(">q")
_CHECKED: Final = struct.Struct(">qI")

CHECKED_OFFSET_BYTES: Final = _CHECKED.size


def encode_offset(offset: int) -> bytes:
    """The file's content."""
    return _CHECKED.pack(offset, crc32c(_OFFSET.pack(offset)))


def decode_offset(content: bytes) -> int | None:
    """The offset; None where the content is not intact."""
    if len(content) != _CHECKED.size:
        return None
    offset, crc = _CHECKED.unpack(content)
    return int(offset) if crc32c(_OFFSET.pack(offset)) == crc else None
