"""Makes a record batch from a request, with the producer that the request identifies."""

import asyncio
import gzip
import io
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from pidlease.core.idempotency_keys import digest_of, is_key_name
from pidlease.core.pid import Policy, policy_of
from pidlease.http_api.record_messages import (
    IDEMPOTENCY_KEY,
    NUMBER_MAX,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    PRODUCER_SEQ,
    RECORDS_MAX,
    AppendRequest,
    NewRecord,
)
from pidlease.kafka.records.identity_header import (
    HEADER_KEY,
    NAME_BYTES_MAX,
    Identity,
    encode_identity,
)
from pidlease.kafka.records.record_batch import MAGIC, set_times
from pidlease.storage.io_pool import IoPool
from proxy.http.idempotency_header import by_key
from proxy.http.record_responses import (
    BodyTooLongError,
    CodedBodyError,
    IdempotencyKeyError,
    ProducerFieldError,
    WrongTypeError,
)
from proxy.http.unique_keys import check_unique_keys, keys_and_objects

#: The largest bodies to convert on the event loop: it takes one or two milliseconds.
_JSON_INLINE_BYTES: Final = 8 << 10
_RAW_INLINE_BYTES: Final = 256 << 10
_PRODUCER_HEADERS: Final = (PRODUCER_ID, PRODUCER_EPOCH, PRODUCER_SEQ)
_PRODUCER_KEYS: Final = tuple(name.lower().encode() for name in _PRODUCER_HEADERS)
#: The headers of an append, as keys of `AppendHeaders`.
CONTENT_LENGTH: Final = b"content-length"
CONTENT_TYPE: Final = b"content-type"
_CONTENT_ENCODING: Final = b"content-encoding"
_KEY: Final = IDEMPOTENCY_KEY.lower().encode()
_NAMES: Final = frozenset((*_PRODUCER_KEYS, _KEY, CONTENT_LENGTH, CONTENT_TYPE, _CONTENT_ENCODING))
_DIGITS_MAX: Final = len(str(NUMBER_MAX))
_INT64_MAX: Final = 2**63 - 1
_NO_TIMESTAMP: Final = -1

#: The headers of an append, each with its values.
AppendHeaders = Mapping[bytes, Sequence[bytes]]


def append_headers(raw: Iterable[tuple[bytes, bytes]]) -> AppendHeaders:
    """Return the values of the headers of an append, by lower-case names; not decoded.

    Parameters:
        raw: a request's headers; ASGI's names are in lower case.
    """
    found: dict[bytes, list[bytes]] = {}
    for name, value in raw:
        if name in _NAMES:
            found.setdefault(name, []).append(value)
    return found


def by_headers(headers: AppendHeaders) -> Identity | None:
    """Return the producer of policy epoch that the headers identify; it numbers requests.

    None if the request has none of the three headers.

    Raises:
        ProducerFieldError: a header is missing, repeated or invalid.
    """
    found = [headers.get(key, ()) for key in _PRODUCER_KEYS]
    if not any(found):
        return None
    for header, values in zip(_PRODUCER_HEADERS, found, strict=True):
        if not values:
            raise ProducerFieldError(
                header, f"is missing; {', '.join(_PRODUCER_HEADERS)} come together, or not at all"
            )
        if len(values) > 1:
            raise ProducerFieldError(header, f"is there {len(values)} times")
    (name,), (epoch,), (seq,) = found
    generation, number = _number(PRODUCER_EPOCH, epoch), _number(PRODUCER_SEQ, seq)
    return Identity(-1, _name(name), generation, number, number)


def by_key_or_headers(headers: AppendHeaders) -> Identity | None:
    """Return the producer that the headers identify; None: they identify none.

    Raises:
        ProducerFieldError: a header of a producer is missing, repeated or invalid.
        IdempotencyKeyError: Idempotency-Key is invalid, or there beside those of a producer.
    """
    named = by_headers(headers)
    keys = headers.get(_KEY)
    if keys is None:
        return named
    if named is not None:
        raise IdempotencyKeyError(f"and {PRODUCER_ID} are two ways to be stored once; use one")
    return by_key(keys)


def _number(name: str, value: bytes) -> int:
    # bytes.isdigit accepts ASCII only.
    if not value.isdigit() or len(value) > _DIGITS_MAX or int(value) > NUMBER_MAX:
        raise ProducerFieldError(
            name, f"is a number in digits, 0 to {NUMBER_MAX}, and nothing else"
        )
    return int(value)


def _name(value: bytes) -> str:
    if not 0 < len(value) <= NAME_BYTES_MAX:
        raise ProducerFieldError(
            PRODUCER_ID, f"has {len(value)} bytes; it has 1 to {NAME_BYTES_MAX}"
        )
    try:
        name = value.decode()
    except UnicodeDecodeError:
        raise ProducerFieldError(PRODUCER_ID, "is no UTF-8") from None
    # No invisible characters: two ids that look alike would be two producers.
    if not name.isprintable():
        raise ProducerFieldError(PRODUCER_ID, "has characters that cannot be seen")
    return name


def by_body(request: AppendRequest, named: Identity | None) -> Identity | None:
    """Return the producer of the records of a JSON body; None if the request identifies none.

    Parameters:
        named: the producer that the headers identify.

    Raises:
        ProducerFieldError: both identify one, or a field is missing or invalid.
    """
    numbers = {
        "pid": request.pid,
        "generation": request.generation,
        "first_sequence": request.first_sequence,
        "last_sequence": request.last_sequence,
    }
    given = [name for name, number in numbers.items() if number is not None]
    if not given:
        return named
    if named is not None:
        header = IDEMPOTENCY_KEY if is_key_name(named.name) else PRODUCER_ID
        raise ProducerFieldError(
            given[0], f"and {header} are two ways to identify the producer; use one"
        )
    pid, generation, first, last = numbers.values()
    if pid is None or generation is None or first is None:
        missing = next(name for name, number in numbers.items() if number is None)
        raise ProducerFieldError(
            missing, "is missing; pid, generation and first_sequence come together"
        )
    if policy_of(pid) is not Policy.STRICT:
        raise ProducerFieldError(
            "pid", f"{pid} is not of policy strict; only such PIDs are sent in a body"
        )
    return _leased(pid, generation, first, last, len(request.records))


def _leased(pid: int, generation: int, first: int, last: int | None, records: int) -> Identity:
    if last is None:
        last = first + records - 1
        if last > _INT64_MAX:
            raise ProducerFieldError(
                "first_sequence", f"{records} records from it on go beyond {_INT64_MAX}"
            )
    # Check this even if the topic's batches are not validated: every later start replays the log,
    # and no batch in it may be invalid.
    if records > last - first + 1:
        raise ProducerFieldError(
            "last_sequence", f"{records} records do not fit sequences {first}..{last}"
        )
    return Identity(pid, "", generation, first, last)


class RequestBatch(NamedTuple):
    """A batch made from a body.

    Attributes:
        identity: the producer; None: the request does not identify it.
        repeatable: whether the same request always makes the same content: either each record has
            its own time, or all have the server's.
        keys: the keys of its records, each once.
    """

    data: bytearray
    identity: Identity | None
    repeatable: bool
    keys: frozenset[bytes | None]


#: A record: timestamp (None: the server's time), key, value and headers.
_Content = tuple[int | None, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
Convert = Callable[[bytes | bytearray, Identity | None], RequestBatch]
#: Makes a batch from a body; and the largest body to convert on the event loop, in bytes.
Build = tuple[Convert, int]


#: Decompresses a body, but no more than some bytes.
_Unpack = Callable[[bytes | bytearray, int], bytes]


def _of_gzip(body: bytes | bytearray, size: int) -> bytes:
    """Decompress gzip, of one member or several.

    Raises:
        CodedBodyError: it is not gzip, or not complete.
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            return file.read(size)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CodedBodyError(f"the body is no complete gzip: {error}") from None


def _of_zstd(body: bytes | bytearray, size: int) -> bytes:
    """Decompress zstd (RFC 8878), of one frame or several.

    Raises:
        CodedBodyError: it is not zstd, or not complete.
    """
    # Here, and so in a thread: an idle server does without pyarrow's 50 MB.
    import pyarrow as pa  # noqa: PLC0415

    try:
        with pa.input_stream(pa.py_buffer(body), compression="zstd") as file:
            found: bytes = file.read(size)
    except OSError as error:
        raise CodedBodyError(f"the body is no complete zstd: {error}") from None
    return found


def coding_of(headers: AppendHeaders) -> str:
    """Return the Content-Encoding of a body, in lower case; empty: it has none."""
    codings = headers.get(_CONTENT_ENCODING)
    if codings is None:
        return ""
    coding = b",".join(codings).decode("latin-1").strip().lower()
    return "" if coding == "identity" else coding


_UNPACK: Final[Mapping[str, _Unpack]] = {"gzip": _of_gzip, "zstd": _of_zstd}


class BatchMaker:
    """Makes batches of at most `bytes_max` bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max: Final = bytes_max
        # One large body at a time: each needs memory beyond its own size, and threads would only
        # compete for the interpreter.
        self._large: Final = asyncio.Lock()

    def build_of(self, headers: AppendHeaders) -> Build:
        """Return how to make a batch from a request's type of body.

        Raises:
            WrongTypeError: the type of the body is not supported.
        """
        convert, inline_bytes = self._of_kind(headers.get(CONTENT_TYPE, ()))
        if _KEY in headers:
            convert = partial(_of_key, convert, media_type(headers.get(CONTENT_TYPE, ())))
        coding = coding_of(headers)
        if not coding:
            return convert, inline_bytes
        unpack = _UNPACK.get(coding)
        if unpack is not None:
            # Never on the event loop, and one at a time: a small body may unpack to a large one.
            return partial(self._of_coded, unpack, convert), -1
        raise WrongTypeError(
            "Content-Encoding", f"{coding[:50]} is not supported; send gzip, zstd, or uncompressed"
        )

    def _of_kind(self, kinds: Sequence[bytes]) -> Build:
        kind = media_type(kinds)
        if kind == b"application/json":
            return self._of_json, _JSON_INLINE_BYTES
        if kind == b"application/octet-stream":
            return self._of_raw, _RAW_INLINE_BYTES
        if kind == b"application/x-ndjson":
            return self._of_ndjson, _JSON_INLINE_BYTES
        text = (
            "must be application/json, application/x-ndjson for one record on each line,"
            " or application/octet-stream for one record's value"
        )
        raise WrongTypeError("Content-Type", text)

    async def make(
        self, build: Build, body: bytearray, named: Identity | None, pool: IoPool
    ) -> RequestBatch:
        """Make a batch from a body.

        Parameters:
            build: the result of `build_of`.
            named: the producer that the headers identify.
            pool: threads for large bodies.

        Raises:
            RequestValidationError: the body is invalid.
            ProducerFieldError: a field that identifies the producer is invalid.
            BodyTooLongError: the batch would be too large.
        """
        batch = self.make_now(build, body, named)
        if batch is not None:
            return batch
        async with self._large:
            return await pool.run(partial(build[0], body, named))

    def make_now(
        self, build: Build, body: bytearray, named: Identity | None
    ) -> RequestBatch | None:
        """Make a batch from a body as `make` does; None: it is large, a thread makes it."""
        convert, inline_bytes = build
        return convert(body, named) if len(body) <= inline_bytes else None

    async def of_values(
        self,
        values: Callable[[], Sequence[bytes]],
        size: int,
        headers: Sequence[tuple[str, bytes | None]],
        identity: Identity | None,
        pool: IoPool,
    ) -> bytearray:
        """Make a batch of values without keys.

        Parameters:
            values: returns them, one at least; may raise.
            size: of the values, in bytes.
            headers: of the first record.
            identity: the producer.
            pool: threads for large bodies.

        Raises:
            BodyTooLongError: the batch would be too large.
        """
        data = self.of_values_now(values, size, headers, identity)
        if data is not None:
            return data
        async with self._large:
            return await pool.run(partial(self._of_values, values, headers, identity))

    def of_values_now(
        self,
        values: Callable[[], Sequence[bytes]],
        size: int,
        headers: Sequence[tuple[str, bytes | None]],
        identity: Identity | None,
    ) -> bytearray | None:
        """Make a batch as `of_values` does; None: the values are large, a thread makes it."""
        if size > _JSON_INLINE_BYTES:
            return None
        return self._of_values(values, headers, identity)

    def _of_values(
        self,
        values: Callable[[], Sequence[bytes]],
        headers: Sequence[tuple[str, bytes | None]],
        identity: Identity | None,
    ) -> bytearray:
        found = values()
        if len(found) > RECORDS_MAX:
            raise BodyTooLongError(f"a body has {RECORDS_MAX} values at most")
        records = ((None, None, value, [*headers] * (not n)) for n, value in enumerate(found))
        return self._build(records, identity)

    def _of_coded(
        self, unpack: _Unpack, convert: Convert, body: bytes | bytearray, named: Identity | None
    ) -> RequestBatch:
        if not body:  # it is no gzip and no zstd, but its readers return nothing
            raise CodedBodyError("the body is empty, and has a Content-Encoding")
        found = unpack(body, self._bytes_max + 1)
        if len(found) > self._bytes_max:
            raise BodyTooLongError(
                f"the body is longer than {self._bytes_max} bytes without compression; send less"
                " at once"
            )
        return convert(found, named)

    def _of_raw(self, body: bytes | bytearray, named: Identity | None) -> RequestBatch:
        data = self._build([(None, None, bytes(body), [])], named)
        return RequestBatch(data, named, repeatable=True, keys=frozenset((None,)))

    def _of_ndjson(self, body: bytes | bytearray, named: Identity | None) -> RequestBatch:
        # Line by line: a body of empty lines would be a million objects.
        lines = list(islice(filter(bytes.strip, io.BytesIO(body)), RECORDS_MAX + 1))
        if not 0 < len(lines) <= RECORDS_MAX:
            text = f"a body has 1 to {RECORDS_MAX} records"
            raise RequestValidationError([{"loc": ("body", "records"), "type": "", "msg": text}])
        records = []
        for number, line in enumerate(lines):
            try:
                records.append(NewRecord.model_validate_json(line))
            except ValidationError as error:
                raise _invalid(error, "records", number) from None
        if not _has_unique_keys(body, records, 0, 0):
            for number, line in enumerate(lines):
                check_unique_keys(line, "records", number)
        return self._batch(records, named)

    def _of_json(self, body: bytes | bytearray, named: Identity | None) -> RequestBatch:
        try:
            request = AppendRequest.model_validate_json(body)
        except ValidationError as error:
            raise _invalid(error) from None
        if not _has_unique_keys(body, request.records, 1, len(request.model_fields_set)):
            check_unique_keys(body)
        return self._batch(request.records, by_body(request, named))

    def _batch(self, records: Sequence[NewRecord], identity: Identity | None) -> RequestBatch:
        repeatable = len({record.timestamp_ms is None for record in records}) == 1
        keys = frozenset(record.key for record in records)
        content = (
            (each.timestamp_ms, each.key, each.value, [(h.key, h.value) for h in each.headers])
            for each in records
        )
        return RequestBatch(self._build(content, identity), identity, repeatable, keys)

    def _build(self, records: Iterable[_Content], identity: Identity | None) -> bytearray:
        builder: Any = DefaultRecordBatchBuilder(MAGIC, 0, 0, -1, -1, -1, self._bytes_max)
        now_ms = time.time_ns() // 1_000_000
        first = last = now_ms
        shift = 0
        for number, (timestamp_ms, key, value, headers) in enumerate(records):
            time_ms = now_ms if timestamp_ms is None else timestamp_ms
            if number == 0:
                first = last = time_ms
                # For aiokafka a first timestamp of -1 is none yet: the next one would replace it.
                shift = int(time_ms == _NO_TIMESTAMP)
                if identity is not None:
                    headers.insert(0, (HEADER_KEY.decode(), encode_identity(identity)))
            last = max(last, time_ms)
            if not -_INT64_MAX <= time_ms - first <= _INT64_MAX - shift:
                raise _too_far_apart(number)
            if builder.append(number, time_ms + shift, key, value, headers) is None:
                raise self._too_long()
        if builder.size() > self._bytes_max:
            raise self._too_long()
        data: bytearray = builder.build()
        if first < 0 or last < 0:
            set_times(data, first, last)
        return data

    def _too_long(self) -> BodyTooLongError:
        return BodyTooLongError(
            f"the records make a batch of more than {self._bytes_max} bytes; send less at once"
        )


def media_type(kinds: Sequence[bytes]) -> bytes:
    """Return the media type of a body; empty: there is not one."""
    return kinds[0].partition(b";")[0].strip().lower() if len(kinds) == 1 else b""


def _of_key(
    convert: Convert, kind: bytes, body: bytes | bytearray, named: Identity | None
) -> RequestBatch:
    """Make the batch of a request with an idempotency key: its numbers end in the body's digest."""
    if named is not None:
        named = named._replace(last=digest_of(kind, body))
    return convert(body, named)


def _has_unique_keys(
    body: bytes | bytearray, records: Sequence[NewRecord], others: int, keys: int
) -> bool:
    """Whether a valid body has as many keys as its messages: then no object has one twice.

    Parameters:
        others: the objects around the records.
        keys: the keys of these.
    """
    objects = others + len(records)
    for record in records:
        keys += len(record.model_fields_set)
        if record.headers:
            objects += len(record.headers)
            keys += sum(len(header.model_fields_set) for header in record.headers)
    if body.count(b":") == keys:  # none of them in a string, nor of a base64
        return True
    found_keys, found_objects = keys_and_objects(body)
    # All other objects are {"base64": ...}.
    return found_keys == keys + found_objects - objects


def _too_far_apart(number: int) -> RequestValidationError:
    text = "is too far from the first record's timestamp_ms: a batch has differences of 63 bits"
    where = ("body", "records", number, "timestamp_ms")
    return RequestValidationError([{"loc": where, "type": "", "msg": text}])


def _invalid(error: ValidationError, *where: str | int) -> RequestValidationError:
    """Return the first error of a body, with its place in it."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    return RequestValidationError([{**errors[0], "loc": ("body", *where, *errors[0]["loc"])}])
