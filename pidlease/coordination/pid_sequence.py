"""What the engine asks of a coordinator."""

from typing import Final, NamedTuple, Protocol

from pidlease.coordination.name_bindings import NameBindings
from pidlease.coordination.writer_ids import WriterIds
from pidlease.core.blocks import PidBlock
from pidlease.storage.io_pool import IoPool

#: The file beside that of the sequence which says that PIDs come from ZooKeeper, and which it is.
ZOOKEEPER_MARK: Final = "zookeeper"


class SequenceError(Exception):
    """No block could be taken now. Leases go on to the end of the last one; try again."""


class Coordination(NamedTuple):
    """All that servers may share: the PID sequence, and the bindings of names.

    Attributes:
        writers: the producer ids of partitions' writers, where Kafka is the log.
        pool: threads of its own, for who waits for a coordinator is not to hold up the log; None:
            those of the log will do.
    """

    sequence: "PidSequence"
    names: NameBindings
    pool: IoPool | None = None
    writers: WriterIds | None = None


class PidSequence(Protocol):
    """The one global sequence of producer numbers, handed out in blocks.

    Both methods block, and are called in a thread.

    Attributes:
        shared: whether other servers take blocks as well.
    """

    shared: bool

    def blocks(self, beyond: int = 0) -> list[PidBlock]:
        """Read the blocks on record, as of when this is called or later.

        They are merged where they are older than anybody asks for.

        Parameters:
            beyond: blocks that end at or before this number may be left out; 0: none is.

        Raises:
            SequenceError: they cannot be read now.
        """

    def take(self, at_least: int = 1) -> PidBlock:
        """Take the next block: durably on record, with its time, before this returns.

        Parameters:
            at_least: the block must not begin below this number.

        Raises:
            SequenceError: it could not be recorded.
        """
