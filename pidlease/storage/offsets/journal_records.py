"""What stands in the journal of committed offsets, and its lines.

One line for each record, a record for each request that changed something:

    {"group":"g","kind":"commit","synced":512,"topics":[["t","9f",[[0,42,-1,"",1700]]]]} 8d2f3a11

with a CRC-32C of the JSON after it. The first line of each write says in `synced` how much of the
file was durable by then: so a last write that a power cut tore differs from damage.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pidlease.storage import checked_lines

#: No time limit of its own.
NEVER_MS: Final = -1


class OffsetsFullError(Exception):
    """There would be more offsets than the server is set to hold."""


class OffsetsFailedError(Exception):
    """Nothing of it was stored; it may be tried again."""


class CommittedOffset(NamedTuple):
    """What a group committed for a partition.

    Attributes:
        offset: of the next record to read.
        leader_epoch: of the last record read; -1 where the client did not say.
        metadata: the client's own.
        commit_ms: when it came, in ms since 1970.
        expire_ms: when it leaves, where the client asked for that (OffsetCommit 2 to 4); else -1.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = 0
    expire_ms: int = NEVER_MS


class TopicOffsets(NamedTuple):
    """A topic's part of a commit.

    Attributes:
        topic: its name.
        topic_id: distinguishes it from a later topic of that name, as hex.
        partitions: what was committed for each.
    """

    topic: str
    topic_id: str
    partitions: Mapping[int, CommittedOffset]


@dataclass(frozen=True, slots=True)
class Commit:
    """Offsets that a group committed together."""

    group: str
    topics: tuple[TopicOffsets, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """Offsets that left a group: deleted, or expired. Topic name -> partitions."""

    group: str
    topics: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class GroupNote:
    """What is to be remembered of a group beside its offsets.

    Attributes:
        group: its id.
        protocol_type: "consumer" for consumers; None: it never had members.
        generation: the last one.
        empty_ms: since when it has no members, in ms since 1970; -1: it has some.
    """

    group: str
    protocol_type: str | None
    generation: int
    empty_ms: int


@dataclass(frozen=True, slots=True)
class RemoveGroup:
    """A group that was removed, with all its offsets."""

    group: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Nothing but the word that all before it is durable."""


Record = Commit | Forget | GroupNote | RemoveGroup | Mark


class Line(NamedTuple):
    """A line that is intact.

    Attributes:
        record: what it says.
        synced: how many bytes of the file were durable when it was written; 0: it does not say.
    """

    record: Record
    synced: int


def encode_line(record: Record, synced: int = 0) -> bytes:
    """A record as a line, with its newline.

    Parameters:
        record: what to write.
        synced: how many bytes of the file are durable; 0: not said.
    """
    fields = _fields(record)
    if synced:
        fields["synced"] = synced
    return checked_lines.encode_line(fields, ensure_ascii=False)


def parse_line(line: bytes) -> Line | None:
    """Read a line, without its newline; None where it is not intact.

    Raises:
        ValueError: it is intact, and of a kind that is not known here.
    """
    fields = checked_lines.decode_line(line)
    if fields is None:
        return None
    try:
        return Line(_record(fields), fields.get("synced", 0))
    except (KeyError, TypeError) as error:
        raise ValueError(f"a record of another form ({error!r})") from error


def _fields(record: Record) -> dict[str, Any]:
    if isinstance(record, Commit):
        topics = [
            [name, topic_id, [_offset_row(*each) for each in partitions.items()]]
            for name, topic_id, partitions in record.topics
        ]
        return {"kind": "commit", "group": record.group, "topics": topics}
    if isinstance(record, Forget):
        return {"kind": "forget", "group": record.group, "topics": record.topics}
    if isinstance(record, GroupNote):
        return {
            "kind": "group",
            "group": record.group,
            "protocol_type": record.protocol_type,
            "generation": record.generation,
            "empty_ms": record.empty_ms,
        }
    if isinstance(record, RemoveGroup):
        return {"kind": "remove", "group": record.group}
    return {"kind": "mark"}


def _offset_row(partition: int, committed: CommittedOffset) -> list[Any]:
    offset, leader_epoch, metadata, commit_ms, expire_ms = committed
    row = [partition, offset, leader_epoch, metadata, commit_ms]
    return row if expire_ms == NEVER_MS else [*row, expire_ms]


def _record(fields: dict[str, Any]) -> Record:
    kind = fields["kind"]
    if kind == "commit":
        topics = tuple(
            TopicOffsets(name, topic_id, {row[0]: CommittedOffset(*row[1:]) for row in rows})
            for name, topic_id, rows in fields["topics"]
        )
        return Commit(fields["group"], topics)
    if kind == "forget":
        return Forget(fields["group"], tuple((name, tuple(ns)) for name, ns in fields["topics"]))
    if kind == "group":
        return GroupNote(
            fields["group"], fields["protocol_type"], fields["generation"], fields["empty_ms"]
        )
    if kind == "remove":
        return RemoveGroup(fields["group"])
    if kind == "mark":
        return Mark()
    raise ValueError(f"a record of kind {kind!r}, which only a newer version knows")
