"""Reads the lines of the journal of committed offsets, intact or not."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from pidlease.storage.files import OpenFile
from pidlease.storage.offsets.journal_records import Line, parse_line

#: Bytes read at once.
_CHUNK_BYTES: Final = 1 << 20
#: Longer than the JSON of any accepted request (2 MiB).
LINE_BYTES_MAX: Final = 32 << 20


class JournalLine(NamedTuple):
    """A line of the journal.

    Attributes:
        number: counted from 1, the header.
        start: its first byte's position.
        end: the next line's position.
        line: its content; None: it is damaged or incomplete.
    """

    number: int
    start: int
    end: int
    line: Line | None


def journal_lines(file: OpenFile, start: int) -> Iterator[JournalLine]:
    """Read all lines of a journal in order, intact or not.

    Parameters:
        start: the position after the header.

    Raises:
        OSError: the file cannot be read.
        ValueError: an intact line has a kind that only a newer version knows.
    """
    for number, (raw, whole) in enumerate(_raw_lines(file, start), 2):
        end = start + len(raw) + whole
        line = parse_line(raw) if whole else None
        # If only the newline is damaged, the line after it is intact: a bracket before a quotation
        # mark nearly always begins a line.
        at = raw.rfind(b'{"') if line is None else 0
        if at > 0 and whole:
            yield JournalLine(number, start, start + at, None)
            start, line = start + at, parse_line(raw[at:])
        yield JournalLine(number, start, end, line)
        start = end


def _raw_lines(file: OpenFile, position: int) -> Iterator[tuple[bytes, bool]]:
    """Lines without their newlines, and whether there was one."""
    rest = b""
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
