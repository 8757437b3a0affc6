"""What is known of a producer on one partition, and the fold that makes it from the log.

A state is immutable: a fold returns a new one. So a snapshot of a partition is a copy of a
dictionary, and what the log has acknowledged stays as it is while judging looks further ahead.
"""

from typing import Final, NamedTuple

from pidlease.core.rules import Rules, Start

#: How many batches a producer may have in flight and still get its offset back on a retry
#: (KIP-98; max.in.flight.requests.per.connection of an idempotent Kafka producer is at most 5).
BATCHES_KEPT: Final = 5
#: In the place of a CRC: it was another batch's in the log, so nothing can be said.
UNKNOWN_CRC: Final = 0xFFFFFFFF


class Batch(NamedTuple):
    """The identity of a batch, as a listener brings it.

    Attributes:
        generation: the producer's fence number.
        first: sequence of its first record.
        last: sequence of its last record; smaller than `first` where the numbers wrap.
        records: how many records are in it.
        crc: CRC-32C of its bytes, to notice other content under the same numbers; UNKNOWN_CRC.
    """

    generation: int
    first: int
    last: int
    records: int
    crc: int = 0


class Appended(NamedTuple):
    """One of the last batches of a producer, with the offset of its first record in the log."""

    first: int
    last: int
    offset: int
    crc: int


class ProducerState(NamedTuple):
    """A producer on one partition.

    Attributes:
        generation: the highest seen.
        high: H, the last sequence applied.
        lowest: the lowest sequence admitted; where a higher generation restarts the numbers,
            in this generation.
        batches: the last five, oldest first.
        arrival_ms: when the last one arrived, in ms since 1970 by this proxy's clock.
    """

    generation: int
    high: int
    lowest: int
    batches: tuple[Appended, ...]
    arrival_ms: int


def next_sequence(rules: Rules, high: int) -> int:
    """The sequence that follows `high`: H + 1, or 0 after Kafka's 2^31 - 1."""
    return 0 if rules.wraps and high == rules.sequence_max else high + 1


def last_sequence(rules: Rules, first: int, count: int) -> int:
    """The last sequence of `count` dense records from `first`, wrapped where the policy wraps."""
    last = first + count - 1
    return last % (rules.sequence_max + 1) if rules.wraps else last


def span(rules: Rules, batch: Batch) -> int:
    """How many sequence numbers a batch covers; below 1 where its range runs backwards."""
    distance = batch.last - batch.first
    return (distance % (rules.sequence_max + 1) if rules.wraps else distance) + 1


def fold(
    rules: Rules, state: ProducerState | None, batch: Batch, offset: int, arrival_ms: int
) -> ProducerState:
    """Apply a batch that stands in the log. Never judges: the log is the truth.

    The generation is the highest seen, and within it the last batch wins; a batch of a lower
    generation changes nothing. Where a forgotten producer begins at 0 again within its generation
    (policy epoch), that is in the log: what was kept is not what the producer goes on from,
    and its next requests are no duplicates of the ones before.

    Parameters:
        rules: the policy's row.
        state: what is known so far; None for the producer's first batch on the partition.
        batch: the batch's identity.
        offset: the offset of its first record.
        arrival_ms: when it arrived, in ms since 1970.
    """
    appended = Appended(batch.first, batch.last, offset, batch.crc)
    if state is None or (rules.restarts and batch.generation > state.generation):
        return ProducerState(batch.generation, batch.last, batch.first, (appended,), arrival_ms)
    if batch.generation < state.generation:
        return state
    kept = state.batches
    if batch.first == 0 and rules.start_old is Start.AT_ZERO:
        return ProducerState(batch.generation, batch.last, 0, (appended,), arrival_ms)
    if len(kept) >= BATCHES_KEPT:
        kept = kept[1 - BATCHES_KEPT :]
    lowest = keep_low(rules, state.lowest, batch.last) if rules.wraps else state.lowest
    return ProducerState(batch.generation, batch.last, lowest, (*kept, appended), arrival_ms)


def keep_low(rules: Rules, lowest: int, high: int) -> int:
    """The low mark of numbers that wrap, when H has moved on.

    It moves up once it is half the number space below, where it has no meaning.
    """
    modulus = rules.sequence_max + 1
    half = modulus >> 1
    if 0 <= high - lowest < half:
        return lowest
    behind = (high + 1 - lowest) % modulus
    return lowest if 0 < behind <= half else (high + 1 - half) % modulus
