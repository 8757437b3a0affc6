"""The two sparse indexes of a segment, held against the log while it goes by."""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from pidlease.log.segments.sparse_index import NO_TIMESTAMP, OFFSET_ENTRY, TIME_ENTRY
from pidlease.storage.files import OpenFile

_ENTRIES_AT_ONCE: Final = 8192


class Problem(NamedTuple):
    """What is wrong with an index, and at which byte of it."""

    position: int
    message: str


class _Entry(NamedTuple):
    """An entry with its place in the file.

    Attributes:
        position: in bytes.
        key: what rises with the log: the position, or the relative offset.
        value: what the entry says of the batch.
    """

    position: int
    key: int
    value: int


class _Walk:
    """The entries in order, one ahead, so that a single wrong one does not spoil the rest."""

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
        """Go on to the next entry that is in order."""
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
        """How many entries are left, the current one included; to be asked last."""
        if self.current is None:
            return 0
        whole = self._size // self._entry_bytes * self._entry_bytes
        return (whole - self.current.position) // self._entry_bytes

    def take(self) -> list[Problem]:
        """The problems since the last call."""
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
    """Each entry of an .index names the position of a batch, and its last offset.

    Parameters:
        file: the index, open as long as this is in use.
    """

    def __init__(self, file: OpenFile) -> None:
        self._walk = _Walk(file, OFFSET_ENTRY, key=1)

    def batch(self, position: int, last: int, _max_timestamp: int) -> list[Problem]:
        """Hold the entries up to a batch against it.

        Parameters:
            position: of the batch in the log, in bytes.
            last: its last offset, counted from the segment's first.
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
        """What is left when the log has ended."""
        return _left_over(self._walk)


class TimeIndexCheck:
    """Each entry of a .timeindex is the largest timestamp so far, and its batch's last offset.

    Parameters:
        file: the index, open as long as this is in use.
        sealed: whether the last entry must be that of the segment's largest timestamp.
    """

    def __init__(self, file: OpenFile, *, sealed: bool) -> None:
        self._walk = _Walk(file, TIME_ENTRY, key=1)
        # An empty one is what a server leaves that could not write it: better than half of one.
        self._complete = sealed and file.size() > 0
        self._largest = NO_TIMESTAMP
        self._last_entry = NO_TIMESTAMP

    def batch(self, _position: int, last: int, max_timestamp: int) -> list[Problem]:
        """Hold the entries up to a batch against it.

        Parameters:
            last: the batch's last offset, counted from the segment's first.
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
        """What is left when the log has ended."""
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
