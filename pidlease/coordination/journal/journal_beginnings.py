"""Where the logs of a Kafka cluster begin to have batches of leased PIDs, in a journal.

    begin/<topic id>   {"topic": ..., "offsets": [0, 17, ...], "epochs": [0, 3, ...], "at_ms": ...}

The first server of a cluster puts the ends of all partitions, before it leases the first PID. So a
server without a snapshot reads the logs from there, and not all that retention has left.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pidlease.coordination.journal.journal import Journal, Row

_KIND: Final = "begin"
#: Offsets in one batch of rows. Each takes up to thirty bytes, with its epoch.
_OFFSETS_AT_ONCE: Final = 15_000
#: Topics in one batch of rows.
_TOPICS_AT_ONCE: Final = 2_000


class Beginning(NamedTuple):
    """Where a topic's partitions begin to have batches of leased PIDs.

    Attributes:
        topic: the topic's name, stored for the operator.
        offsets: by partition number.
        epochs: the leader epochs then, by partition number: whether the log still goes so far.
        at_ms: when this was found, in ms since 1970; no PID had been leased before.
    """

    topic: str
    offsets: Sequence[int]
    epochs: Sequence[int]
    at_ms: int


class JournalBeginnings:
    """The beginnings in a journal. The methods block, and run in threads."""

    def __init__(self, journal: Journal) -> None:
        self._journal: Final = journal

    def load(self) -> dict[str, Beginning]:
        """Return all beginnings, by topic id.

        Raises:
            JournalError: they cannot be read now.
        """
        self._journal.refresh()
        return {
            topic_id: Beginning(*(fields[name] for name in Beginning._fields))
            for topic_id, fields in self._journal.all(_KIND).items()
        }

    def put(self, beginnings: Mapping[str, Beginning]) -> None:
        """Put beginnings, durably before this returns.

        Parameters:
            beginnings: by topic id.

        Raises:
            JournalError: some of them may not have been put. Then logs are read from their start.
        """
        rows: list[Row] = []
        offsets = 0
        for topic_id, beginning in beginnings.items():
            is_full = offsets + len(beginning.offsets) > _OFFSETS_AT_ONCE
            if is_full or len(rows) >= _TOPICS_AT_ONCE:
                self._journal.put(rows)
                rows, offsets = [], 0
            rows.append(Row(_KIND, topic_id, beginning._asdict()))
            offsets += len(beginning.offsets)
        self._journal.put(rows)
