"""The `pidlease` record header."""

from contextlib import suppress
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from pidlease.kafka.records.identity_header import (
    HEADER_KEY,
    Identity,
    IdentityError,
    decode_identity,
    encode_identity,
    identity_header,
)
from pidlease.kafka.records.record_batch import HEADER_BYTES

_NUMBERS = st.integers(0, 2**63 - 1)
_NAMES = st.text(min_size=1, max_size=60)
IDENTITY = Identity(1 << 48 | 7, "", 3, 10, 19)


def records(
    value: bytes | None, headers: list[tuple[str, bytes | None]], key: bytes | None = None
) -> bytes:
    """The records of a batch, as another library writes them."""
    builder: Any = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    builder.append(0, 1000, key, value, headers)
    builder.append(1, 1000, b"another", b"record", [("pidlease", b"not this")])
    return bytes(builder.build())[HEADER_BYTES:]


@given(_NUMBERS, _NUMBERS, _NUMBERS, st.one_of(_NAMES, _NUMBERS))
def test_what_is_written_is_read(generation: int, a: int, b: int, who: str | int) -> None:
    pid, name = (-1, who) if isinstance(who, str) else (who, "")
    identity = Identity(pid, name, generation, min(a, b), max(a, b))
    assert decode_identity(encode_identity(identity)) == identity


@given(st.binary(max_size=60))
def test_anything_else_is_refused(value: bytes) -> None:
    with suppress(IdentityError):
        assert encode_identity(decode_identity(value)) == value


@pytest.mark.parametrize(
    "identity",
    [
        IDENTITY._replace(first=2**63),
        IDENTITY._replace(pid=2**63),
        IDENTITY._replace(pid=-1, name="x" * 257),
        IDENTITY._replace(pid=-1, name="\u20ac" * 86),
    ],
)
def test_what_does_not_fit_is_not_written(identity: Identity) -> None:
    with pytest.raises(ValueError, match=r"."):
        encode_identity(identity)


@pytest.mark.parametrize(
    ("at", "byte", "text"),
    [(0, 3, "version 3"), (1, 3, "kind 3"), (2, 0x80, "generation -"), (10, 0x80, "sequences -")],
)
def test_each_part_is_looked_at(at: int, byte: int, text: str) -> None:
    value = bytearray(encode_identity(IDENTITY))
    value[at] = byte
    with pytest.raises(IdentityError, match=text):
        decode_identity(bytes(value))


def test_a_range_that_runs_backwards() -> None:
    with pytest.raises(IdentityError, match=r"20\.\.19"):
        decode_identity(encode_identity(IDENTITY._replace(first=20)))


# ---------------------------------------------------------------------- the first record


@given(
    st.none() | st.binary(max_size=300),
    st.none() | st.binary(max_size=300),
    st.lists(st.tuples(_NAMES, st.none() | st.binary(max_size=40)), max_size=4),
    st.integers(0, 4),
)
def test_it_is_found_wherever_it_stands(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], place: int
) -> None:
    others = [each for each in headers if each[0] != HEADER_KEY.decode()]
    mine = (HEADER_KEY.decode(), b"it")
    assert identity_header(records(value, [*others[:place], mine, *others[place:]], key)) == b"it"
    assert identity_header(records(value, others, key)) is None


def test_one_without_a_value() -> None:
    with pytest.raises(IdentityError, match="without a value"):
        identity_header(records(b"x", [("pidlease", None)]))


@given(st.integers(0, 200))
def test_a_beginning_that_is_too_short(size: int) -> None:
    whole = records(b"x" * 100, [("a", b"b"), ("pidlease", b"it")], b"key")
    try:
        found = identity_header(whole[:size])
    except IdentityError:
        assert size < len(whole)
    else:
        assert found == b"it"


@given(st.binary(max_size=60))
def test_bytes_that_are_no_record(data: bytes) -> None:
    with suppress(IdentityError):
        assert identity_header(data) is None or HEADER_KEY in data
