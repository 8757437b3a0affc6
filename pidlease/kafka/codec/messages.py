"""Encodes and decodes requests and responses by kio's schemas: all but those of the hot path.

Callers give a message's fields by the schema's names, for all versions alike: fields that a version
does not have are left out.
"""

import dataclasses
import io
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from types import ModuleType
from typing import Any, Final

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.schema.index import PayloadEntityType, api_key_map
from kio.static.constants import EntityType

from pidlease.kafka.api import (
    API_ALTER_USER_SCRAM_CREDENTIALS,
    API_API_VERSIONS,
    API_METADATA,
    CLIENT_ID,
)
from pidlease.kafka.codec.entities import (
    read_entity,
    read_entity_slowly,
    write_entity,
    write_entity_slowly,
)
from pidlease.kafka.codec.primitives import (
    INT32,
    MalformedError,
    Reader,
    RequestHeader,
    write_array,
)
from pidlease.kafka.errors import UpstreamNonsenseError

_NO_TIME: Final = timedelta(0)
#: The longest request that is read in one step: it has some hundred elements.
_AT_ONCE_BYTES: Final = 4 << 10
#: Bytes of the correlation id in front of a response.
_ID_BYTES: Final = 4
#: The most elements in all arrays of a response: even a cluster of a million partitions has fewer.
_ELEMENTS_MAX: Final = 20_000_000

#: Never 0, and practically never repeated: a late or repeated response must not be taken for the
#: response to a later request.
_IDS: Final = itertools.cycle(range(1, 1 << 31))


@cache
def api_name(api_key: int) -> str:
    """Return Kafka's name of an API; its key if it has none."""
    name = api_key_map.get(api_key)
    return str(api_key) if name is None else "".join(map(str.capitalize, name.split("_")))


def error_name(code: int) -> str:
    """Kafka's name of an error code, with its number."""
    try:
        return f"{ErrorCode(code).name.upper()} ({code})"
    except ValueError:
        return f"error {code}"


def is_flexible(api_key: int, version: int) -> bool:
    """Return whether a request has compact lengths and tags (KIP-482)."""
    return bool(_message(api_key, version, EntityType.request).__flexible__)


def next_id() -> int:
    """Return a correlation id for a request of this process."""
    return next(_IDS)


# ---------------------------------------------------------------------- clients' requests


#: librdkafka ends its requests of these APIs with one empty field of tags too many.
_TAGS_TWICE: Final = frozenset((API_ALTER_USER_SCRAM_CREDENTIALS,))


def read_request(header: RequestHeader, frame: bytearray) -> Any:
    """Read a request's body.

    Raises:
        MalformedError: the bytes are not a body of this version.
    """
    entity = _request(header)
    reader = _reader(header, frame, entity)
    try:
        request = read_entity(entity, reader)
        _end(header, reader, request)
    except MalformedError as error:
        raise _malformed(header, error) from None
    return request


async def read_request_slowly(header: RequestHeader, frame: bytearray) -> Any:
    """Read a request's body; if it is long, let other tasks run meanwhile.

    Raises:
        MalformedError: the bytes are not a body of this version.
    """
    if len(frame) <= _AT_ONCE_BYTES:
        return read_request(header, frame)
    entity = _request(header)
    reader = _reader(header, frame, entity)
    try:
        request = await read_entity_slowly(entity, reader)
        _end(header, reader, request)
    except MalformedError as error:
        raise _malformed(header, error) from None
    return request


def _end(header: RequestHeader, reader: Reader, request: Any) -> None:
    if header.api_key == API_METADATA and request.topics is None and request.__flexible__:
        return  # as `metadata.MetadataReader`: librdkafka sends three bytes too many
    if header.api_key in _TAGS_TWICE and reader.frame[reader.at :] == b"\0":
        return
    reader.end()


async def write_request(header: RequestHeader, frame: bytearray, request: Any) -> bytearray:
    """Return a request with another body; if it is long, let other tasks run meanwhile.

    Parameters:
        frame: the request; its header is kept.
        request: the body, as kio's entity.
    """
    tags = b"\0" if request.__flexible__ else b""
    return frame[: header.body] + tags + await write_entity_slowly(request)


def response_class(api_key: int, version: int) -> Any:
    """Return kio's class of a response."""
    return _message(api_key, version, EntityType.response)


def _request(header: RequestHeader) -> Any:
    return _message(header.api_key, header.version, EntityType.request)


def _reader(header: RequestHeader, frame: bytearray, entity: Any) -> Reader:
    reader = Reader(frame, header.body, flexible=entity.__flexible__)
    reader.tags()
    return reader


def _malformed(header: RequestHeader, error: MalformedError) -> MalformedError:
    return MalformedError(f"{api_name(header.api_key)} version {header.version}: {error}")


# ---------------------------------------------------------------------- responses to clients


class Response:
    """Builds the responses of one API and version."""

    def __init__(self, api_key: int, version: int) -> None:
        self.version = version
        self._prefix = api_name(api_key)
        self._module = _module(api_key, version, EntityType.response)
        self._kind = _message(api_key, version, EntityType.response)
        self.flexible: Final[bool] = self._kind.__flexible__
        #: ApiVersions has response header v0 in all versions.
        self._tagged_header: Final = self.flexible and api_key != API_API_VERSIONS

    def part(self, name: str, /, **values: object) -> Any:
        """Build a nested struct, by the schema's name without the API's prefix."""
        kind = getattr(self._module, f"{self._prefix}Response{name}", None)
        if kind is None:
            kind = getattr(self._module, name)
        return _build(kind, values)

    def row(self, name: str, /, **values: object) -> bytes:
        """Encode a nested struct; names as for `part`."""
        return write_entity(self.part(name, **values))

    def encode_rows(
        self, correlation_id: int, rows: Sequence[bytes], count: int, fields: bytes = b""
    ) -> list[bytes]:
        """Encode a response that consists of a throttle time and one array, as most do.

        Parameters:
            rows: the array's elements, encoded; one entry may contain several.
            count: the number of elements.
            fields: the encoded fields between the throttle time and the array.
        """
        tags = b"\0" if self.flexible else b""
        head = [INT32.pack(correlation_id), tags, INT32.pack(0), fields]
        return [*head, write_array(count, flexible=self.flexible), *rows, tags]

    def encode(self, correlation_id: int, **values: object) -> bytes:
        """Encode a response, with its header."""
        entity = _build(self._kind, {"throttle_time": _NO_TIME, **values})
        return self._header(correlation_id) + write_entity(entity)

    async def encode_slowly(self, correlation_id: int, entity: Any) -> bytes:
        """Encode a response given as kio's entity; if it is long, let other tasks run meanwhile."""
        return self._header(correlation_id) + await write_entity_slowly(entity)

    def _header(self, correlation_id: int) -> bytes:
        return INT32.pack(correlation_id) + (b"\0" if self._tagged_header else b"")


# ---------------------------------------------------------------------- requests to Kafka


class Request:
    """Builds the requests of one API and version, and reads Kafka's responses to them.

    Parameters:
        client_id: the name of this client in the brokers' logs.
    """

    def __init__(self, api_key: int, version: int, client_id: str = CLIENT_ID) -> None:
        self.api_key: Final = api_key
        self.version: Final = version
        self._client_id: Final = client_id.encode()
        self._module = _module(api_key, version, EntityType.request)
        self._kind = _message(api_key, version, EntityType.request)
        self._response = _message(api_key, version, EntityType.response)

    def part(self, name: str, /, **values: object) -> Any:
        """Build a nested struct, by the schema's name."""
        return _build(getattr(self._module, name), values)

    def encode(self, **values: object) -> bytes:
        """Encode a request, with its header and a new correlation id."""
        return self.encode_entity(_build(self._kind, values))

    def encode_entity(self, entity: Any) -> bytes:
        """Encode a request given as kio's entity, with its header and a new correlation id."""
        stream = io.BytesIO()
        for number, size in (
            (self.api_key, 2),
            (self.version, 2),
            (next_id(), 4),
            (len(self._client_id), 2),
        ):
            stream.write(number.to_bytes(size, "big"))
        stream.write(self._client_id)
        if self._kind.__flexible__:
            stream.write(b"\0")
        return stream.getvalue() + write_entity(entity)

    def decode(self, frame: bytearray) -> Any:
        """Read the response.

        Raises:
            UpstreamNonsenseError: the bytes are not a response of this version.
        """
        with self._reading(frame) as reader:
            return read_entity(self._response, reader)

    async def decode_slowly(self, frame: bytearray) -> Any:
        """Read a response that may be long; let other tasks run meanwhile.

        Raises:
            UpstreamNonsenseError: the bytes are not a response of this version.
        """
        if len(frame) <= _AT_ONCE_BYTES:
            return self.decode(frame)
        with self._reading(frame) as reader:
            return await read_entity_slowly(self._response, reader)

    @contextmanager
    def _reading(self, frame: bytearray) -> Iterator[Reader]:
        """Read from the header (v1 has tags; ApiVersions always has v0) to the end of the frame."""
        flexible = self._response.__flexible__
        reader = Reader(frame, _ID_BYTES, flexible=flexible, elements_max=_ELEMENTS_MAX)
        try:
            if flexible and self.api_key != API_API_VERSIONS:
                reader.tags()
            yield reader
            reader.end()
        except MalformedError as error:
            raise UpstreamNonsenseError(f"{self}: {error}") from error

    def __str__(self) -> str:
        return f"the response to {api_name(self.api_key)} version {self.version}"


# ---------------------------------------------------------------------- kio's classes


@cache
def _module(api_key: int, version: int, direction: PayloadEntityType) -> ModuleType:
    return load_payload_module(api_key, version, direction)


@cache
def _message(api_key: int, version: int, direction: PayloadEntityType) -> Any:
    module = _module(api_key, version, direction)
    return getattr(module, f"{api_name(api_key)}{direction.name.capitalize()}")


@cache
def _fields(kind: type) -> frozenset[str]:
    return frozenset(each.name for each in dataclasses.fields(kind))


def _build(kind: Any, values: dict[str, object]) -> Any:
    fields = _fields(kind)
    return kind(**{name: value for name, value in values.items() if name in fields})
