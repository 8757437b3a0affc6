"""The records in the journal of committed offsets, and their lines.

A request that changes something writes one record, as one line:

    {"group":"g","kind":"commit","synced":512,"topics":[["t","9f",[[0,42,-1,"",1700]]]]} 8d2f3a11

A line ends with a CRC-32C of its JSON. The first line of each write has in `synced` how many bytes
of the file were durable by then. So a torn last write can be distinguished from damage.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pidlease.storage import checked_lines

#: The offset does not expire at a time of its own.
NEVER_MS: Final = -1


class OffsetsFullError(Exception):
    """The server's limit of committed offsets is reached."""


class OffsetsFailedError(Exception):
    """The record was not stored; it may be tried again."""


class CommittedOffset(NamedTuple):
    """A group's committed offset of one partition.

    Attributes:
        offset: the next record to read.
        leader_epoch: of the last record read; -1: the client did not give it.
        metadata: the client's text.
        commit_ms: when it was committed, in ms since 1970.
        expire_ms: when it expires, if the client asked for that (OffsetCommit 2 to 4); else -1.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = 0
    expire_ms: int = NEVER_MS


class TopicOffsets(NamedTuple):
    """A topic's part of a commit.

    Attributes:
        topic_id: as hex; a later topic of the same name has another.
        partitions: partition number -> committed offset.
    """

    topic: str
    topic_id: str
    partitions: Mapping[int, CommittedOffset]


@dataclass(frozen=True, slots=True)
class Commit:
    """Offsets that a group committed in one request."""

    group: str
    topics: tuple[TopicOffsets, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """Offsets of a group that were deleted or expired. Topic name -> partitions."""

    group: str
    topics: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class GroupNote:
    """A group's state, stored with its offsets.

    Attributes:
        protocol_type: "consumer" for consumers; None: the group never had members.
        generation: the last generation.
        empty_ms: since when the group has no members, in ms since 1970; -1: it has some.
    """

    group: str
    protocol_type: str | None
    generation: int
    empty_ms: int


@dataclass(frozen=True, slots=True)
class RemoveGroup:
    """The removal of a group with all its offsets."""

    group: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Says only that all lines before it are durable."""


Record = Commit | Forget | GroupNote | RemoveGroup | Mark


class Line(NamedTuple):
    """The content of an intact line.

    Attributes:
        synced: how many bytes of the file were durable at the write; 0: not given.
    """

    record: Record
    synced: int


def encode_line(record: Record, synced: int = 0) -> bytes:
    """Return a record's line, with its newline.

    Parameters:
        synced: how many bytes of the file are durable; 0: leave it out.
    """
    fields = _fields(record)
    if synced:
        fields["synced"] = synced
    return checked_lines.encode_line(fields, ensure_ascii=False)


def parse_line(line: bytes) -> Line | None:
    """Parse a line without its newline; None: the line is damaged.

    Raises:
        ValueError: the line is intact, but its kind or form is unknown to this version.
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
