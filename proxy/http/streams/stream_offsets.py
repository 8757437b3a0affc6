"""The offsets of streams as text, which sorts as the numbers do."""

import re
from typing import Final

#: The part of an offset that has 16 digits; an offset has up to 19.
_HALF: Final = 10**16
_FORM: Final = re.compile(r"([0-9]{16})_([0-9]{16})")
#: The beginning of a stream, and its end at the time of the request.
BEGINNING: Final = "-1"
NOW: Final = "now"


def offset_text(offset: int) -> str:
    """Return an offset as clients get it."""
    high, low = divmod(offset, _HALF)
    return f"{high:016d}_{low:016d}"


def offset_of(text: str) -> int | None:
    """Return the offset in a text of `offset_text`; None: it is no such text."""
    found = _FORM.fullmatch(text)
    return None if found is None else int(found[1]) * _HALF + int(found[2])
