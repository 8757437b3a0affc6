"""The lines of the journal of committed offsets, as they stand in the file, intact or not."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from pidlease.storage.files import OpenFile
from pidlease.storage.offsets.journal_records import Line, parse_line

#: What is read at once.
_CHUNK_BYTES: Final = 1 << 20
#: A line is longer than any request that is taken (2 MiB), whatever JSON makes of it.
LINE_BYTES_MAX: Final = 32 << 20


class JournalLine(NamedTuple):
    """A line of the file.

    Attributes:
        number: from 1 on.
        start: at which byte it begins.
        end: where the next one begins.
        line: what it says; None: it is not intact, or not whole.
    """

    number: int
    start: int
    end: int
    line: Line | None


def journal_lines(file: OpenFile) -> Iterator[JournalLine]:
    """All lines of a journal, intact or not, in order.

    Raises:
        OSError: it cannot be read.
        ValueError: a line is intact, and of a kind that only a newer version knows.
    """
    start = 0
    for number, (raw, whole) in enumerate(_raw_lines(file), 1):
        end = start + len(raw) + whole
        line = parse_line(raw) if whole else None
        # Where it is the newline that is damaged, what follows it is whole: a bracket before a
        # quotation mark is where a line begins, and hardly ever anything else.
        at = raw.rfind(b'{"') if line is None else 0
        if at > 0 and whole:
            yield JournalLine(number, start, start + at, None)
            start, line = start + at, parse_line(raw[at:])
        yield JournalLine(number, start, end, line)
        start = end


def _raw_lines(file: OpenFile) -> Iterator[tuple[bytes, bool]]:
    """Lines without their newlines, and whether there was one."""
    position, rest = 0, b""
    while chunk := file.read_at(_CHUNK_BYTES, position):
        position += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line, True
        if len(rest) > LINE_BYTES_MAX:
            yield rest, False
            rest = b""
    if rest:
        yield rest, False
