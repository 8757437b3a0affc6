"""The sequence numbers of a partition: from its lease, or the records' own sequence_ids."""

from typing import Final

from pidlease.client.pending_batch import PendingBatch, SequenceRange
from pidlease.client.record_arguments import SEQUENCE_MAX


class LeasedSequence:
    """The next sequence numbers under a lease.

    Parameters:
        first: first_sequence of the next batch on the wire.
        number: the sequence number of the next record, if records have none of their own; above
            `first` only after a name has got a new PID.
        stored: records with a sequence number below this are in the log under the name's previous
            PID: the server would not detect them as duplicates.
    """

    __slots__ = ("first", "generation", "number", "pid", "stored")

    def __init__(self, pid: int, generation: int, first: int, number: int, stored: int = 0) -> None:
        self.pid: Final = pid
        self.generation: Final = generation
        self.first: int = first
        self.number: int = number
        self.stored: Final = stored

    def span(self, batch: PendingBatch, *, gaps: bool) -> SequenceRange:
        """Take the next batch's sequence numbers.

        Parameters:
            gaps: whether sequence gaps between batches are allowed.
        """
        number = batch.ids[0] if batch.ids else self.number
        last = batch.ids[-1] if batch.ids else number + len(batch.futures) - 1
        # An application that sends again after a crash may begin below `first`.
        first = number if gaps else min(self.first, number)
        self.first = self.number = last + 1
        return SequenceRange(self.pid, self.generation, first, last, number)


class SequenceIds:
    """The sequence_ids that an application gives its records: they rise, or there are none.

    Attributes:
        last: the highest; -1: there was none.
    """

    __slots__ = ("_given", "last")

    def __init__(self) -> None:
        self._given: bool | None = None
        self.last: int = -1

    def check(self, sequence_id: int | None, *, repeats: bool = False) -> bool:
        """Check the sequence_id of the next record.

        Parameters:
            repeats: whether a record with a sequence_id not above the last one is a duplicate.

        Returns:
            False: the record is a duplicate.

        Raises:
            ValueError: the record cannot be next.
        """
        if self._given not in (None, sequence_id is not None):
            raise ValueError("either all records bring a sequence_id, or none")
        if sequence_id is None or self.last < sequence_id <= SEQUENCE_MAX:
            return True
        if repeats and 0 <= sequence_id <= self.last:
            return False
        raise ValueError(f"sequence_id {sequence_id} does not rise: {self.last} was the last")

    def note(self, sequence_id: int | None) -> None:
        """Note the sequence_id of a record that was added."""
        self._given = sequence_id is not None
        if sequence_id is not None:
            self.last = sequence_id

    @property
    def given(self) -> bool:
        """Whether the records have sequence_ids, as far as is known."""
        return self._given is True
