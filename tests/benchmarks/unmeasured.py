"""`python -m tests.benchmarks.unmeasured serve ...`: a server in which nothing is measured.

What the measuring of each request costs is the difference between it and the real one.
"""

from pidlease.observability.histogram import Histogram
from proxy.__main__ import cli
from proxy.kafka.client_connection import Slot


def _nothing(*_: object) -> None:
    """In the place of what measures. A slot that is told of no counts counts nothing, either."""


def main() -> None:
    """Serve."""
    for kind, method in ((Slot, "measure"), (Histogram, "observe")):
        assert callable(getattr(kind, method))
        setattr(kind, method, _nothing)
    cli()


if __name__ == "__main__":
    main()
