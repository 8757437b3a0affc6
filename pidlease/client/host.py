"""What the parts of a producer see of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task
    from collections.abc import Coroutine, Mapping

    from pidlease.client.batch import Futures
    from pidlease.client.errors import ProducerError
    from pidlease.client.memory import Memory
    from pidlease.client.metrics import ProducerMetrics
    from pidlease.client.partition import PartitionQueue
    from pidlease.client.settings import Settings


class LinkHost(Protocol):
    """What connections are made for."""

    @property
    def settings(self) -> Settings:
        """What it was told."""

    @property
    def metrics(self) -> ProducerMetrics:
        """Its counters."""

    def wake(self, partition: PartitionQueue) -> None:
        """A partition may have something to send now."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> Task[None]:
        """Do something beside; where it breaks, all is over."""


class SenderSession(Protocol):
    """Under what is sent."""

    @property
    def draining(self) -> bool:
        """Whether nothing new is sent for now."""

    @property
    def alive(self) -> bool:
        """Whether anything may be sent at all."""

    def want(self, partition: PartitionQueue) -> None:
        """A partition has no numbers; it is woken when it has some."""


class Host(LinkHost, Protocol):
    """A producer.

    Attributes:
        unresolved: batches that were sent at least once and have no answer for good.
    """

    loop: AbstractEventLoop
    unresolved: int

    @property
    def memory(self) -> Memory:
        """What all its partitions share."""

    @property
    def partitions(self) -> Mapping[tuple[str, int], PartitionQueue]:
        """Those that were written to."""

    def began(self, partition: PartitionQueue) -> None:
        """A batch was begun."""

    def filled(self, partition: PartitionQueue) -> None:
        """A batch is full."""

    def resolved(self, partition: PartitionQueue) -> None:
        """Something that was sent has its answer for good, or is given up."""

    def failed(self, error: ProducerError, futures: Futures) -> None:
        """Records failed.

        Parameters:
            error: why,
            futures: and their futures, those left out that were cancelled.
        """

    def backoff(self, failures: int) -> float:
        """How many seconds to wait after so many failures in a row."""

    def end(self, sent: ProducerError, unsent: ProducerError) -> None:
        """The session is over: fail what was sent, and what never was."""

    def refuse(self, error: ProducerError) -> None:
        """Take no more records."""
