"""Everything that is not hot is read and written by kio, which knows every version.

Responses are built by the names that the schema gives, once for all versions: what a version
does not have is left out.
"""

import dataclasses
import importlib
import io
from datetime import timedelta
from functools import cache
from types import ModuleType
from typing import Any, Final

from kio.serial import entity_writer

from proxy.kafka.entities import read_entity
from proxy.kafka.wire import MalformedRequestError, Reader, RequestHeader

_NO_TIME: Final = timedelta(0)

#: The package and the class prefix of each API that kio reads here.
_APIS: Final = {
    1: ("fetch", "Fetch"),
    2: ("list_offsets", "ListOffsets"),
    3: ("metadata", "Metadata"),
    10: ("find_coordinator", "FindCoordinator"),
    18: ("api_versions", "ApiVersions"),
    19: ("create_topics", "CreateTopics"),
    22: ("init_producer_id", "InitProducerId"),
}


def read_request(header: RequestHeader, frame: bytearray) -> Any:
    """Read a request's body.

    Raises:
        MalformedRequestError: the bytes are not a body of this version.
    """
    package, prefix = _APIS[header.api_key]
    module = _module(package, header.version, "request")
    entity = getattr(module, prefix + "Request")
    reader = Reader(frame, header.body, flexible=entity.__flexible__)
    reader.tags()
    try:
        request = read_entity(entity, reader)
        reader.end()
    except MalformedRequestError as error:
        raise MalformedRequestError(f"{prefix} version {header.version}: {error}") from None
    return request


class Response:
    """Builds one version's response.

    Parameters:
        api_key: the API.
        version: its version.
    """

    def __init__(self, api_key: int, version: int) -> None:
        package, self._prefix = _APIS[api_key]
        self.version = version
        self._module = _module(package, version, "response")

    def part(self, name: str, /, **values: object) -> Any:
        """A nested struct, by the schema's name without the API's prefix."""
        kind = getattr(self._module, f"{self._prefix}Response{name}", None)
        if kind is None:
            kind = getattr(self._module, name)
        return _build(kind, values)

    def encode(self, correlation_id: int, **values: object) -> bytes:
        """The whole response, with its header."""
        kind = getattr(self._module, self._prefix + "Response")
        stream = io.BytesIO()
        stream.write(correlation_id.to_bytes(4, "big", signed=True))
        # Response header v1 has tags behind the correlation id; ApiVersions always has v0.
        if kind.__flexible__ and self._prefix != "ApiVersions":
            stream.write(b"\0")
        entity_writer(kind)(stream, _build(kind, {"throttle_time": _NO_TIME, **values}))
        return stream.getvalue()


@cache
def _module(package: str, version: int, direction: str) -> ModuleType:
    return importlib.import_module(f"kio.schema.{package}.v{version}.{direction}")


@cache
def _fields(kind: type) -> frozenset[str]:
    return frozenset(each.name for each in dataclasses.fields(kind))


def _build(kind: Any, values: dict[str, object]) -> Any:
    fields = _fields(kind)
    return kind(**{name: value for name, value in values.items() if name in fields})
