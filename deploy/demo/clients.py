"""The two clients, librdkafka and aiokafka, with default settings except timeouts and backoffs."""

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from deploy.demo.ledger import Ledger
from deploy.demo.rows import Record
from tests.crash import clients

#: Far longer than the server is ever down: no delivery may time out.
_DELIVERY_MS: Final = 300_000
#: The longest pause before librdkafka connects again; its default grows to ten seconds.
_RECONNECT_MS: Final = 500
#: Often, and out of step with the bursts: some of its reports must fall into one.
_REPORT_MS: Final = 7
#: An older report of librdkafka no longer describes the present.
_FRESH_S: Final = 0.003
_TICK_S: Final = 0.1
#: The time kept for each crash to come: a crash without records in flight proves nothing.
_CRASH_S: Final = 10.0
_LOG: Final = logging.getLogger("librdkafka")
_LOG.propagate = False  # a client that loses its server complains at length

Bursts = Iterator[tuple[float, list[Record]]]


def log_into(path: Path) -> None:
    """Write the clients' logs into a file."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    for each in (_LOG, logging.getLogger("aiokafka"), logging.getLogger("pidlease")):
        each.handlers[:] = [handler]
        each.setLevel(logging.INFO)
        each.propagate = False


class Pace:
    """Spreads the rows over the remaining time.

    On a slow machine, where crashes and restarts take longer than planned, the remaining rows are
    sent more slowly, so that some are left for each crash.

    Parameters:
        seconds: how long sending lasts.
        crashes_left: returns how many crashes are still to come.
    """

    def __init__(self, seconds: float, crashes_left: Callable[[], int] = lambda: 0) -> None:
        self._end = time.monotonic() + seconds
        self._crashes_left = crashes_left

    def share(self, left: int) -> int:
        """Return how many of the remaining rows to send in this tick."""
        seconds = max(self._end - time.monotonic(), self._crashes_left() * _CRASH_S, _TICK_S)
        return min(left, max(1, round(left * _TICK_S / seconds)))

    def bursts(self, records: list[Record]) -> Bursts:
        """Yield bursts of records, as applications send them, each with the time it is due."""
        position, due = 0, time.monotonic()
        while position < len(records):
            burst = records[position : position + self.share(len(records) - position)]
            position += len(burst)
            # After a burst that waited for room, the next one does not come earlier.
            due = max(due, time.monotonic()) + _TICK_S
            yield due, burst


def _given(ledger: Ledger, bursts: Bursts) -> clients.Bursts:
    for due, burst in bursts:
        yield due, (ledger.give(record) for record in burst)


class LibrdkafkaClient(clients.LibrdkafkaClient[Ledger]):
    """confluent-kafka's Producer."""

    def __init__(self, bootstrap: str, bursts: Bursts) -> None:
        ledger = Ledger("librdkafka")
        self._in_flight = 0
        self._reported = 0.0
        settings = {
            "client.id": "demo-librdkafka",
            "delivery.timeout.ms": _DELIVERY_MS,
            "reconnect.backoff.max.ms": _RECONNECT_MS,
            "statistics.interval.ms": _REPORT_MS,
            "stats_cb": self._on_statistics,
            "logger": _LOG,
        }
        super().__init__(ledger, _given(ledger, bursts), bootstrap, settings)

    def batches_in_flight(self) -> int:
        """Count the partitions that have batches in flight: a lower bound."""
        return self._in_flight if time.monotonic() - self._reported < _FRESH_S else 0

    def _on_statistics(self, text: str) -> None:
        report: dict[str, Any] = json.loads(text)
        self._in_flight = sum(
            partition["msgs_inflight"] > 0
            for topic in report["topics"].values()
            for partition in topic["partitions"].values()
        )
        self._reported = time.monotonic()


class AiokafkaClient(clients.AiokafkaClient[Ledger]):
    """aiokafka's AIOKafkaProducer.

    With idempotence it never gives up a batch that has a leader; `request_timeout_ms` also limits
    how long `send` may wait for room while the server is down, so it is large.
    """

    def __init__(self, bootstrap: str, bursts: Bursts) -> None:
        ledger = Ledger("aiokafka")
        settings = {"client_id": "demo-aiokafka", "request_timeout_ms": _DELIVERY_MS}
        super().__init__(ledger, _given(ledger, bursts), bootstrap, **settings)

    def batches_in_flight(self) -> int:
        """Count the partitions that have a batch in a request without a response.

        aiokafka has no statistics; its sender keeps the set of these partitions, one batch each.
        """
        return len(self.producer._sender._muted_partitions) if self.producer else 0


Client = LibrdkafkaClient | AiokafkaClient
