"""Kafka's answers, as they are read in front of it: what kio writes, and what nobody means."""

import asyncio
from io import BytesIO
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.serial import entity_writer

from pidlease.kafka.api import (
    API_API_VERSIONS,
    API_DELETE_RECORDS,
    API_DESCRIBE_PRODUCERS,
    API_FETCH,
    API_METADATA,
    API_PRODUCE,
    SENT_VERSIONS,
)
from pidlease.kafka.codec.messages import Request
from pidlease.kafka.errors import UpstreamNonsenseError
from proxy.kafka.forwarded.split_requests import COORDINATED, LISTED
from proxy.kafka.forwarded.topic_changes import TOPIC_CHANGES
from tests.crash.seeds import new_random
from tests.kafka_listener.messages import build
from tests.kafka_listener.test_entities import _values
from tests.property.profile import examples


def _versions(key: int) -> list[int]:
    found = []
    for version in range(20):
        try:
            load_response_schema(key, version)
        except Exception:  # noqa: BLE001 - kio has no one error for what it does not have
            continue
        found.append(version)
    assert found, key
    return found


#: The APIs whose responses are read here; Produce and Fetch have codecs of their own.
_READ: Final = {
    *SENT_VERSIONS, *COORDINATED, *LISTED, *TOPIC_CHANGES, API_DELETE_RECORDS,
    API_DESCRIBE_PRODUCERS,
} - {API_PRODUCE, API_FETCH}  # fmt: skip
_EACH: Final = [(key, version) for key in sorted(_READ) for version in _versions(key)]


@pytest.mark.parametrize(("key", "version"), _EACH)
def test_it_reads_what_kio_writes(key: int, version: int) -> None:
    kind: Any = load_response_schema(key, version)
    request = Request(key, version)

    @examples(10)
    @given(_values(kind))
    def check(values: dict[str, Any]) -> None:
        entity = build(kind, values)
        stream = BytesIO()
        stream.write(bytes(4))
        if kind.__flexible__ and key != API_API_VERSIONS:
            stream.write(b"\0")
        entity_writer(kind)(stream, entity)
        frame = bytearray(stream.getvalue())
        assert request.decode(frame) == entity
        assert asyncio.run(request.decode_slowly(frame)) == entity
        with pytest.raises(UpstreamNonsenseError, match="1 bytes too many"):
            request.decode(frame + b"\0")

    check()


@pytest.mark.parametrize(("key", "version"), _EACH)
def test_noise_is_refused(key: int, version: int) -> None:
    """Lengths of gigabytes in some bytes: kio's own reader ends the process for less."""
    random = new_random(f"noise {key} {version}")
    request = Request(key, version)
    for size in (0, 1, 3, 20, 100, 1000):
        for _ in range(30):
            frame = bytearray(4) + _noise(random, size)
            try:
                request.decode(frame)
            except UpstreamNonsenseError:
                continue
            # Some answers are little more than an error's number: those may mean something.


def _noise(random: Random, size: int) -> bytes:
    """Bytes that are often a large number."""
    return bytes(random.choice((0, 0x7F, 0xFF, random.randrange(256))) for _ in range(size))


def test_a_length_of_gigabytes_is_refused() -> None:
    """Of Metadata version 4: throttle time, and two thousand million brokers."""
    frame = bytearray(4) + bytes(4) + (2**31 - 1).to_bytes(4, "big") + bytes(100)
    with pytest.raises(UpstreamNonsenseError, match="a length of 2147483647 where the message"):
        Request(API_METADATA, 4).decode(frame)


@given(st.binary(max_size=60))
def test_any_bytes_are_an_answer_or_none(data: bytes) -> None:
    for key in (API_METADATA, API_API_VERSIONS):
        try:
            Request(key, _versions(key)[-1]).decode(bytearray(4) + data)
        except UpstreamNonsenseError:
            continue
