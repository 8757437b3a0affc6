"""The settings that make a topic of one partition a stream, and what else a stream remembers."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple

#: The content type; a topic with it is a stream.
STREAM_TYPE: Final = "pidlease.stream.type"
#: The seconds after the last read or append until the stream expires.
STREAM_TTL: Final = "pidlease.stream.ttl"
#: When the stream expires, as RFC 3339 has it.
STREAM_EXPIRES: Final = "pidlease.stream.expires"
#: 1: the stream is complete when its partition has a record.
STREAM_INITIAL: Final = "pidlease.stream.initial"
#: The topic of the stream that this one is forked from.
STREAM_SOURCE: Final = "pidlease.stream.source"
#: The id of that topic: a later one of its name has another.
STREAM_SOURCE_ID: Final = "pidlease.stream.source-id"
#: The fork: the offset of its first own record, and the offset and the sub-offset that its request
#: had, separated by blanks; `-` stands for none.
STREAM_FORK: Final = "pidlease.stream.fork"
#: 1: the stream is deleted, and kept because of its forks.
STREAM_DELETED: Final = "pidlease.stream.deleted"

#: All of them, with their meanings.
STREAM_SETTINGS: Final[Mapping[str, str]] = {
    STREAM_TYPE: "The content type; it makes a topic of one partition a stream.",
    STREAM_TTL: "A stream expires so many seconds after it was last read or appended to.",
    STREAM_EXPIRES: "When a stream expires (RFC 3339).",
    STREAM_INITIAL: "1: a stream exists when it has its first record.",
    STREAM_SOURCE: "The topic of the stream that a stream is forked from.",
    STREAM_SOURCE_ID: "The id of that topic.",
    STREAM_FORK: "The offset of a fork's first own record, and where its request asked for it.",
    STREAM_DELETED: "1: a stream is deleted, and kept because of its forks.",
}

#: Those that clients cannot change: they give a stream the records of another topic, or keep its
#: own for other streams. Requests to streams set them, which need the rights to both topics.
OF_FORKS: Final = (STREAM_SOURCE, STREAM_SOURCE_ID, STREAM_FORK, STREAM_DELETED)

#: Those by which the server deletes a stream, sooner or later.
DELETES: Final = (STREAM_TTL, STREAM_EXPIRES, STREAM_INITIAL)

_TYPE: Final = re.compile(r"[!-~]+/[!-~]+(; ?[ !-~]+)?")
_TTL: Final = re.compile(r"0|[1-9][0-9]{0,14}")
_FORK: Final = re.compile(r"[0-9]{1,19} (-|[0-9_]{1,40}) [0-9]{1,19}")
_TIME: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


class StreamConfig(NamedTuple):
    """The settings of a stream.

    Attributes:
        content_type: as its creator wrote it.
        ttl_seconds: None: no limit.
        expires: as its creator wrote it; empty: never.
        initial: whether it exists only when its partition has a record.
        source: the topic of the stream that it is forked from; empty: it is no fork.
        source_id: that topic's id; empty: the fork was made by a version that did not store it.
        base: the offset of the first record of its partition.
        fork: the offset and the sub-offset of the request, as `STREAM_FORK` has them.
        deleted: whether it is deleted, and kept because of its forks.
    """

    content_type: str
    ttl_seconds: int | None
    expires: str
    initial: bool
    source: str
    source_id: str
    base: int
    fork: str
    deleted: bool

    def inherits_from(self, topic_id: str) -> bool:
        """Whether the topic that has the source's name is the source, by its id."""
        return self.source_id in {"", topic_id}

    @property
    def media_type(self) -> str:
        """The content type without parameters, in lower case."""
        return media_type(self.content_type)

    @property
    def is_json(self) -> bool:
        """Whether each record is a JSON text."""
        return self.media_type == "application/json"


def media_type(content_type: str) -> str:
    """Return a content type without parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def stream_config(own: Mapping[str, str]) -> StreamConfig | None:
    """Return the stream of a topic's own settings, which are valid; None: it is no stream."""
    content_type = own.get(STREAM_TYPE)
    if content_type is None:
        return None
    ttl = own.get(STREAM_TTL)
    base, _, fork = own.get(STREAM_FORK, "0").partition(" ")
    return StreamConfig(
        content_type,
        None if ttl is None else int(ttl),
        own.get(STREAM_EXPIRES, ""),
        STREAM_INITIAL in own,
        own.get(STREAM_SOURCE, ""),
        own.get(STREAM_SOURCE_ID, ""),
        int(base),
        fork,
        STREAM_DELETED in own,
    )


def is_valid(name: str, value: str) -> bool:
    """Whether a value is valid for one of the settings."""
    if name == STREAM_TYPE:
        return _TYPE.fullmatch(value) is not None
    if name == STREAM_TTL:
        return _TTL.fullmatch(value) is not None
    if name == STREAM_EXPIRES:
        return expires_ms(value) is not None
    if name == STREAM_FORK:
        return _FORK.fullmatch(value) is not None
    return value == "1" if name in (STREAM_INITIAL, STREAM_DELETED) else bool(value)


def expires_ms(text: str) -> int | None:
    """Return a time of RFC 3339 in ms since 1970; None: it is invalid."""
    if _TIME.fullmatch(text) is None:
        return None
    fraction = re.search(r"\.\d+", text)
    plain = text.replace(fraction[0], "") if fraction else text
    try:
        at = datetime.fromisoformat(plain.upper().replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
    return int(at * 1000) + (int(float(fraction[0]) * 1000) if fraction else 0)
