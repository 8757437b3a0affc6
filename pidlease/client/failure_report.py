"""Failed records: those that the application has not seen, and log lines about all."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from pidlease.client.errors import FencedError, OutcomeUnknownError, ProducerError, copy_of
from pidlease.client.pending_batch import Sent

_log = logging.getLogger(__name__)

#: After so many turns of the event loop, a task that waits for a future (through `wait_for` or
#: `shield`) has seen it.
_TURNS: Final = 4
#: After one of these errors a caller must not send the record again; after the others it may.
_GRAVEST: Final = (OutcomeUnknownError, FencedError)


class _Future(Protocol):
    def exception(self) -> BaseException | None:
        """Return why it failed, and mark it as seen."""


_F = TypeVar("_F", bound=_Future)


class _SentFuture(_Future, Protocol):
    def result(self) -> Sent:
        """Return the record's place in the log."""


def results_of(futures: Sequence[_SentFuture]) -> list[Sent]:
    """Return the results of futures, or raise the gravest of their errors.

    The futures are done, or their `exception` waits.
    """
    errors = [error for each in futures if (error := each.exception()) is not None]
    if not errors:
        return [each.result() for each in futures]
    error = next(
        (each for kind in _GRAVEST for each in errors if isinstance(each, kind)), errors[0]
    )
    raised = copy_of(error) if isinstance(error, ProducerError) else error
    raised.add_note(f"failed records: {len(errors)} of {len(futures)}")
    raise raised


class UnseenFailures(Generic[_F]):
    """Failed futures, until the application sees them or `take` reports them.

    Parameters:
        seen: whether the application has asked a failed future for its outcome.
        limit: how many futures are kept; of older ones only their number and the first error.
    """

    __slots__ = ("_first", "_forgotten", "_futures", "_limit", "_prune_at", "_seen")

    def __init__(self, seen: Callable[[_F], bool], limit: int) -> None:
        self._seen: Final = seen
        self._limit: Final = limit
        self._prune_at = limit
        self._futures: list[_F] = []
        self._forgotten: Counter[type[BaseException]] = Counter()
        self._first: dict[type[BaseException], BaseException] = {}

    def add(self, futures: Sequence[_F]) -> None:
        """Add futures that have just failed."""
        self._futures += futures
        if len(self._futures) > self._prune_at:
            self._futures = [each for each in self._futures if not self._seen(each)]
            self._forget(max(len(self._futures) - self._limit, 0))
            # At least `limit` futures come between two passes: the cost per future is constant.
            self._prune_at = len(self._futures) + self._limit

    async def settle(self) -> None:
        """Let tasks and callbacks see the futures that have just failed."""
        await asyncio.sleep(0)
        for _ in range(_TURNS if self._futures else 0):
            await asyncio.sleep(0)

    def take(self) -> BaseException | None:
        """Return one error for all failures that the application has not seen; None: it has all.

        Each failure is reported once.
        """
        self._forget(len(self._futures))
        if not self._forgotten:
            return None
        kind = next((each for each in _GRAVEST if each in self._forgotten), next(iter(self._first)))
        first = self._first[kind]
        error = copy_of(first) if isinstance(first, ProducerError) else first
        kinds = ", ".join(f"{count} {each.__name__}" for each, count in self._forgotten.items())
        error.add_note(f"failed records, without a look at their futures: {kinds}")
        self._forgotten.clear()
        self._first.clear()
        return error

    def _forget(self, count: int) -> None:
        for future in self._futures[:count]:
            if not self._seen(future) and (error := future.exception()) is not None:
                self._forgotten[type(error)] += 1
                self._first.setdefault(type(error), error)
        del self._futures[:count]


class FailureLog:
    """Logs failed records: each new class of error at once, then counts at each `write`."""

    __slots__ = ("_counts", "_known", "_texts")

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._texts: dict[str, str] = {}
        self._known: set[str] = set()

    def add(self, error: Exception, records: int) -> None:
        """Count failed records; must be called in the event loop."""
        kind = type(error).__name__
        self._counts[kind] += records
        self._texts.setdefault(kind, str(error))
        if kind not in self._known:
            self._known.add(kind)
            # The end of a session fails many batches, all in this turn of the loop.
            asyncio.get_running_loop().call_soon(self.write)

    def write(self) -> None:
        """Log the counts since the last `write`."""
        for kind, count in self._counts.items():
            _log.warning("records failed: %d; %s: %s", count, kind, self._texts[kind])
        self._counts.clear()
        self._texts.clear()
