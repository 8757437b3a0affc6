"""A producer's state packed into few bytes, because a server keeps up to a million of them.

    arrival, generation, lowest | newest batch | the one before | ... at most five

Each batch is (first, last, offset, crc); H is the last sequence number of the newest. Numbers that
wrap fit 32 bits: a complete state of policy kafka takes 114 bytes, that of another policy 164.
Bytes are immutable, as a `ProducerState` is.

The rules are in `judge` and `fold`. This module has a short path only for the batch that follows
the preceding one; for any other batch it unpacks the state, and calls them.
"""

import struct
from typing import Final, NamedTuple

from pidlease.core.judge import ADMIT, WRAPPING_SPAN_MAX, Verdict, judge
from pidlease.core.rules import Rules
from pidlease.core.state import BATCHES_KEPT, Appended, Batch, ProducerState, fold, keep_low

#: A packed state. Its layout depends on whether its policy's numbers wrap.
Packed = bytes


class Layout(NamedTuple):
    """The layout of packed states: little-endian, without padding.

    Attributes:
        head: arrival_ms, generation, lowest.
        batch: first, last, offset, crc.
        newest: the head with the newest batch.
    """

    head: struct.Struct
    batch: struct.Struct
    newest: struct.Struct

    @property
    def size(self) -> int:
        """Bytes of a complete state."""
        return self.head.size + BATCHES_KEPT * self.batch.size


#: For numbers of 31 bits, and generations of 15.
NARROW: Final = Layout(struct.Struct("<qhi"), struct.Struct("<iiqI"), struct.Struct("<qhiiiqI"))
WIDE: Final = Layout(struct.Struct("<qqq"), struct.Struct("<qqqI"), struct.Struct("<qqqqqqI"))

_ARRIVAL: Final = struct.Struct("<q")
_NARROW_HEAD: Final = NARROW.head.size
_WIDE_HEAD: Final = WIDE.head.size
#: The end of the fourth batch: the batches up to here stay when a new one is added.
_NARROW_KEPT: Final = NARROW.size - NARROW.batch.size
_WIDE_KEPT: Final = WIDE.size - WIDE.batch.size
#: Generation and H, which `judge_packed` needs.
_NARROW_JUDGED: Final = struct.Struct("<8xh8xi")
_WIDE_JUDGED: Final = struct.Struct("<8xq16xq")
#: Generation and lowest, which `fold_packed` needs.
_NARROW_FOLDED: Final = struct.Struct("<8xhi")
_WIDE_FOLDED: Final = struct.Struct("<8xqq")
#: The offset of the newest batch.
_NARROW_OFFSET: Final = struct.Struct("<22xq")
_WIDE_OFFSET: Final = struct.Struct("<40xq")
_NARROW_MAX: Final = 2**31 - 1
#: Half of the numbers: up to there the low mark stays (`keep_low`).
_NARROW_HALF: Final = 2**30
#: A range among the last five is a duplicate even if H has gone back since: a log that was written
#: without judging has such histories. (`find` takes half the time of `in`.)
_NARROW_RANGE: Final = struct.Struct("<ii")
_WIDE_RANGE: Final = struct.Struct("<qq")


def layout_of(rules: Rules) -> Layout:
    """Return the layout of a policy's states."""
    return NARROW if rules.wraps else WIDE


def pack(rules: Rules, state: ProducerState) -> Packed:
    """Pack a state.

    Raises:
        ValueError: the state has no batch or more than five, H is not the end of the last one, or
            a number does not fit the policy; no fold makes such a state.
    """
    generation, high, lowest, batches, arrival_ms = state
    if not 1 <= len(batches) <= BATCHES_KEPT or batches[-1].last != high:
        raise ValueError(f"no fold makes this state: {state}")
    layout = layout_of(rules)
    try:
        head = layout.head.pack(arrival_ms, generation, lowest)
        return head + b"".join(layout.batch.pack(*batch) for batch in reversed(batches))
    except struct.error as error:
        raise ValueError(f"a number does not fit ({error}): {state}") from None


def unpack(rules: Rules, packed: Packed) -> ProducerState:
    """Unpack a state."""
    layout = layout_of(rules)
    arrival_ms, generation, lowest = layout.head.unpack_from(packed)
    newest_first = layout.batch.iter_unpack(memoryview(packed)[layout.head.size :])
    batches = tuple(map(Appended._make, newest_first))[::-1]
    return ProducerState(generation, batches[-1].last, lowest, batches, arrival_ms)


def arrival_of(packed: Packed) -> int:
    """Return when the last batch arrived, in ms since 1970."""
    (arrival_ms,) = _ARRIVAL.unpack_from(packed)
    return int(arrival_ms)


def offset_of(rules: Rules, packed: Packed) -> int:
    """Return the offset of the last batch's first record."""
    (offset,) = (_NARROW_OFFSET if rules.wraps else _WIDE_OFFSET).unpack_from(packed)
    return int(offset)


def is_newer(rules: Rules, packed: Packed, other: Packed) -> bool:
    """Whether a state follows another one of the same producer: by generation, then by H.

    Where numbers wrap, a state follows if its H is less than half the number space ahead.
    """
    judged = _NARROW_JUDGED if rules.wraps else _WIDE_JUDGED
    generation, high = judged.unpack_from(packed)
    other_generation, other_high = judged.unpack_from(other)
    if generation != other_generation or not rules.wraps:
        return bool((generation, high) > (other_generation, other_high))
    modulus = rules.sequence_max + 1
    return bool(0 < (high - other_high) % modulus < modulus >> 1)


def judge_packed(rules: Rules, packed: Packed, batch: Batch, granted: int = -1) -> Verdict:
    """Judge a batch by a packed state, as `judge` does."""
    generation, first, last, records, _ = batch
    if rules.wraps:
        known, high = _NARROW_JUDGED.unpack_from(packed)
        if (
            first == high + 1
            and last == high + records <= _NARROW_MAX
            and generation == known >= 0 > granted
            and 0 < records <= WRAPPING_SPAN_MAX
            and packed.find(_NARROW_RANGE.pack(first, last)) < 0
        ):
            return ADMIT
    else:
        known, high = _WIDE_JUDGED.unpack_from(packed)
        if (
            first == high + 1
            and last == high + records <= rules.sequence_max
            and generation == known >= granted
            and known >= 0
            and records > 0
            and packed.find(_WIDE_RANGE.pack(first, last)) < 0
        ):
            return ADMIT
    return judge(rules, unpack(rules, packed), batch, granted=granted)


def fold_packed(
    rules: Rules, packed: Packed | None, batch: Batch, offset: int, arrival_ms: int
) -> Packed:
    """Apply a batch that is in the log to a packed state, as `fold` does."""
    generation, first, last, _, crc = batch
    if packed is not None:
        if rules.wraps:
            known, lowest = _NARROW_FOLDED.unpack_from(packed)
            if generation == known:
                if not 0 <= last - lowest < _NARROW_HALF:
                    lowest = keep_low(rules, lowest, last)
                front = NARROW.newest.pack(arrival_ms, known, lowest, first, last, offset, crc)
                return front + packed[_NARROW_HEAD:_NARROW_KEPT]
        else:
            known, lowest = _WIDE_FOLDED.unpack_from(packed)
            if generation == known and first:  # at 0 the producer may start again
                front = WIDE.newest.pack(arrival_ms, known, lowest, first, last, offset, crc)
                return front + packed[_WIDE_HEAD:_WIDE_KEPT]
    state = None if packed is None else unpack(rules, packed)
    return pack(rules, fold(rules, state, batch, offset, arrival_ms))
