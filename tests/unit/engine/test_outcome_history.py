"""The samples of the last hour: bounded, and without a look at any partition."""

from types import SimpleNamespace
from typing import cast

from pidlease.core.pid import Policy
from pidlease.engine.append_outcome import Status
from pidlease.engine.engine import Engine
from pidlease.engine.outcome_history import (
    SAMPLE_SECONDS,
    SAMPLES_KEPT,
    OutcomeHistory,
    Totals,
    totals_of,
)
from pidlease.engine.topic_counts import TOPICS_MAX, Counts
from pidlease.observability.loop_lag import LoopLag


class Leases(SimpleNamespace):
    """Leases that were counted."""

    def __len__(self) -> int:
        return 7


def engine_of(counts: Counts) -> Engine:
    """An engine that has counts and leases, and nothing else to look at."""
    leases = Leases(granted=5, expired=2)
    return cast(Engine, SimpleNamespace(counts=counts, leases=leases))


def test_totals_of_all_topics() -> None:
    counts = Counts()
    for number in range(TOPICS_MAX + 50):
        of_topic = counts.of(f"t{number}")
        of_topic.records += 2
        of_topic.batches += 1
        of_topic.bytes += 10
        of_topic.count(Policy.STRICT, Status.GAP)
        of_topic.count(None, Status.MALFORMED)
    counts.of("t0").count(Policy.KAFKA, Status.DUPLICATE)
    counts.of("t0").count(Policy.KAFKA, Status.FENCED)
    counts.of("t0").count(Policy.KAFKA, Status.FAILED)
    assert totals_of(engine_of(counts)) == Totals(
        records=500, batches=250, bytes=2500, duplicates=1, gaps=250, fenced=1, failed=1,
        refused=250, leased=5, ended=2,
    )  # fmt: skip


def test_an_hour_is_kept() -> None:
    assert SAMPLE_SECONDS * SAMPLES_KEPT == 3600
    counts = Counts()
    history = OutcomeHistory(lambda: engine_of(counts))
    for n in range(3 * SAMPLES_KEPT):
        counts.of("t").records += n
        history.sample(n)
    assert len(history.samples) == SAMPLES_KEPT
    first, last = history.samples[0], history.samples[-1]
    assert (last.at_ms, last.counts.records, last.leases) == (3 * SAMPLES_KEPT - 1,) * 2 + (7,)
    assert first.at_ms == 2 * SAMPLES_KEPT


def test_nothing_is_sampled_before_there_is_an_engine() -> None:
    history = OutcomeHistory(lambda: None)
    history.sample(1)
    assert not history.samples


def test_a_sample_has_the_longest_lag_since_the_last_one() -> None:
    lag = LoopLag(1)
    counts = Counts()
    history = OutcomeHistory(lambda: engine_of(counts), lag)
    for at_ms, late in ((1, 9.0), (2, 0.5), (3, 0.0)):
        lag.observe(late)
        history.sample(at_ms)
    assert [each.lag_seconds for each in history.samples] == [0.5, 0.0]
    assert lag.longest == 9.0


async def test_it_samples_until_it_is_stopped() -> None:
    counts = Counts()
    history = OutcomeHistory(lambda: engine_of(counts))
    await history.stop()
    history.start()
    await history.stop()
    assert not history.samples, "the first sample only begins the counts"
