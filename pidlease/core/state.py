"""The state of a producer on one partition, and the fold that derives it from the log.

A state is immutable: a fold returns a new one. So a snapshot of a partition is a copy of a
dictionary, and the acknowledged state stays as it is while batches in flight are folded further.
"""

from typing import Final, NamedTuple

from pidlease.core.rules import Rules, Start

#: How many batches a producer may have in flight and still get its offset back on a retry
#: (KIP-98; max.in.flight.requests.per.connection of an idempotent Kafka producer is at most 5).
BATCHES_KEPT: Final = 5
#: Stands for an unknown CRC: the log holds the batch as a part of another one, or has rewritten it.
UNKNOWN_CRC: Final = 0xFFFFFFFF
#: From this bit on, a CRC has the batch's codec instead; UNKNOWN_CRC has the bits of no codec.
CRC_CODEC_FROM: Final = 29


class Batch(NamedTuple):
    """The identity of a batch that a listener submits.

    Attributes:
        generation: the producer's fence number.
        first: sequence of its first record.
        last: sequence of its last record; smaller than `first` where the numbers wrap.
        records: how many records are in it.
        crc: of its bytes and its codec, to notice other content under the same numbers (`differ`);
            or UNKNOWN_CRC.
    """

    generation: int
    first: int
    last: int
    records: int
    crc: int = 0


def differ(one: int, other: int) -> bool:
    """Return whether the CRCs of two batches show that their contents differ.

    Kafka may compress a batch anew with another codec; then they show nothing.
    """
    return one != other and not (one ^ other) >> CRC_CODEC_FROM


class Appended(NamedTuple):
    """One of the last batches of a producer, with the offset of its first record in the log."""

    first: int
    last: int
    offset: int
    crc: int


class ProducerState(NamedTuple):
    """The state of a producer on one partition.

    Attributes:
        generation: the highest generation seen.
        high: H, the last sequence number applied.
        lowest: the lowest sequence number admitted; if a higher generation restarts the numbers,
            the lowest one of this generation.
        batches: the last five batches, oldest first.
        arrival_ms: when the last batch arrived, in ms since 1970 by this proxy's clock.
    """

    generation: int
    high: int
    lowest: int
    batches: tuple[Appended, ...]
    arrival_ms: int


def next_sequence(rules: Rules, high: int) -> int:
    """Return the sequence number after `high`: H + 1, or 0 after Kafka's 2^31 - 1."""
    return 0 if rules.wraps and high == rules.sequence_max else high + 1


def last_sequence(rules: Rules, first: int, count: int) -> int:
    """Return the last of `count` sequence numbers from `first`, wrapped where the policy wraps."""
    last = first + count - 1
    return last % (rules.sequence_max + 1) if rules.wraps else last


def span(rules: Rules, batch: Batch) -> int:
    """Return how many sequence numbers a batch covers; below 1 if its range runs backwards."""
    distance = batch.last - batch.first
    return (distance % (rules.sequence_max + 1) if rules.wraps else distance) + 1


def fold(
    rules: Rules, state: ProducerState | None, batch: Batch, offset: int, arrival_ms: int
) -> ProducerState:
    """Apply a batch that is in the log. Never judges: the log is the truth.

    The generation is the highest seen, and within it the last batch wins; a batch of a lower
    generation changes nothing. A forgotten producer of policy epoch may start at 0 again within its
    generation, and the log shows that: then the batches kept so far are dropped, because the
    producer's next requests do not repeat them.

    Parameters:
        rules: the policy's row.
        state: the state so far; None: this is the producer's first batch on the partition.
        batch: the batch's identity.
        offset: the offset of the batch's first record.
        arrival_ms: when the batch arrived, in ms since 1970.
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
    """Return the low mark of numbers that wrap, for a new H.

    The low mark moves up when it is half the number space below H, where it has no meaning.
    """
    modulus = rules.sequence_max + 1
    half = modulus >> 1
    if 0 <= high - lowest < half:
        return lowest
    behind = (high + 1 - lowest) % modulus
    return lowest if 0 < behind <= half else (high + 1 - half) % modulus
