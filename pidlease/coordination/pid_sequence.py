"""The coordinator's interface: blocks of PIDs, and all that servers share."""

from typing import Final, NamedTuple, Protocol

from pidlease.coordination.fence_log import FenceLog
from pidlease.coordination.name_bindings import NameBindings
from pidlease.coordination.writer_ids import WriterIds
from pidlease.core.blocks import PidBlock
from pidlease.storage.io_pool import IoPool

#: The file, beside the sequence's, that says which ZooKeeper the PIDs come from.
ZOOKEEPER_MARK: Final = "zookeeper"
#: The file, beside the sequence's, with the id of the topic in Kafka that the PIDs come from.
KAFKA_MARK: Final = "kafka"
#: The one that says that the directory was there before the topic was.
KAFKA_BEGUN_MARK: Final = "kafka-begun"


class SequenceError(Exception):
    """No block can be taken now. Leases continue to the end of the last block; try again."""


class Coordination(NamedTuple):
    """All that servers may share: PID sequence, name bindings, and writers' producer ids.

    Attributes:
        writers: the producer ids of partitions' writers, if Kafka is the log.
        fences: the grants of names, if several servers are active.
        pool: its own threads, so that a slow coordinator does not delay the log; None: use the
            log's.
    """

    sequence: "PidSequence"
    names: NameBindings
    pool: IoPool | None = None
    writers: WriterIds | None = None
    fences: FenceLog | None = None


class PidSequence(Protocol):
    """The one global sequence of PIDs' numbers, taken in blocks.

    Both methods block and run in a thread.

    Attributes:
        shared: whether other servers take blocks as well.
    """

    shared: bool

    def blocks(self, beyond: int = 0) -> list[PidBlock]:
        """Read the recorded blocks, as of this call or later; old ones may be merged.

        Parameters:
            beyond: blocks that end at or before this number may be left out; 0: none is.

        Raises:
            SequenceError: the blocks cannot be read now.
        """

    def take(self, at_least: int = 1) -> PidBlock:
        """Take the next block, recorded durably with its time before this returns.

        Parameters:
            at_least: the block must not begin below this number.

        Raises:
            SequenceError: the block could not be recorded.
        """
