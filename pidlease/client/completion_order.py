"""What stands in the log and is not told yet, for something before it has no answer for good.

Kafka's clients tell the records of a partition in their order, too (KafkaProducer's callbacks): who
keeps account of what is done may go by the last one.
"""

from bisect import insort
from collections.abc import Callable
from typing import NamedTuple


class _Kept(NamedTuple):
    number: int
    tell: Callable[[], None]


class CompletionOrder:
    """One partition's."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[_Kept] = []

    def stored(self, number: int, tell: Callable[[], None], before: int | None) -> None:
        """A batch stands in the log: tell it when its turn has come, and who waited for that.

        Parameters:
            number: its last one.
            tell: tells whoever waits for its records.
            before: see `tell`.
        """
        if not self._kept and (before is None or number < before):
            tell()
            return
        insort(self._kept, _Kept(number, tell), key=_by_number)
        self.tell(before)

    def tell(self, before: int | None) -> None:
        """Tell what stands before a number, which has no answer for good; None: all."""
        while self._kept and (before is None or self._kept[0].number < before):
            self._kept.pop(0).tell()


def _by_number(kept: _Kept) -> int:
    return kept.number
