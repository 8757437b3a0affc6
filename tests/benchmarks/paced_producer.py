"""The child process of `load.LoadProcess` for a pace: librdkafka, and how long deliveries took.

As `producer`, but records are sent evenly, and of some it is measured how long it took from
produce() to the delivery report.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.benchmarks.producer import FLUSH_TIMEOUT_S, POOL_RECORDS, Sender, main

#: How long to wait for reports before it is looked again which records are due.
_TICK_S = 0.001
#: A callback in Python for each record would measure Python. No divisor of what falls due in a
#: tick, so that the samples stand at all its places.
_TIMED_EVERY = 19


def due(elapsed_s: float, per_second: int, count: int) -> int:
    """How many of `count` records should have been sent by now; the first is at once."""
    return min(count, int(elapsed_s * per_second) + 1)


class PacedSender(Sender):
    """The producer with its payloads, and the times of one burst."""

    def __init__(self, start: dict[str, Any]) -> None:
        self._per_second: int = start["per_second"]
        self._delivered_ms: list[float] = []
        super().__init__(start)

    def _reports(self) -> dict[str, Any]:
        """Of records that bring a callback only; the log's own end tells of the others."""
        return {}

    def _timed(self, work: Callable[[int], int], count: int) -> dict[str, Any]:
        self._delivered_ms = []
        return {**super()._timed(work, count), "delivered_ms": self._delivered_ms}

    def _send(self, count: int) -> int:
        """Each record when it is due, or as soon after it as this process comes to it."""
        sent, began_s = 0, time.perf_counter()
        while sent < count:
            until = due(time.perf_counter() - began_s, self._per_second, count)
            for n in range(sent, until):
                self._produce(n)
            sent = until
            self._producer.poll(_TICK_S)
        return self._producer.flush(FLUSH_TIMEOUT_S)

    def _produce(self, n: int) -> None:
        value = self._payloads[n % POOL_RECORDS]
        timed: dict[str, Any] = {}
        if n % _TIMED_EVERY == 0:
            timed["on_delivery"] = partial(self._delivered, time.perf_counter())
        while True:
            try:
                self._producer.produce(self._topic, value, partition=0, **timed)
                break
            except BufferError:  # the server is behind by librdkafka's whole queue
                self._producer.poll(_TICK_S)

    def _delivered(self, began_s: float, error: Any, message: Any) -> None:
        self._delivered_ms.append((time.perf_counter() - began_s) * 1000)
        self._on_delivery(error, message)


if __name__ == "__main__":
    main(PacedSender)
