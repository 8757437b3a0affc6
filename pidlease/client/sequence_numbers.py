"""Under which PID and numbers a partition is written to, and what ids its records bring."""

from typing import Final

from pidlease.client.record_accumulator import Batch, Span
from pidlease.client.record_arguments import SEQUENCE_MAX


class Numbers:
    """What a lease begins with, and how far it has gone since.

    Parameters:
        pid: the PID,
        generation: and the generation.
        first: where the range of the next batch begins on the wire.
        number: the number of the next record, where records bring none; beyond `first` only
            where a name has got a new PID.
        stored: what has a number below this stands in the log under the name's PID before: the
            server would not know it again.
    """

    __slots__ = ("first", "generation", "number", "pid", "stored")

    def __init__(self, pid: int, generation: int, first: int, number: int, stored: int = 0) -> None:
        self.pid: Final = pid
        self.generation: Final = generation
        self.first = first
        self.number = number
        self.stored: Final = stored

    def span(self, batch: Batch, *, holes: bool) -> Span:
        """The next batch's numbers; they are taken.

        Parameters:
            holes: whether numbers may be left out between batches.
        """
        number = batch.ids[0] if batch.ids else self.number
        last = batch.ids[-1] if batch.ids else number + len(batch.futures) - 1
        # An application that sends again what it sent before a crash begins behind `first`.
        first = number if holes else min(self.first, number)
        self.first = self.number = last + 1
        return Span(self.pid, self.generation, first, last, number)


class Ids:
    """Numbers that an application gives its records itself: they rise, or there are none.

    Attributes:
        last: the highest; -1: there was none.
    """

    __slots__ = ("_given", "last")

    def __init__(self) -> None:
        self._given: bool | None = None
        self.last = -1

    def check(self, sequence_id: int | None, *, repeats: bool = False) -> bool:
        """Whether a record is new that brings this id, or none.

        Parameters:
            repeats: an id that is not above the last one makes a record a duplicate.

        Returns:
            False: it is a duplicate.

        Raises:
            ValueError: it may not come next.
        """
        if self._given not in (None, sequence_id is not None):
            raise ValueError("either all records bring a sequence_id, or none")
        if sequence_id is None or self.last < sequence_id <= SEQUENCE_MAX:
            return True
        if repeats and 0 <= sequence_id <= self.last:
            return False
        raise ValueError(f"sequence_id {sequence_id} does not rise: {self.last} was the last")

    def note(self, sequence_id: int | None) -> None:
        """A record has come."""
        self._given = sequence_id is not None
        if sequence_id is not None:
            self.last = sequence_id

    @property
    def given(self) -> bool:
        """Whether records are known to bring some."""
        return self._given is True
