"""Files of lines: each a JSON object, a space, and the CRC-32C of the JSON in eight hex digits.

Lines are appended, and fsynced before they count. So only the end of a file can have a line that a
crash has torn.
"""

import json
from collections.abc import Mapping
from typing import Any

from crc32c import crc32c


def encode_line(fields: Mapping[str, object], *, ensure_ascii: bool = True) -> bytes:
    """Return a line, with its newline.

    Parameters:
        fields: the JSON object.
        ensure_ascii: escape all characters beyond ASCII.
    """
    text = json.dumps(
        fields, ensure_ascii=ensure_ascii, sort_keys=True, separators=(",", ":")
    ).encode()
    return b"%s %08x\n" % (text, crc32c(text))


def decode_line(line: bytes) -> dict[str, Any] | None:
    """Return the fields of a line without its newline; None: the line is damaged.

    Raises:
        ValueError: the line is intact, but not a JSON object.
    """
    text, _, crc = line.rpartition(b" ")
    if not text or b"%08x" % crc32c(text) != crc:
        return None
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError(f"no JSON object, but {type(fields).__name__}")  # noqa: TRY004
    return fields


def split_torn(content: bytes) -> tuple[list[bytes], bytes]:
    """Split a file that grows by one line per write into its lines and the line that a crash tore.

    A torn line has no newline. Or it has one, but zeros where the write's first part was lost;
    JSON contains no zero byte.
    """
    lines = content.split(b"\n")
    torn = lines.pop()
    if lines and not torn and b"\0" in lines[-1]:
        torn = lines.pop()
    return lines, torn
