"""The verdict on a batch: pure, one place, for all listeners.

The order of the rules matters and is the design's. Each was tried against the model of the
protocol; the comments name the trace that a simpler rule loses to.
"""

import enum
from typing import Final, NamedTuple

from pidlease.core.rules import Rules, Start
from pidlease.core.state import UNKNOWN_CRC, Batch, ProducerState, next_sequence, span


@enum.unique
class Kind(enum.Enum):
    """What to do with a batch."""

    ADMIT = "admit"
    DUPLICATE = "duplicate"
    GAP = "gap"
    OVERLAP = "overlap"
    FENCED = "fenced"
    MALFORMED = "malformed"
    UNKNOWN = "unknown"


@enum.unique
class Age(enum.Enum):
    """How old the block is that a PID came from, by the durable record of blocks.

    YOUNG: younger than the lease length. Nothing of it can have expired, so a producer of which
    nothing is known never wrote. OLD: its state may have expired. NEVER: no block was ever
    recorded that holds it; it was never leased here.
    """

    YOUNG = "young"
    OLD = "old"
    NEVER = "never issued"


class Verdict(NamedTuple):
    """The answer of `judge`.

    Attributes:
        kind: what to do.
        offset: of a duplicate among the last five batches; -1 where it is not known (any more).
        expected: the sequence that would be admitted (gap and overlap); -1 otherwise.
        generation: the stored generation (fenced and malformed); -1 otherwise.
        differs: a duplicate by its numbers with other bytes (logged and counted).
        reason: for malformed, what was wrong.
    """

    kind: Kind
    offset: int = -1
    expected: int = -1
    generation: int = -1
    differs: bool = False
    reason: str = ""


#: The longest batch where numbers wrap. No real one comes near; but five of half the number
#: space would wrap around into themselves, and one would look like a step back.
WRAPPING_SPAN_MAX: Final = 2**28

ADMIT: Final = Verdict(Kind.ADMIT)
UNKNOWN: Final = Verdict(Kind.UNKNOWN)
_DUPLICATE: Final = Verdict(Kind.DUPLICATE)
_GAP_TO_ZERO: Final = Verdict(Kind.GAP, expected=0)


def judge(
    rules: Rules,
    state: ProducerState | None,
    batch: Batch,
    age: Age = Age.OLD,
    granted: int = -1,
) -> Verdict:
    """Decide on a batch of a producer with an id.

    Parameters:
        rules: the row of the PID's policy.
        state: what is known of the producer on this partition, in flight included.
        batch: the batch's identity.
        age: how old the PID's block is; looked at only where nothing is known of the producer.
        granted: for a named producer, the last generation that was granted to its name.

    Returns:
        The first rule that matches, in the order of the design's section on judging.
    """
    reason = malformed(rules, batch)
    if reason:
        return Verdict(Kind.MALFORMED, reason=reason)
    # The binding before anything else: a zombie of a name that never wrote here would otherwise
    # be let in as the first ever seen, and its successor's record would pass for a duplicate.
    if batch.generation < granted:
        return Verdict(Kind.FENCED, generation=granted)
    if 0 <= granted < batch.generation:
        # It was not granted: let in, it would fence the producer that was granted the last.
        reason = f"generation {batch.generation} was not granted; the last one was {granted}"
        return Verdict(Kind.MALFORMED, generation=granted, reason=reason)
    if state is None:
        return _judge_first(rules, batch, age)
    if batch.generation == state.generation:
        return _judge_numbers(rules, state, batch)
    if batch.generation < state.generation:
        return Verdict(Kind.FENCED, generation=state.generation)
    if rules.restarts:
        return ADMIT if batch.first == 0 else _GAP_TO_ZERO
    if batch.generation == state.generation + 1 or batch.generation == granted:
        # The generation is part of what the CRC is made of: it says nothing of the content here.
        return _judge_numbers(rules, state, batch)._replace(differs=False)
    return Verdict(
        Kind.MALFORMED,
        generation=state.generation,
        reason=f"generation {batch.generation} is more than one above {state.generation}"
        " and was not granted",
    )


def malformed(rules: Rules, batch: Batch) -> str:
    """What is wrong with a batch's numbers by themselves; empty where nothing is."""
    generation, first, last, records, _ = batch
    if not 0 <= generation <= rules.generation_max:
        return f"generation {generation} is outside 0..{rules.generation_max}"
    if not (0 <= first <= rules.sequence_max and 0 <= last <= rules.sequence_max):
        return f"sequences {first}..{last} are not within 0..{rules.sequence_max}"
    if records < 1:
        return f"a batch of {records} records"
    numbers = span(rules, batch)
    if rules.wraps and numbers > WRAPPING_SPAN_MAX:
        return f"sequences {first}..{last} are more than {WRAPPING_SPAN_MAX}, or run backwards"
    if records == numbers or (rules.ranges and records < numbers):
        return ""
    return f"{records} records do not fit sequences {first}..{last}"


def _judge_first(rules: Rules, batch: Batch, age: Age) -> Verdict:
    # Kafka accepts any first batch. Where batch 1 failed and batch 2 came through, it then
    # refuses batch 1 for ever. A young block is proof that the producer never wrote here.
    start = rules.start_young if age is Age.YOUNG else rules.start_old
    if age is Age.NEVER and rules.start_old is not Start.AT_ZERO:
        return UNKNOWN
    if start is Start.ANYWHERE:
        return ADMIT
    if start is Start.NOWHERE:
        return UNKNOWN
    return ADMIT if batch.first == 0 else _GAP_TO_ZERO


def _judge_numbers(rules: Rules, state: ProducerState, batch: Batch) -> Verdict:
    _, first, last, _, crc = batch
    expected = next_sequence(rules, state.high)
    for appended in state.batches:
        if appended.first == first and appended.last == last:
            differs = crc not in (appended.crc, UNKNOWN_CRC) and appended.crc != UNKNOWN_CRC
            return Verdict(Kind.DUPLICATE, offset=appended.offset, differs=differs)
    if first == expected:
        return ADMIT
    if not _is_behind(rules, first, expected):
        return ADMIT if rules.holes else Verdict(Kind.GAP, expected=expected)
    if not _is_behind(rules, last, expected):
        return Verdict(Kind.OVERLAP, expected=expected)
    if rules.low_mark and _is_behind(rules, first, state.lowest):
        return Verdict(Kind.GAP, expected=expected)
    return _DUPLICATE


def _is_behind(rules: Rules, sequence: int, mark: int) -> bool:
    """Whether a sequence lies below a mark; with wrapping numbers, in the half space below it."""
    if not rules.wraps:
        return sequence < mark
    modulus = rules.sequence_max + 1
    return (sequence - mark) % modulus >= modulus >> 1
