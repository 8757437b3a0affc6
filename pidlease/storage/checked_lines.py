"""Files of lines, each a JSON object, a space, and the CRC-32C of the JSON in eight hex digits.

Lines are added to such a file, and fsynced before they count. So what a crash leaves of a write is
at the end.
"""

import json
from collections.abc import Mapping
from typing import Any

from crc32c import crc32c


def encode_line(fields: Mapping[str, object], *, ensure_ascii: bool = True) -> bytes:
    """A line, with its newline.

    Parameters:
        fields: what it says.
        ensure_ascii: whether other letters are escaped.
    """
    text = json.dumps(
        fields, ensure_ascii=ensure_ascii, sort_keys=True, separators=(",", ":")
    ).encode()
    return b"%s %08x\n" % (text, crc32c(text))


def decode_line(line: bytes) -> dict[str, Any] | None:
    """What a line without its newline says; None where it is not intact.

    Raises:
        ValueError: it is intact, and no JSON object.
    """
    text, _, crc = line.rpartition(b" ")
    if not text or b"%08x" % crc32c(text) != crc:
        return None
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError(f"no JSON object, but {type(fields).__name__}")  # noqa: TRY004
    return fields


def split_torn(content: bytes) -> tuple[list[bytes], bytes]:
    """The whole lines of a file to which one line was added at a time, and what a crash left.

    That is what comes after the last newline; or the last line, where the write's first part
    was lost, and reads as zeros: JSON has none.
    """
    lines = content.split(b"\n")
    torn = lines.pop()
    if lines and not torn and b"\0" in lines[-1]:
        torn = lines.pop()
    return lines, torn
