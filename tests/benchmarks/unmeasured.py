"""`python -m tests.benchmarks.unmeasured serve ...`: a server in which nothing is measured.

What the measuring of each request costs is the difference between it and the real one.
"""

from pidlease.observability.histogram import Histogram
from proxy.__main__ import cli
from proxy.kafka.client_connection import Slot
from proxy.kafka.listener_counts import ListenerCounts


def _nothing(*_: object) -> None:
    """In the place of what measures."""


def _know(slot: Slot, counts: ListenerCounts, api_key: int) -> None:
    """In the place of `Slot.measure`. Without counts, no request would go by a template."""
    slot.counts = counts
    slot.api_key = api_key


def main() -> None:
    """Serve."""
    for kind, method, other in ((Slot, "measure", _know), (Histogram, "observe", _nothing)):
        assert callable(getattr(kind, method))
        setattr(kind, method, other)
    cli()


if __name__ == "__main__":
    main()
