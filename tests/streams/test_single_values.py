"""Values of batches of one record are found without the decoder, and are the decoder's."""

import random
import struct
from collections.abc import Callable
from typing import Any, Final

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from crc32c import crc32c

from pidlease.engine.stream_gate import Closing, StreamSend
from pidlease.kafka.records.identity_header import HEADER_KEY, Identity, encode_identity
from pidlease.kafka.records.record_batch import CRC_AT, CRC_FROM, MAGIC
from proxy.http.record_responses import UnreadableError
from proxy.http.streams import stream_pages
from proxy.http.streams.single_values import Leading, leading_values
from tests.crash.seeds import new_random
from tests.kafka_listener.batches import changed

_SIZES: Final = (0, 1, 40, 63, 64, 65, 127, 128, 1000, 8000, 8191, 8192, 8200, 20_000)
_Headers = list[tuple[str, bytes | None]]


def _batch(offset: int, values: list[bytes | None], headers: _Headers, **given: Any) -> bytes:
    key, codec, times = given.get("key"), given.get("codec", 0), given.get("times", (5, 5))
    builder: Any = DefaultRecordBatchBuilder(MAGIC, codec, 0, -1, -1, -1, 1 << 20)
    for number, value in enumerate(values):
        builder.append(number, times[number > 0], key, value, headers if number == 0 else [])
    made = bytearray(builder.build())
    struct.pack_into(">q", made, 0, offset)
    return bytes(made)


def _identity(name: str) -> tuple[str, bytes | None]:
    return HEADER_KEY.decode(), encode_identity(Identity(-1, name, 3, 4, 4))


def _sent(random: random.Random, offset: int) -> bytes:
    """A batch as an append over HTTP makes it."""
    name = random.choice(["", "", "p", "p" * 40, "p" * 256])
    headers = [_identity(name)] if name else []
    return _batch(offset, [bytes(random.choice(_SIZES))], [*headers, *StreamSend().headers()])


def _other(random: random.Random, offset: int) -> bytes:
    """A batch that differs from it in one way or several."""
    size = random.choice(_SIZES)
    stream = StreamSend(random.choice([*Closing]), random.choice([None, b"7"])).headers()
    headers = random.choice([stream, [], [("a", b"b"), *stream], [*stream, ("a", None)],
                             [_identity("p")], [_identity("p"), ("x" * 15, None)]])  # fmt: skip
    value = random.choice([None, b"", b"1", bytes(size)])
    return _batch(
        offset, [value] * random.choice([1, 1, 1, 3]), headers,
        key=random.choice([None, None, b"", b"k"]), codec=random.choice([0, 0, 0, 1]),
    )  # fmt: skip


def _decoded(*given: Any, **more: Any) -> Any:
    try:
        return stream_pages.read_of(*given, **more)
    except UnreadableError as error:
        return str(error), error.next_offset


def _nothing(_: bytes, offset: int, __: int, bytes_max: int, *, is_json: bool) -> Leading:
    return Leading([], 0, 0, offset, bytes_max)


def test_the_same_as_by_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = new_random("values")
    without = 0
    for _ in range(180):
        data, offset = b"", rng.choice([0, 10**12])
        base = offset
        for _ in range(rng.randrange(1, 9)):
            make: Callable[[random.Random, int], bytes] = rng.choice([_sent] * 5 + [_other])
            batch = make(rng, offset)
            data += batch
            offset += struct.unpack_from(">i", batch, 57)[0]
        changed = rng.random()
        if changed < 0.2:
            data = data[: rng.randrange(len(data))]
        elif changed < 0.4:
            at = rng.randrange(17, len(data))
            data = data[:at] + bytes((data[at] ^ 1 << rng.randrange(8),)) + data[at + 1 :]
        start = rng.choice([base, rng.randrange(base, offset + 1)])
        end = rng.choice([rng.randrange(start, offset + 3), offset])
        given = (data, start, end, rng.choice([0, 1000, *[1 << 20] * 4]))
        is_json = rng.random() < 0.3
        without += len(leading_values(*given, is_json=is_json).values)
        found = _decoded(*given, is_json=is_json)
        with monkeypatch.context() as patched:
            patched.setattr(stream_pages, "leading_values", _nothing)
            assert found == _decoded(*given, is_json=is_json)
    assert without > 30


def test_what_appends_make_needs_no_decoder() -> None:
    rng = random.Random(1)
    data = b"".join(_sent(rng, offset) for offset in range(200))
    found = leading_values(data, 7, 10**9, 1 << 30, is_json=True)
    assert (found.position, found.offset, found.batches) == (len(data), 200, 200)
    assert len(found.values) == 193


@pytest.mark.parametrize("at", [61, 63, 64, 65, 66, 67, 68, -1, -2, -17, -18])
def test_a_record_that_is_not_quite_one(at: int) -> None:
    """With a valid CRC: each byte around the value counts."""
    made = bytearray(_batch(0, [bytes(100)], StreamSend().headers()))
    assert len(leading_values(bytes(made), 0, 9, 99, is_json=False).values) == 1
    made[at] ^= 2
    struct.pack_into(">I", made, CRC_AT, crc32c(made[CRC_FROM:]))
    assert leading_values(bytes(made), 0, 9, 99, is_json=False) == Leading([], 0, 0, 0, 99)


def test_a_damaged_value_is_left_to_the_decoder() -> None:
    made = bytearray(_batch(0, [bytes(100)], StreamSend().headers()))
    made[100] ^= 1
    assert leading_values(bytes(made), 0, 9, 99, is_json=False).position == 0
    with pytest.raises(UnreadableError):
        stream_pages.read_of(bytes(made), 0, 9, 99, is_json=False)


@pytest.mark.parametrize(("records", "following"), [(1, 2), (5, 6)])
def test_no_value_is_returned_of_a_batch_with_another_number_of_records(
    records: int, following: int
) -> None:
    data = _batch(0, [b"first"], []) + changed(
        _batch(1, [b"a", b"b"], []), records=records, last_offset_delta=records - 1
    )
    found = stream_pages.read_of(data, 0, 9, 1000, is_json=False).found
    assert (found.values, found.next_offset) == ([b"first"], 1)
    for bytes_max in (1, 1000):
        with pytest.raises(UnreadableError) as refused:
            stream_pages.read_of(data, 1, 9, bytes_max, is_json=False)
        assert (refused.value.offset, refused.value.next_offset) == (1, following)
