"""The verdict on a batch. A pure function, the same for all listeners and both backends.

The order of the rules matters. Each was tried against a model of the protocol; the comments name
the sequence of events in which a simpler rule fails.
"""

import enum
from typing import Final, NamedTuple

from pidlease.core.rules import Rules, Start
from pidlease.core.state import Batch, ProducerState, differ, next_sequence, span


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
    """The age of the block that a PID was leased from, by the durable record of blocks.

    YOUNG: younger than the lease length. No state can have expired, so a producer without state
    never wrote. OLD: the state may have expired. NEVER: no recorded block contains the PID; it was
    never leased here.
    """

    YOUNG = "young"
    OLD = "old"
    NEVER = "never issued"


class Verdict(NamedTuple):
    """The result of `judge`.

    Attributes:
        kind: what to do.
        offset: of the original, if it is among the producer's last five batches; otherwise -1.
        expected: for a gap or an overlap, the sequence number that would be admitted; otherwise -1.
        generation: for fenced and malformed batches, the stored generation; otherwise -1.
        differs: a duplicate by its sequence numbers, with other bytes.
        reason: why the batch is malformed.
    """

    kind: Kind
    offset: int = -1
    expected: int = -1
    generation: int = -1
    differs: bool = False
    reason: str = ""


#: The most sequence numbers of a batch if they wrap. Real batches are much shorter; but five
#: batches of half the number space would overlap, and one would look older than its predecessor.
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
    """Validate a batch of a producer that has a PID.

    Parameters:
        rules: the rules of the PID's policy.
        state: the producer's state on this partition, batches in flight included; None: no state.
        batch: the batch's generation, sequence numbers, record count and CRC.
        age: the age of the PID's block; matters only without state.
        granted: for a named producer, the generation last granted to its name; otherwise -1.

    Returns:
        The verdict of the first rule that matches.
    """
    reason = malformed(rules, batch)
    if reason:
        return Verdict(Kind.MALFORMED, reason=reason)
    # Compare with the name's generation first: otherwise a zombie of a name that never wrote here
    # would be admitted as a new producer, and its successor's batch rejected as a duplicate.
    if batch.generation < granted:
        return Verdict(Kind.FENCED, generation=granted)
    if 0 <= granted < batch.generation:
        # Not granted: if admitted, it would fence the producer with the granted generation.
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
        # The CRC covers the generation too, so a different CRC does not mean different records.
        return _judge_numbers(rules, state, batch)._replace(differs=False)
    return Verdict(
        Kind.MALFORMED,
        generation=state.generation,
        reason=f"generation {batch.generation} is more than one above {state.generation}"
        " and was not granted",
    )


def judge_older(rules: Rules, state: ProducerState, batch: Batch, granted: int = -1) -> Verdict:
    """Validate a batch by a state after which the producer may have appended more.

    That part of the log was removed before it was applied. What the state has is a duplicate; but
    it shows no gap: as without state, the producer may go on anywhere after it.
    """
    verdict = judge(rules, state, batch, granted=granted)
    skips = verdict.kind is Kind.MALFORMED and granted < 0 <= verdict.generation
    if skips:  # more than one generation
        verdict = _judge_numbers(rules, state, batch)._replace(differs=False)
    if verdict.kind is not Kind.GAP:
        return verdict
    restarted = rules.restarts and batch.generation > state.generation
    return ADMIT if restarted or not _is_behind(rules, batch.first, verdict.expected) else verdict


def malformed(rules: Rules, batch: Batch) -> str:
    """Return what is wrong with a batch's numbers by themselves; empty: nothing."""
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
    # Kafka accepts any first batch. If batch 1 failed and batch 2 was appended, Kafka then rejects
    # batch 1 for ever. A young block proves that the producer never wrote here.
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
            differs = differ(crc, appended.crc)
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
    """Whether a sequence number is below a mark; if they wrap, in the half space below the mark."""
    if not rules.wraps:
        return sequence < mark
    modulus = rules.sequence_max + 1
    return (sequence - mark) % modulus >= modulus >> 1
