"""The idempotency keys of appends in flight: a second request with one of them is refused."""

from collections.abc import Iterable
from typing import Final

from pidlease.core.producer_names import ProducerNames
from pidlease.engine.append_outcome import Done, Outcome
from pidlease.engine.partition import Partition


class KeyInFlightError(Exception):
    """A request with the same key is in flight; its outcome is not known yet. Try again."""


class KeysInFlight:
    """The keys of appends in flight, each with its partitions.

    Parameters:
        names: the producer ids of keys, with their stand-in PIDs.
    """

    def __init__(self, names: ProducerNames) -> None:
        self._names: Final = names
        self._partitions: dict[str, list[Partition]] = {}

    def partition_of(self, name: str, partitions: Iterable[Partition]) -> Partition | None:
        """Return the partition of a topic that a key was sent to; None: it is new to the topic.

        Parameters:
            name: the producer id of the key.
            partitions: those of the topic.
        """
        pid = self._names.find(name)
        if pid is None:
            return None
        in_flight = self._partitions.get(name, ())
        return next((p for p in partitions if p in in_flight or pid in p.producers), None)

    def begin(self, name: str, partition: Partition, done: Done) -> Done:
        """Note that an append with a key begins.

        Parameters:
            name: the producer id of the key.
            partition: the partition that it is sent to.
            done: gets the outcome.

        Returns:
            What gets the outcome instead.

        Raises:
            KeyInFlightError: another append with the key to this partition is in flight.
        """
        partitions = self._partitions.setdefault(name, [])
        if partition in partitions:
            raise KeyInFlightError(
                "a request with the same key is in flight; send this one again after it"
            )
        partitions.append(partition)

        def ended(outcome: Outcome) -> None:
            partitions.remove(partition)
            if not partitions:
                del self._partitions[name]
            done(outcome)

        return ended
