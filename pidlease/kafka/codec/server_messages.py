"""Everything that is not hot is read and written by kio, which knows every version.

Responses are built by the names that the schema gives, once for all versions: what a version
does not have is left out.
"""

import dataclasses
import importlib
import io
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from types import ModuleType
from typing import Any, Final

from kio.serial import entity_writer

from pidlease.kafka.codec.entities import read_entity, read_entity_slowly
from pidlease.kafka.codec.primitives import (
    INT32,
    MalformedError,
    Reader,
    RequestHeader,
    write_array,
)

_NO_TIME: Final = timedelta(0)
#: The largest request that is read in one go: some hundred elements.
_AT_ONCE_BYTES: Final = 4 << 10

#: The package and the class prefix of each API that kio reads here.
_APIS: Final = {
    1: ("fetch", "Fetch"),
    2: ("list_offsets", "ListOffsets"),
    10: ("find_coordinator", "FindCoordinator"),
    11: ("join_group", "JoinGroup"),
    12: ("heartbeat", "Heartbeat"),
    13: ("leave_group", "LeaveGroup"),
    14: ("sync_group", "SyncGroup"),
    15: ("describe_groups", "DescribeGroups"),
    16: ("list_groups", "ListGroups"),
    18: ("api_versions", "ApiVersions"),
    19: ("create_topics", "CreateTopics"),
    20: ("delete_topics", "DeleteTopics"),
    21: ("delete_records", "DeleteRecords"),
    22: ("init_producer_id", "InitProducerId"),
    32: ("describe_configs", "DescribeConfigs"),
    33: ("alter_configs", "AlterConfigs"),
    37: ("create_partitions", "CreatePartitions"),
    42: ("delete_groups", "DeleteGroups"),
    44: ("incremental_alter_configs", "IncrementalAlterConfigs"),
    47: ("offset_delete", "OffsetDelete"),
    60: ("describe_cluster", "DescribeCluster"),
    61: ("describe_producers", "DescribeProducers"),
    65: ("describe_transactions", "DescribeTransactions"),
    66: ("list_transactions", "ListTransactions"),
    69: ("consumer_group_describe", "ConsumerGroupDescribe"),
}


def read_request(header: RequestHeader, frame: bytearray) -> Any:
    """Read a request's body.

    Raises:
        MalformedError: the bytes are not a body of this version.
    """
    prefix, entity = _request(header)
    reader = _reader(header, frame, entity)
    try:
        request = read_entity(entity, reader)
        reader.end()
    except MalformedError as error:
        raise MalformedError(f"{prefix} version {header.version}: {error}") from None
    return request


async def read_request_slowly(header: RequestHeader, frame: bytearray) -> Any:
    """Read a request's body; where it is large, others get their turn in between.

    Raises:
        MalformedError: the bytes are not a body of this version.
    """
    if len(frame) <= _AT_ONCE_BYTES:
        return read_request(header, frame)
    prefix, entity = _request(header)
    reader = _reader(header, frame, entity)
    try:
        request = await read_entity_slowly(entity, reader)
        reader.end()
    except MalformedError as error:
        raise MalformedError(f"{prefix} version {header.version}: {error}") from None
    return request


def _request(header: RequestHeader) -> tuple[str, Any]:
    package, prefix = _APIS[header.api_key]
    return prefix, getattr(_module(package, header.version, "request"), prefix + "Request")


def _reader(header: RequestHeader, frame: bytearray, entity: Any) -> Reader:
    reader = Reader(frame, header.body, flexible=entity.__flexible__)
    reader.tags()
    return reader


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
        self.flexible: Final[bool] = getattr(self._module, self._prefix + "Response").__flexible__

    def part(self, name: str, /, **values: object) -> Any:
        """A nested struct, by the schema's name without the API's prefix."""
        kind = getattr(self._module, f"{self._prefix}Response{name}", None)
        if kind is None:
            kind = getattr(self._module, name)
        return _build(kind, values)

    def row(self, name: str, /, **values: object) -> bytes:
        """A nested struct in encoded form, by the schema's name (see `part`)."""
        part = self.part(name, **values)
        stream = io.BytesIO()
        entity_writer(type(part))(stream, part)
        return stream.getvalue()

    def encode_rows(self, correlation_id: int, rows: Sequence[bytes], count: int) -> list[bytes]:
        """The whole response, where it is a throttle time and one array: most are.

        Parameters:
            correlation_id: of the request.
            rows: the elements of the array, in encoded form.
            count: how many they are.
        """
        tags = b"\0" if self.flexible else b""
        head = [INT32.pack(correlation_id), tags, INT32.pack(0)]
        return [*head, write_array(count, flexible=self.flexible), *rows, tags]

    def encode(self, correlation_id: int, **values: object) -> bytes:
        """The whole response, with its header."""
        kind = getattr(self._module, self._prefix + "Response")
        entity = _build(kind, {"throttle_time": _NO_TIME, **values})
        return self.encode_entity(correlation_id, entity)

    def encode_entity(self, correlation_id: int, entity: Any) -> bytes:
        """The same of a response that is put together already."""
        kind = type(entity)
        stream = io.BytesIO()
        stream.write(correlation_id.to_bytes(4, "big", signed=True))
        # Response header v1 has tags behind the correlation id; ApiVersions always has v0.
        if kind.__flexible__ and self._prefix != "ApiVersions":
            stream.write(b"\0")
        entity_writer(kind)(stream, entity)
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
