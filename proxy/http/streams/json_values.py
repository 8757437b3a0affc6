"""The JSON mode of streams: a body is one value, or an array of values; each becomes a record."""

import json
from typing import Final

_BLANKS: Final = " \t\n\r"


class JsonValuesError(ValueError):
    """The text is not JSON, or an array without values."""


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# Numbers are not converted: only where a value ends is of interest.
_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant, parse_int=str, parse_float=str)


def json_values(body: bytes | bytearray) -> list[bytes]:
    """Return the values of a body, each as it is written: those of its array, or the one.

    Only one level of an array is flattened. An empty array has no values.

    Raises:
        JsonValuesError: the body is no JSON.
    """
    try:
        text = body.decode()
        begin = _after_blanks(text, 0)
        if text[begin : begin + 1] == "[":
            spans, end = _elements(text, begin + 1)
        else:
            _, end = _DECODER.raw_decode(text, begin)
            spans = [(begin, end)]
    except JsonValuesError:
        raise
    except ValueError as error:
        raise JsonValuesError(f"the body is no JSON: {str(error)[:200]}") from None
    except RecursionError:
        raise JsonValuesError("the body's JSON has too many levels; some 900 are read") from None
    if _after_blanks(text, end) != len(text):
        raise JsonValuesError("the body goes on after its JSON value")
    return [text[first:last].encode() for first, last in spans]


def _elements(text: str, at: int) -> tuple[list[tuple[int, int]], int]:
    """Return where the values of an array begin and end, and where the array ends."""
    spans: list[tuple[int, int]] = []
    at = _after_blanks(text, at)
    if text[at : at + 1] == "]":
        return spans, at + 1
    while True:
        _, end = _DECODER.raw_decode(text, at)
        spans.append((at, end))
        at = _after_blanks(text, end)
        mark = text[at : at + 1]
        if mark == "]":
            return spans, at + 1
        if mark != ",":
            raise JsonValuesError("an array's values are separated by commas")
        at = _after_blanks(text, at + 1)


def _after_blanks(text: str, at: int) -> int:
    end = len(text)
    while at < end and text[at] in _BLANKS:
        at += 1
    return at


def as_json(value: bytes | None) -> bytes:
    """Return a value that a Kafka client wrote, or a string of it if it is not JSON."""
    if value is None:
        return b"null"
    try:
        text = value.decode()
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return json.dumps(value.decode(errors="replace"), ensure_ascii=False).encode()
    return value
