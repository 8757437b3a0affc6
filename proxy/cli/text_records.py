"""Records as lines: plain text with a key, or JSON as the HTTP listener has it."""

import json
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field, ValidationError

from pidlease.http_api.record_messages import NewRecord, content_in_json
from pidlease.kafka.records.identity_header import HEADER_KEY

_RESERVED: Final = HEADER_KEY.decode()
Headers = Sequence[tuple[str, bytes | None]]


class RecordLine(NewRecord):
    """A record in a line of JSON; what `consume --json` prints, `produce --json` reads."""

    partition: Annotated[int | None, Field(ge=0, description="left out: by the key")] = None
    offset: Annotated[int | None, Field(description="printed, and ignored when read")] = None

    @property
    def header_pairs(self) -> list[tuple[str, bytes | None]]:
        """The headers as a producer takes them."""
        return [(each.key, each.value) for each in self.headers]


def read_json(line: bytes) -> RecordLine:
    """Read a record from a line of JSON.

    Raises:
        ValueError: it is invalid; the message names the field.
    """
    try:
        return RecordLine.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}" if where else str(first["msg"])) from None


def read_text(line: bytes, separator: bytes | None) -> RecordLine:
    """Read a record from a line of text: a value, after a key if there is a separator.

    Raises:
        ValueError: the line has no separator.
    """
    if separator is None:
        return RecordLine(value=line)
    key, found, value = line.partition(separator)
    if not found:
        raise ValueError("has no key: the separator is missing")
    return RecordLine(key=key, value=value)


def user_headers(headers: Headers) -> Headers:
    """Return a record's headers without the one in which pidlease names the producer."""
    return [each for each in headers if each[0] != _RESERVED]


def json_line(
    partition: int,
    offset: int,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
) -> bytes:
    """Return a record as a line of JSON."""
    found = {
        "partition": partition,
        "offset": offset,
        "timestamp_ms": timestamp_ms,
        "key": content_in_json(key),
        "value": content_in_json(value),
        "headers": [
            {"key": name, "value": content_in_json(text)} for name, text in user_headers(headers)
        ],
    }
    return json.dumps(found, ensure_ascii=False).encode() + b"\n"


def text_line(
    key: bytes | None, value: bytes | None, headers: Headers | None, separator: bytes | None
) -> bytes:
    """Return a record as a line of text; a missing key or value is empty.

    Parameters:
        headers: printed in front, with a tab; None: not printed.
        separator: printed after the key; None: the key is not printed.
    """
    parts = []
    if headers is not None:
        pairs = (name.encode() + b"=" + (text or b"") for name, text in user_headers(headers))
        parts += [b",".join(pairs), b"\t"]
    if separator is not None:
        parts += [key or b"", separator]
    return b"".join([*parts, value or b"", b"\n"])
