"""Finds topics and partitions by name; asks the log for those that this server does not know."""

from collections.abc import Collection, Set

from pidlease.core.topic_partition import TopicPartition
from pidlease.engine.engine import Engine
from pidlease.engine.partition import Partition
from pidlease.engine.topics.topic_table import AwaitedTopicError, UnknownTopicError
from pidlease.storage.topics.topic_store import Topic


class UnknownPartitionError(Exception):
    """The topic has no partition of that number."""


class PartitionLookup:
    """Finds the partitions of one request; asks the log at most once for all of them.

    Parameters:
        named: all partitions that the request names.
    """

    def __init__(self, engine: Engine, named: Collection[TopicPartition]) -> None:
        self._engine = engine
        self._named = named
        #: The named partitions that do not exist; None: the log was not asked yet.
        self._missing: Set[TopicPartition] | None = None

    async def find(self, name: TopicPartition) -> Partition:
        """Find a partition.

        Raises:
            UnknownTopicError: the topic does not exist.
            AwaitedTopicError: the partition cannot be read yet, or it is unknown if it exists.
            UnknownPartitionError: the topic has no such partition.
        """
        engine = self._engine
        if engine.partition(*name) is None:
            if self._missing is None:
                unknown = {each for each in self._named if engine.partition(*each) is None}
                self._missing = await engine.missing(unknown)
            if name not in self._missing and engine.partition(*name) is None:
                raise _awaited(str(name))
        return _partition_of(engine, name)


async def find_partition(engine: Engine, topic: str, number: int) -> Partition:
    """Find one partition.

    Raises:
        UnknownTopicError: the topic does not exist.
        AwaitedTopicError: the partition cannot be read yet, or it is unknown if it exists.
        UnknownPartitionError: the topic has no such partition.
    """
    name = TopicPartition(topic, number)
    return await PartitionLookup(engine, [name]).find(name)


async def find_topic(engine: Engine, name: str) -> Topic:
    """Find a topic; ask the log if this server does not know it.

    Raises:
        UnknownTopicError: the topic does not exist.
        AwaitedTopicError: the topic cannot be read yet, or it is unknown if it exists.
    """
    if name not in engine.topics:
        first = TopicPartition(name, 0)
        if first not in await engine.missing([first]) and name not in engine.topics:
            raise _awaited(name)
    return topic_of(engine, name)


def topic_of(engine: Engine, name: str) -> Topic:
    """Return a topic that this server knows.

    Raises:
        UnknownTopicError: the topic does not exist.
        AwaitedTopicError: the topic cannot be read yet.
    """
    found = engine.topics.get(name)
    if found is not None:
        return found
    if name in engine.awaited:
        raise _awaited(f"topic {name}")
    raise UnknownTopicError(f"there is no topic {name}")


def _partition_of(engine: Engine, name: TopicPartition) -> Partition:
    found = engine.partition(*name)
    if found is not None:
        return found
    known = engine.awaited.get(name.topic)
    if known is None or engine.awaits(*name):
        known = topic_of(engine, name.topic)
    raise UnknownPartitionError(f"topic {name.topic} has partitions 0 to {known.partitions - 1}")


def _awaited(what: str) -> AwaitedTopicError:
    return AwaitedTopicError(f"{what} cannot be read yet; try again")
