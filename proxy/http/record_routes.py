"""Append and read records: /v1/topics/{topic}/partitions/{partition}/records, and by key."""

import random
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from pidlease.core.byte_budget import ByteBudget
from pidlease.core.idempotency_keys import KEY_BYTES_MAX, is_key_name
from pidlease.core.key_partition import partition_for_key
from pidlease.core.topic_partition import TopicPartition
from pidlease.engine.append_outcome import Outcome
from pidlease.engine.append_service import AppendService
from pidlease.engine.engine import Engine
from pidlease.engine.partition import Partition
from pidlease.engine.partition_lookup import find_partition, find_topic, topic_of
from pidlease.engine.topic_admin import InvalidTopicError, TopicAdmin
from pidlease.engine.topics.topic_table import UnknownTopicError
from pidlease.http_api.record_messages import (
    IDEMPOTENCY_KEY,
    IN_DIGITS,
    NUMBER_MAX,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    PRODUCER_SEQ,
    AppendAnswer,
    AppendByKeyAnswer,
    AppendRequest,
    ReadQuery,
    RecordsAnswer,
)
from pidlease.kafka.records.identity_header import Identity
from pidlease.storage.topics.topic_store import Topic, illegal_name
from proxy.http.current_caller import count_batch, note_change, require_create, require_name
from proxy.http.errors import ready_engine, ready_topics
from proxy.http.owner_requests import OwnerRequests
from proxy.http.prepared_append import PreparedAppend
from proxy.http.record_pages import Page, Reads
from proxy.http.record_responses import APPEND_REFUSALS, READ_REFUSALS, KeyFieldError, appended
from proxy.http.request_batch import (
    CONTENT_LENGTH,
    AppendHeaders,
    BatchMaker,
    Build,
    RequestBatch,
    append_headers,
    by_key_or_headers,
)
from proxy.http.request_memory import HeldBytes, HeldResponse, read_body

#: The route of appends to a partition, and of reads.
RECORDS_PATH: Final = "/v1/topics/{topic}/partitions/{partition}/records"
_BY_KEY_PATH: Final = "/v1/topics/{topic}/records"
_THIS: Final = re.compile("/v1/topics/[^/]*/(partitions/[^/]*/)?records/?")
_NUMBER: Final = {"type": "integer", "minimum": 0, "maximum": NUMBER_MAX}
_Topic = Annotated[str, Path(min_length=1, max_length=249, description="the topic's name")]
_Number = Annotated[int, Path(ge=0, le=2**31 - 1, description="the partition's number"), IN_DIGITS]


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """Bounds of the records endpoint.

    Attributes:
        batch_bytes_max: the largest batch, and the longest body.
        memory_bytes_max: for appends in flight; and as much again for reads and their responses.
        reorder_ms: how long an append waits for an earlier one of its producer; 0: not at all.
    """

    batch_bytes_max: int = 1_048_588
    memory_bytes_max: int = 64 << 20
    reorder_ms: int = 0


def reads_own_body(path: str) -> bool:
    """Whether a path is a records path: these routes bound its body themselves."""
    return _THIS.fullmatch(path) is not None


class _ElsewhereError(Exception):
    """Another active server owns the partition that was chosen for a batch."""

    def __init__(self, partition: TopicPartition, body: bytes) -> None:
        super().__init__(str(partition))
        self.partition: Final = partition
        self.body: Final = body


class RecordRoutes:
    """The routes for records.

    Parameters:
        engine: returns the engine; None while there is none yet.
        topics: creates topics on first use.
        owners: sends requests about partitions of other active servers on.
    """

    def __init__(
        self,
        engine: Callable[[], Engine | None],
        topics: Callable[[], TopicAdmin | None],
        limits: RecordLimits,
        owners: OwnerRequests,
    ) -> None:
        self._engine = engine
        self._owners: Final = owners
        self._topics = topics
        self.bytes_max: Final = limits.batch_bytes_max
        self._reorder_ms: Final = limits.reorder_ms
        self.maker: Final = BatchMaker(limits.batch_bytes_max)
        self.append_memory: Final = ByteBudget(limits.memory_bytes_max)
        self.read_memory: Final = ByteBudget(limits.memory_bytes_max)
        self._reads: Final = Reads(self.read_memory)
        self._service: AppendService | None = None
        self.router: Final = APIRouter(tags=["records"])
        self.router.add_api_route(
            RECORDS_PATH, self.append, methods=["POST"], response_model=AppendAnswer,
            operation_id="append_records", responses=APPEND_REFUSALS,
            openapi_extra=append_description(),
        )  # fmt: skip
        #: The route of `append`.
        self.append_route: Final = self.router.routes[-1]
        self.router.add_api_route(
            _BY_KEY_PATH, self.append_by_key, methods=["POST"], response_model=AppendByKeyAnswer,
            operation_id="append_records_by_key", responses=APPEND_REFUSALS,
            openapi_extra=append_description(),
        )  # fmt: skip
        self.router.add_api_route(
            RECORDS_PATH, self.read, methods=["GET"], response_model=RecordsAnswer,
            operation_id="read_records", responses=READ_REFUSALS,
        )  # fmt: skip
        #: The route of `read`.
        self.read_route: Final = self.router.routes[-1]

    def close(self) -> None:
        """End all waiting reads; they return the records that are there."""
        self._reads.close()

    async def append(self, request: Request, topic: _Topic, partition: _Number) -> Response:
        """Append records, all or none, as one batch.

        With Producer-Id, Producer-Epoch and Producer-Seq, or with Idempotency-Key, or with a leased
        PID in the body, a repeated request is not stored again.
        """
        found = self.service().engine.partition(topic, partition)
        if found is None:
            await self._or_create(topic, partial(self._partition, topic, partition))
        elif found.elsewhere:
            return await self._send_on(request, found.name)
        return await self._appended(request, topic, partition)

    async def append_by_key(self, request: Request, topic: _Topic) -> Response:
        """Append records to the partition of their key, as Kafka's clients choose it.

        All records of a request have the same key. Without one, the partition is any.
        """
        await self._or_create(topic, partial(self._topic, topic))
        return await self._appended(request, topic, None)

    async def _appended(self, request: Request, topic: str, partition: int | None) -> Response:
        """Append the records of a request; if another server owns the partition, there.

        Parameters:
            partition: None: it is chosen by the records' key, and named in the response.
        """
        try:
            outcome, identity, number = await self._append(request, topic, partition)
            return appended(outcome, identity, number if partition is None else None)
        except _ElsewhereError as error:
            with HeldBytes(self.append_memory) as held:
                held.more(len(error.body))
                return await self._owners.send_on(
                    request, error.partition, error.body, self.append_memory
                )

    async def _send_on(self, request: Request, partition: TopicPartition) -> Response:
        """Send a request on to the owner of its partition."""
        with HeldBytes(self.append_memory) as held:
            announced = request.headers.get("content-length", "").encode()
            body = await read_body(request.receive, announced, self.bytes_max, held)
            return await self._owners.send_on(request, partition, bytes(body), self.append_memory)

    async def _append(
        self, request: Request, topic: str, partition: int | None
    ) -> tuple[Outcome, Identity | None, int]:
        """Append the records of a request; return the outcome, the producer and the partition.

        Parameters:
            partition: None: it is chosen by the records' key.
        """
        headers, named, build = self._headers(request.scope)
        with HeldBytes(self.append_memory) as held:
            announced = headers.get(CONTENT_LENGTH, (b"",))[0]
            body = await read_body(request.receive, announced, self.bytes_max, held)
            batch = await self.maker.make(build, body, named, self.service().engine.pool)
            held.more(len(batch.data))
            # The server may be stopping, or the topic deleted since.
            service = self.service()
            number = partition
            if number is None:
                number = self._chosen(service, topic, batch, body)
            found = service.engine.partition(topic, number)
            if found is None:
                found, service = await self._partition(topic, number), self.service()
                if partition is None:  # its key may have been sent elsewhere meanwhile
                    number = self._chosen(service, topic, batch, body)
                    found = service.engine.partition(topic, number) or found
            if found.elsewhere:  # it was found, or moved, while the body arrived
                raise _ElsewhereError(found.name, bytes(body))
            # The owner does both, if that is another server.
            require_name(service.name_of(batch.identity))
            count_batch(len(body), len(batch.data))
            del body
            outcome = await service.append(
                found, batch.data, batch.identity, repeatable=batch.repeatable
            )
        return outcome, batch.identity, found.name.partition

    def _headers(self, scope: Mapping[str, Any]) -> tuple[AppendHeaders, Identity | None, Build]:
        """Return the headers of an append, the producer, and how a batch is made of the body.

        Raises:
            RefusedError: a header is invalid.
        """
        headers = append_headers(scope["headers"])
        return headers, by_key_or_headers(headers), self.maker.build_of(headers)

    def prepare_now(
        self, place: tuple[str, int], scope: Mapping[str, Any], body: bytearray
    ) -> PreparedAppend | None:
        """Prepare an append to a partition; None: that needs a wait, or another server.

        Parameters:
            place: the topic and the partition.
            scope: of the request.

        Raises:
            RefusedError: the request is invalid.
            RequestValidationError: the body is.
            NotReadyError: the engine is recovering or stopping.
        """
        partition = self.service().engine.partition(*place)
        if partition is None or partition.elsewhere:
            return None
        _, named, build = self._headers(scope)
        batch = self.maker.make_now(build, body, named)
        if batch is None:
            return None
        data, identity, repeatable, _ = batch

        def respond(outcome: Outcome) -> Response:
            return appended(outcome, identity)

        return PreparedAppend(partition, data, identity, respond, repeatable)

    async def read(
        self,
        request: Request,
        topic: _Topic,
        partition: _Number,
        query: Annotated[ReadQuery, Query()],
    ) -> Response:
        """Read records from an offset on; the reader keeps its own position."""
        found = await self._partition(topic, partition)
        if found.elsewhere:
            return await self._owners.send_on(request, found.name, b"", self.read_memory)
        held = HeldBytes(self.read_memory)
        try:
            pool = self.service().engine.pool
            page = await self._reads.page(request, found, query, pool, held.size)
            content = _content(found, page)
            held.more(len(content))
            return HeldResponse(content, held)
        except BaseException:
            held.release()
            raise

    @staticmethod
    def _chosen(service: AppendService, topic: str, batch: RequestBatch, body: bytearray) -> int:
        """Choose the partition of a batch without one; if any will do, one of this server's.

        Raises:
            KeyFieldError: the keys differ, or the producer would not know where a repeat goes.
            _ElsewhereError: another active server owns it.
        """
        engine, identity = service.engine, batch.identity
        count = topic_of(engine, topic).partitions
        former = None
        if identity is not None and is_key_name(identity.name):
            # A key counts for the whole topic here. It may have gone elsewhere: with other records,
            # or before partitions were added.
            every = (engine.partition(topic, each) for each in range(count))
            there = [each for each in every if each is not None]
            former = service.keys.partition_of(identity.name, there)
        number = _partition_of(batch, count) if former is None else former.name.partition
        if engine.shared_cluster is None:
            return number
        if identity is None and batch.keys == {None}:
            own = [each.name.partition for each in engine.partitions_of(topic)
                   if not each.elsewhere]  # fmt: skip
            number = random.choice(own) if own else number  # noqa: S311 - no secret
        found = engine.partition(topic, number)
        if found is not None and found.elsewhere:
            raise _ElsewhereError(found.name, bytes(body))
        return number

    def service(self) -> AppendService:
        """Return what appends to the engine.

        Raises:
            NotReadyError: the engine is recovering or stopping.
        """
        current = ready_engine(self._engine)
        if self._service is None or self._service.engine is not current:
            self._service = AppendService(current, self._reorder_ms)
        return self._service

    async def _or_create(self, topic: str, find: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Find a topic or partition; create the topic first if it is missing and may be created.

        Raises:
            InvalidTopicError: no topic may have this name.
        """
        try:
            await find()
        except UnknownTopicError:
            if reason := illegal_name(topic) or self.service().engine.name_collision(topic):
                raise InvalidTopicError(reason, "topic") from None
            topics = ready_topics(self._topics)
            if not topics.auto_create:
                raise
            require_create(topic)
            await topics.create_on_use(topic)
            await find()
            note_change("CREATE_TOPIC", f"TOPIC:{topic}")

    async def _topic(self, topic: str) -> Topic:
        return await find_topic(self.service().engine, topic)

    async def _partition(self, topic: str, number: int) -> Partition:
        return await find_partition(self.service().engine, topic, number)


def _partition_of(batch: RequestBatch, partitions: int) -> int:
    """Return the partition of a batch without one.

    Raises:
        KeyFieldError: the keys differ, or the producer would not know where a repeat goes.
    """
    if len(batch.keys) > 1:
        raise KeyFieldError("the records of one request have the same key here")
    (key,) = batch.keys
    if key is not None:
        return partition_for_key(key, partitions)
    if batch.identity is not None and is_key_name(batch.identity.name):
        return partition_for_key(batch.identity.name.encode(), partitions)
    if batch.identity is not None:
        raise KeyFieldError(
            "a producer that numbers its requests sends records with a key here, or names the"
            " partition: a repeated request must reach the same one"
        )
    return random.randrange(partitions)  # noqa: S311 - no secret


def _content(partition: Partition, page: Page) -> bytes:
    """Make the JSON of a `RecordsAnswer` from records that are JSON already."""
    start = partition.log.start_offset
    end = max(partition.known_end, page.next_offset) if partition.incomplete else page.end_offset
    numbers = f'"next_offset":{page.next_offset},"log_start":{start},"log_end":{end}'
    return b"".join((b'{"records":[', page.records, b"],", numbers.encode(), b"}"))


def append_description() -> dict[str, Any]:
    """Describe an append for OpenAPI: its headers and body are not parsed by FastAPI."""
    schema = AppendRequest.model_json_schema()
    kinds = schema.pop("$defs", {})
    return {
        "parameters": [
            _header(PRODUCER_ID, {"type": "string"}, "1 to 256 bytes of UTF-8, all visible"),
            _header(PRODUCER_EPOCH, _NUMBER, "higher each time the producer restarts"),
            _header(PRODUCER_SEQ, _NUMBER, "counts requests, from 0 in each epoch"),
            _header(
                IDEMPOTENCY_KEY,
                {"type": "string"},
                f"1 to {KEY_BYTES_MAX} characters; of the requests with it one is stored",
            ),
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": _inlined(schema, kinds)},
                "application/x-ndjson": {
                    "schema": {"type": "string"},
                    "example": '{"value": "tea"}\n{"value": "coffee"}\n',
                },
                "application/octet-stream": {
                    "schema": {"type": "string", "format": "binary"},
                },
            },
        },
    }


def _header(name: str, schema: Mapping[str, Any], text: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": text}


def _inlined(schema: Any, kinds: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """Replace references in a JSON schema by their definitions."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _inlined(kinds[schema["$ref"].rpartition("/")[2]], kinds)
        return {key: _inlined(value, kinds) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_inlined(each, kinds) for each in schema]
    return schema
