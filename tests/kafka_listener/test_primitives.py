"""The hand-written parsing against kio's: round trips, and bytes that are nothing."""

import io
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import readers, writers

from pidlease.kafka.codec.fetch import read_fetch_request
from pidlease.kafka.codec.primitives import (
    ELEMENTS_MAX,
    MalformedError,
    Reader,
    RequestHeader,
    compact_length,
    read_request_header,
    write_array,
    write_string,
)
from tests.kafka_listener.bodies import plain, read_fetch_both_ways
from tests.kafka_listener.messages import FETCH, PRODUCE, encode_request
from tests.property.profile import SCALE, examples

_ROOT: Final = Path(__file__).resolve().parents[2]

_READERS: Final[Any] = readers
_WRITERS: Final[Any] = writers
_text = st.one_of(st.none(), st.text(max_size=300))


def _written(write: Callable[[io.BytesIO, Any], None], value: object) -> bytes:
    stream = io.BytesIO()
    write(stream, value)
    return stream.getvalue()


@given(_text)
def test_strings(text: str | None) -> None:
    compact = write_string(text, flexible=True)
    plain = write_string(text, flexible=False)

    assert compact == _written(_WRITERS.write_nullable_compact_string, text)
    assert plain == _written(_WRITERS.write_nullable_legacy_string, text)
    assert _READERS.read_compact_string_nullable(compact, 0) == (text, len(compact))
    for data, flexible in ((compact, True), (plain, False)):
        reader = Reader(bytearray(data), 0, flexible=flexible)
        assert reader.string() == text
        reader.end()


@given(st.integers(-1, 2**31 - 2))
def test_lengths(length: int) -> None:
    assert compact_length(length) == _written(_WRITERS.write_unsigned_varint, length + 1)
    assert write_array(length, flexible=True) == compact_length(length)
    assert write_array(length, flexible=False) == _written(_WRITERS.write_int32, length)
    reader = Reader(bytearray(compact_length(length)), 0, flexible=True)
    assert reader.uvarint() == length + 1


@given(st.one_of(st.none(), st.binary(max_size=500)))
def test_bytes(data: bytes | None) -> None:
    plain = _written(_WRITERS.write_nullable_legacy_bytes, data)
    compact = compact_length(-1 if data is None else len(data)) + (data or b"")
    assert _READERS.read_compact_string_as_bytes_nullable(compact, 0) == (data, len(compact))
    for encoded, flexible in ((plain, False), (compact, True)):
        reader = Reader(bytearray(encoded), 0, flexible=flexible)
        view = reader.data()
        assert (None if view is None else bytes(view)) == data
        reader.end()


@given(st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1))
def test_numbers(small: int, large: int) -> None:
    data = _written(_WRITERS.write_int16, small) + _written(_WRITERS.write_int32, large)
    reader = Reader(bytearray(data), 0, flexible=False)
    assert (reader.int16(), reader.int32()) == (small, large)
    reader.end()


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=200)), max_size=5))
def test_tags_are_skipped(tags: list[tuple[int, bytes]]) -> None:
    data = _written(_WRITERS.write_unsigned_varint, len(tags))
    for number, content in tags:
        data += _written(_WRITERS.write_unsigned_varint, number)
        data += _written(_WRITERS.write_unsigned_varint, len(content)) + content
    reader = Reader(bytearray(data), 0, flexible=True)
    reader.tags()
    reader.end()


@pytest.mark.parametrize(("structs", "each"), [(1, 101), (1000, 100)])
def test_tags_are_bounded(structs: int, each: int) -> None:
    """Once a request of 100 MB of them kept the event loop busy for a minute."""
    tags = _written(_WRITERS.write_unsigned_varint, each) + b"\x01\x00" * each
    reader = Reader(bytearray(tags * structs), 0, flexible=True)
    for _ in range(min(structs, ELEMENTS_MAX // each) - (structs == 1)):
        reader.tags()
    with pytest.raises(MalformedError, match="tagged fields"):
        reader.tags()


@given(
    st.integers(0, 22), st.sampled_from([3, 9, 12]), st.integers(-(2**31), 2**31 - 1), _text
)  # fmt: skip
def test_request_headers(key: int, version: int, correlation_id: int, client: str | None) -> None:
    frame = bytearray(encode_request(PRODUCE, version, {}, correlation_id, client))
    frame[0:2] = key.to_bytes(2, "big")
    header = read_request_header(frame)
    assert header[:4] == (key, version, correlation_id, client or "")
    reader = Reader(frame, header.body, flexible=version >= 9)
    reader.tags()
    assert (reader.string(), reader.int16()) == (None, 0)


_OPERATIONS: Final[tuple[Callable[[Reader], object], ...]] = (
    Reader.int16, Reader.int32, Reader.uvarint, Reader.string, Reader.data, Reader.array,
    Reader.tags,
)  # fmt: skip


@examples(300)
@given(st.binary(max_size=60), st.booleans(), st.lists(st.sampled_from(_OPERATIONS), max_size=12))
def test_any_bytes_are_read_or_malformed(
    data: bytes, flexible: bool, operations: list[Callable[[Reader], object]]
) -> None:
    reader = Reader(bytearray(data), 0, flexible=flexible)
    try:
        for operation in operations:
            operation(reader)
            assert reader.at <= len(data)
    except MalformedError:
        pass


def test_any_body_is_read_or_malformed() -> None:
    """Nothing but MalformedError may come out, least of all the end of the process."""
    seed = random.SystemRandom().randrange(2**32)
    command = [sys.executable, "-m", "tests.kafka_listener.bodies", str(seed), str(3000 * SCALE)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0, f"seed {seed}, last body {last}: {done.stderr[-2000:]}"


@pytest.mark.parametrize("version", range(4, 12))
def test_a_fetch_of_every_version_is_read_as_kio_reads_it(version: int) -> None:
    body = bytearray(plain(FETCH, version))
    read_fetch_both_ways(RequestHeader(FETCH, version, 1, "", 0), body)
    for size in range(len(body)):
        with pytest.raises(MalformedError):
            read_fetch_request(body[:size], 0, version)
    with pytest.raises(MalformedError):
        read_fetch_request(body + b"\0", 0, version)
