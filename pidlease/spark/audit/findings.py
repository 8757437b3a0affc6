"""What the audit tells of sends: their kinds, and what is known of each."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pidlease.core.state import UNKNOWN_CRC, Batch

DUPLICATE: Final = "duplicate"
GAP: Final = "gap"
OVERLAP: Final = "overlap"
LATE: Final = "late"
FENCED: Final = "fenced"
MALFORMED: Final = "malformed"
#: What is wrong, by kind.
VIOLATIONS: Final = (DUPLICATE, GAP, OVERLAP, LATE, FENCED, MALFORMED)

JUMP: Final = "generation jump"
RESTART: Final = "restart"
LOST: Final = "lost to damage"
#: What is as it may be, and worth knowing.
NOTICES: Final = (JUMP, RESTART, LOST)


class Sent(NamedTuple):
    """A send.

    Attributes:
        policy: the number of its policy; of none: it is malformed.
        offset: of its first record,
        last_offset: and of its last one.
        batch: its identity.
        counted: how many records stand in the log.
        equal_offset: where the first send of the same producer with the same range stands; -1:
            there is none before it.
        equal_crc: the CRC of that one,
        equal_generation: and its generation.
    """

    policy: int
    offset: int
    last_offset: int
    batch: Batch
    counted: int
    equal_offset: int = -1
    equal_crc: int = UNKNOWN_CRC
    equal_generation: int = -1


class Finding(NamedTuple):
    """What is wrong with a send, or worth knowing.

    Attributes:
        kind: one of VIOLATIONS and NOTICES.
        sent: the send.
        numbers: records that stood there before (duplicate, overlap), numbers left out (gap, lost
            to damage), records of the send (otherwise).
        expected: the sequence that should have come; -1: that cannot be said.
        original: where the first send of an equal range stands; -1: there is none.
        differs: that one has other bytes.
        detail: in words.
    """

    kind: str
    sent: Sent
    numbers: int
    expected: int = -1
    original: int = -1
    differs: bool = False
    detail: str = ""


class Cuts(NamedTuple):
    """What is known of a partition's log as a whole.

    Attributes:
        whole: it goes back to offset 0.
        damaged: offsets at which something is damaged or missing, in order.
    """

    whole: bool = True
    damaged: Sequence[int] = ()

    def between(self, after: int, upto: int) -> bool:
        """Whether something is damaged behind an offset, and not behind another one."""
        place = bisect_right(self.damaged, after)
        return place < len(self.damaged) and self.damaged[place] <= upto


def cuts_of(
    starts: Mapping[tuple[str, int], int], damaged: Mapping[tuple[str, int], Sequence[int]]
) -> dict[tuple[str, int], Cuts]:
    """What is known of each partition.

    Parameters:
        starts: the first offset of each,
        damaged: and where something is damaged.
    """
    return {each: Cuts(start == 0, sorted(damaged.get(each, ()))) for each, start in starts.items()}
