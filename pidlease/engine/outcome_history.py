"""The last hour of a server in samples: appended records, refusals, leases and event-loop lag."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from pidlease.engine.append_outcome import Status
from pidlease.engine.engine import Engine, wall_clock_ms
from pidlease.observability.loop_lag import LoopLag

#: The time between two samples.
SAMPLE_SECONDS: Final = 10.0
#: Samples of an hour.
SAMPLES_KEPT: Final = 360


class Totals(NamedTuple):
    """Counters since the start.

    Attributes:
        records: acknowledged, without duplicates.
        batches: acknowledged, without duplicates.
        bytes: of these batches.
        duplicates: batches that were stored already.
        gaps: batches refused because an earlier one is missing.
        fenced: batches of an older generation, or of a former PID.
        failed: batches that the log did not, or perhaps not, store; retriable.
        refused: batches with any other error.
        leased: leases of fresh PIDs.
        ended: leases that have ended.
    """

    records: int = 0
    batches: int = 0
    bytes: int = 0
    duplicates: int = 0
    gaps: int = 0
    fenced: int = 0
    failed: int = 0
    refused: int = 0
    leased: int = 0
    ended: int = 0


class Sample(NamedTuple):
    """What happened between two moments.

    Attributes:
        at_ms: the later moment, in ms since 1970.
        counts: the growth of each counter.
        leases: leases at that moment.
        lag_seconds: the longest lag of the event loop in between.
    """

    at_ms: int
    counts: Totals
    leases: int
    lag_seconds: float


_FIELD_OF: Final = {
    Status.DUPLICATE: "duplicates",
    Status.GAP: "gaps",
    Status.FENCED: "fenced",
    Status.FAILED: "failed",
}


def totals_of(engine: Engine) -> Totals:
    """Add up the counters of all topics; topics beyond a limit share theirs, so it is short."""
    outcomes = dict.fromkeys(("duplicates", "gaps", "fenced", "failed", "refused"), 0)
    records = batches = size = 0
    for _, counts in engine.counts.topics():
        records += counts.records
        batches += counts.batches
        size += counts.bytes
        for (_, status), number in counts.verdicts.items():
            outcomes[_FIELD_OF.get(status, "refused")] += number
    leases = engine.leases
    return Totals(records, batches, size, leased=leases.granted, ended=leases.expired, **outcomes)


class OutcomeHistory:
    """Samples the counters of an engine periodically, between start and stop.

    Parameters:
        engine: returns the engine; None while there is none yet: then nothing is sampled.
        lag: measures the lag of the event loop.
        kept: how many samples are kept; the oldest are dropped.

    Attributes:
        samples: the samples, oldest first.
    """

    def __init__(
        self,
        engine: Callable[[], Engine | None],
        lag: LoopLag | None = None,
        kept: int = SAMPLES_KEPT,
    ) -> None:
        self.samples: Final[deque[Sample]] = deque(maxlen=kept)
        self._engine: Final = engine
        self._lag: Final = lag
        self._before: Totals | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to sample."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop sampling."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def sample(self, now_ms: int) -> None:
        """Take a sample; the first one only begins the counts.

        Parameters:
            now_ms: the time, in ms since 1970.
        """
        engine = self._engine()
        if engine is None:
            return
        totals, before = totals_of(engine), self._before
        self._before = totals
        lag_seconds = 0.0 if self._lag is None else self._lag.take_longest()
        if before is not None:
            growth = Totals(*(now - then for now, then in zip(totals, before, strict=True)))
            self.samples.append(Sample(now_ms, growth, len(engine.leases), lag_seconds))

    async def _run(self) -> None:
        while True:
            self.sample(wall_clock_ms())
            await asyncio.sleep(SAMPLE_SECONDS)
