"""Compares the two sparse indexes of a segment with its log while the log is read."""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from pidlease.log.segments.sparse_index import NO_TIMESTAMP, OFFSET_ENTRY, TIME_ENTRY
from pidlease.storage.files import OpenFile

_ENTRIES_AT_ONCE: Final = 8192


class Problem(NamedTuple):
    """What is wrong with an index, and where in the index, in bytes."""

    position: int
    message: str


class _Entry(NamedTuple):
    """An entry of an index.

    Attributes:
        position: of the entry in the index, in bytes.
        key: the field that grows with the log: a position, or a relative offset.
        value: the other field.
    """

    position: int
    key: int
    value: int


class _Walk:
    """Reads the entries in order, one ahead: a single wrong entry is reported and skipped."""

    def __init__(self, file: OpenFile, layout: struct.Struct, key: int) -> None:
        self.problems: list[Problem] = []
        self._size = file.size()
        self._entry_bytes = layout.size
        self._entries = _read(file, layout, key)
        self._previous = -1
        self._next = next(self._entries, None)
        self.current: _Entry | None = None
        self.advance()
        rest = self._size % layout.size
        if rest:
            self.problems.append(Problem(self._size - rest, f"ends {rest} bytes into an entry"))

    def advance(self) -> None:
        """Advance to the next entry that is in order."""
        if self.current is not None:
            self._previous = self.current.key
        self.current, self._next = self._next, next(self._entries, None)
        while self.current is not None and self._next is not None:
            if self._next.key > self.current.key:
                break
            wrong = self._next
            if self._next.key > self._previous:
                wrong, self.current = self.current, self._next
            self._next = next(self._entries, None)
            self.problems.append(Problem(wrong.position, "an entry is out of order"))

    def rest(self) -> int:
        """Return how many entries are left, the current one included; call it last."""
        if self.current is None:
            return 0
        whole = self._size // self._entry_bytes * self._entry_bytes
        return (whole - self.current.position) // self._entry_bytes

    def take(self) -> list[Problem]:
        """Return the problems since the last call."""
        found, self.problems = self.problems, []
        return found


def _read(file: OpenFile, layout: struct.Struct, key: int) -> Iterator[_Entry]:
    end = file.size() // layout.size * layout.size
    at_once = _ENTRIES_AT_ONCE * layout.size
    for start in range(0, end, at_once):
        data = file.read_at(min(at_once, end - start), start)
        for number, fields in enumerate(layout.iter_unpack(data)):
            yield _Entry(start + number * layout.size, fields[key], fields[1 - key])


class OffsetIndexCheck:
    """Checks an .index: each entry has a batch's position and last offset.

    Parameters:
        file: the index; stays open while this is used.
    """

    def __init__(self, file: OpenFile) -> None:
        self._walk = _Walk(file, OFFSET_ENTRY, key=1)

    def batch(self, position: int, last: int, _max_timestamp: int) -> list[Problem]:
        """Compare the entries up to a batch with the batch.

        Parameters:
            position: the batch's position in the log, in bytes.
            last: its last offset, relative to the segment's first.
        """
        walk = self._walk
        while walk.current is not None and walk.current.key <= position:
            at, key, value = walk.current
            if key < position:
                walk.problems.append(Problem(at, f"no batch begins at byte {key} of the log"))
            elif value != last:
                text = f"the batch at byte {key} ends at +{last}, not at +{value}"
                walk.problems.append(Problem(at, text))
            walk.advance()
        return walk.take() if walk.problems else walk.problems

    def finish(self) -> list[Problem]:
        """Return the problems that show at the end of the log."""
        return _left_over(self._walk)


class TimeIndexCheck:
    """Checks a .timeindex: each entry has the largest timestamp so far, and its last offset.

    Parameters:
        file: the index; stays open while this is used.
        sealed: whether the last entry must have the segment's largest timestamp.
    """

    def __init__(self, file: OpenFile, *, sealed: bool) -> None:
        self._walk = _Walk(file, TIME_ENTRY, key=1)
        # A server that could not write the index leaves it empty.
        self._complete = sealed and file.size() > 0
        self._largest = NO_TIMESTAMP
        self._last_entry = NO_TIMESTAMP

    def batch(self, _position: int, last: int, max_timestamp: int) -> list[Problem]:
        """Compare the entries up to a batch with the batch.

        Parameters:
            last: the batch's last offset, relative to the segment's first.
            max_timestamp: its largest timestamp, in ms.
        """
        walk = self._walk
        self._largest = max(self._largest, max_timestamp)
        while walk.current is not None and walk.current.key <= last:
            at, key, timestamp = walk.current
            if key < last:
                walk.problems.append(Problem(at, f"no batch ends at +{key}"))
            elif timestamp != max_timestamp:
                text = f"the batch that ends at +{key} has time {max_timestamp}, not {timestamp}"
                walk.problems.append(Problem(at, text))
            elif timestamp < self._largest:
                text = f"time {timestamp} is not the largest so far: {self._largest} is before it"
                walk.problems.append(Problem(at, text))
            self._last_entry = timestamp
            walk.advance()
        return walk.take() if walk.problems else walk.problems

    def finish(self) -> list[Problem]:
        """Return the problems that show at the end of the log."""
        found = _left_over(self._walk)
        if self._complete and not found and self._last_entry != self._largest:
            found.append(
                Problem(-1, f"its last time is {self._last_entry}; the log has {self._largest}")
            )
        return found


def _left_over(walk: _Walk) -> list[Problem]:
    found = walk.take()
    if walk.current is not None:
        text = f"{walk.rest()} entries point beyond the end of the log"
        found.append(Problem(walk.current.position, text))
    return found
