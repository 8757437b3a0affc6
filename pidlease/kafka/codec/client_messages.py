"""Requests to Kafka, and its answers, by kio's descriptions: all but Produce and Fetch.

Requests are built by the names that the schema gives; what a version does not have is left out.
"""

import dataclasses
import importlib
import io
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any, Final

from kio.serial import entity_writer

from pidlease.kafka.api import CLIENT_ID
from pidlease.kafka.codec.entities import read_entity, read_entity_slowly
from pidlease.kafka.codec.primitives import MalformedError, Reader
from pidlease.kafka.errors import UpstreamNonsenseError

API_VERSIONS: Final = 18
METADATA: Final = 3
LIST_OFFSETS: Final = 2
FETCH: Final = 1
PRODUCE: Final = 0
FIND_COORDINATOR: Final = 10
SASL_HANDSHAKE: Final = 17
INIT_PRODUCER_ID: Final = 22
ADD_PARTITIONS_TO_TXN: Final = 24
END_TXN: Final = 26
DESCRIBE_CONFIGS: Final = 32
SASL_AUTHENTICATE: Final = 36
DESCRIBE_TRANSACTIONS: Final = 65

_APIS: Final = {
    FETCH: ("fetch", "Fetch"),
    LIST_OFFSETS: ("list_offsets", "ListOffsets"),
    METADATA: ("metadata", "Metadata"),
    FIND_COORDINATOR: ("find_coordinator", "FindCoordinator"),
    SASL_HANDSHAKE: ("sasl_handshake", "SaslHandshake"),
    15: ("describe_groups", "DescribeGroups"),
    16: ("list_groups", "ListGroups"),
    API_VERSIONS: ("api_versions", "ApiVersions"),
    INIT_PRODUCER_ID: ("init_producer_id", "InitProducerId"),
    ADD_PARTITIONS_TO_TXN: ("add_partitions_to_txn", "AddPartitionsToTxn"),
    END_TXN: ("end_txn", "EndTxn"),
    19: ("create_topics", "CreateTopics"),
    20: ("delete_topics", "DeleteTopics"),
    21: ("delete_records", "DeleteRecords"),
    DESCRIBE_CONFIGS: ("describe_configs", "DescribeConfigs"),
    37: ("create_partitions", "CreatePartitions"),
    42: ("delete_groups", "DeleteGroups"),
    61: ("describe_producers", "DescribeProducers"),
    DESCRIBE_TRANSACTIONS: ("describe_transactions", "DescribeTransactions"),
    66: ("list_transactions", "ListTransactions"),
    69: ("consumer_group_describe", "ConsumerGroupDescribe"),
    SASL_AUTHENTICATE: ("sasl_authenticate", "SaslAuthenticate"),
}


#: Where the correlation id of an answer ends.
_ID_BYTES: Final = 4
#: Of all arrays of an answer: a cluster of a million partitions stays below it.
_ELEMENTS_MAX: Final = 20_000_000

#: Never 0, nor twice within any time that matters: an answer that comes again, or late, is not to
#: pass for the answer to what was asked next.
_IDS: Final = itertools.cycle(range(1, 1 << 31))


def next_id() -> int:
    """A correlation id for a request of our own."""
    return next(_IDS)


class Request:
    """Builds one version's request, and reads the answer to it.

    Parameters:
        api_key: the API.
        version: its version.
    """

    def __init__(self, api_key: int, version: int) -> None:
        package, prefix = _APIS[api_key]
        self.api_key: Final = api_key
        self.version: Final = version
        self._prefix = prefix
        self._module = _module(package, version, "request")
        self._kind = getattr(self._module, prefix + "Request")
        self._answer = getattr(_module(package, version, "response"), prefix + "Response")

    def part(self, name: str, /, **values: object) -> Any:  # noqa: ANN401 - one of kio's classes
        """A nested struct, by the schema's name."""
        kind = getattr(self._module, name)
        return _build(kind, values)

    def encode(self, **values: object) -> bytes:
        """The whole request, with its header, under a correlation id of its own."""
        return self.encode_entity(_build(self._kind, values))

    def encode_entity(self, entity: Any) -> bytes:  # noqa: ANN401 - one of kio's classes
        """The same of a request that is put together already."""
        stream = io.BytesIO()
        client_id = CLIENT_ID.encode()
        for number, size in (
            (self.api_key, 2),
            (self.version, 2),
            (next_id(), 4),
            (len(client_id), 2),
        ):
            stream.write(number.to_bytes(size, "big"))
        stream.write(client_id)
        if self._kind.__flexible__:
            stream.write(b"\0")
        entity_writer(self._kind)(stream, entity)
        return stream.getvalue()

    def decode(self, frame: bytearray) -> Any:  # noqa: ANN401 - one of kio's classes
        """The answer.

        Raises:
            UpstreamNonsenseError: it is none.
        """
        with self._reading(frame) as reader:
            return read_entity(self._answer, reader)

    async def decode_slowly(self, frame: bytearray) -> Any:  # noqa: ANN401 - one of kio's classes
        """The same of an answer that may be long: others get their turn in between.

        Raises:
            UpstreamNonsenseError: it is none.
        """
        with self._reading(frame) as reader:
            return await read_entity_slowly(self._answer, reader)

    @contextmanager
    def _reading(self, frame: bytearray) -> Iterator[Reader]:
        """From behind the header, which has tags in v1 (ApiVersions always has v0), to the end."""
        flexible = self._answer.__flexible__
        reader = Reader(frame, _ID_BYTES, flexible=flexible, elements_max=_ELEMENTS_MAX)
        try:
            if flexible and self.api_key != API_VERSIONS:
                reader.tags()
            yield reader
            reader.end()
        except MalformedError as error:
            raise UpstreamNonsenseError(f"{self}: {error}") from error

    def __str__(self) -> str:
        return f"the answer to {self._prefix} version {self.version}"


@cache
def _module(package: str, version: int, direction: str) -> ModuleType:
    return importlib.import_module(f"kio.schema.{package}.v{version}.{direction}")


@cache
def _fields(kind: type) -> frozenset[str]:
    return frozenset(each.name for each in dataclasses.fields(kind))


def _build(kind: Any, values: dict[str, object]) -> Any:  # noqa: ANN401 - one of kio's classes
    fields = _fields(kind)
    return kind(**{name: value for name, value in values.items() if name in fields})
