"""/v1/topics/{topic}/partitions/{partition}/records: appending records, and reading them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from pidlease.engine.append_service import AppendService
from pidlease.engine.engine import Engine
from pidlease.engine.partition import Partition
from pidlease.engine.partition_lookup import find_partition
from pidlease.http_api.record_messages import IN_DIGITS, AppendAnswer, ReadQuery, RecordsAnswer
from proxy.http.errors import ready_engine
from proxy.http.record_openapi import append_description
from proxy.http.record_pages import Page
from proxy.http.record_reads import Reads
from proxy.http.record_responses import APPEND_REFUSALS, READ_REFUSALS, appended
from proxy.http.request_batch import BatchMaker
from proxy.http.request_memory import HeldResponse, Room, read_body
from proxy.http.request_producer import by_headers

_PATH: Final = "/v1/topics/{topic}/partitions/{partition}/records"
_THIS: Final = re.compile("/v1/topics/[^/]*/partitions/[^/]*/records/?")
_Topic = Annotated[str, Path(min_length=1, max_length=249)]
_Number = Annotated[int, Path(ge=0, le=2**31 - 1), IN_DIGITS]


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """What records may take.

    Attributes:
        batch_bytes_max: the largest batch, and the longest body that it is made of.
        memory_bytes_max: for appends in flight; and as much for reads and their answers.
    """

    batch_bytes_max: int = 1_048_588
    memory_bytes_max: int = 64 << 20


def reads_own_body(path: str) -> bool:
    """Whether a path is served here: then the body is bounded here, too."""
    return _THIS.fullmatch(path) is not None


class RecordRoutes:
    """The routes for records.

    Parameters:
        engine: the engine; None while there is none yet.
        limits: what records may take.
    """

    def __init__(self, engine: Callable[[], Engine | None], limits: RecordLimits) -> None:
        self._engine = engine
        self._bytes_max: Final = limits.batch_bytes_max
        self._maker: Final = BatchMaker(limits.batch_bytes_max)
        self._append_room: Final = Room(limits.memory_bytes_max)
        self._read_room: Final = Room(limits.memory_bytes_max)
        self._reads: Final = Reads()
        self._service: AppendService | None = None
        self.router: Final = APIRouter(tags=["records"])
        self.router.add_api_route(
            _PATH, self.append, methods=["POST"], response_model=AppendAnswer,
            responses=APPEND_REFUSALS, openapi_extra=append_description(),
        )  # fmt: skip
        self.router.add_api_route(
            _PATH, self.read, methods=["GET"], response_model=RecordsAnswer,
            responses=READ_REFUSALS,
        )  # fmt: skip

    def close(self) -> None:
        """Let reads that wait end with what there is."""
        self._reads.close()

    async def append(self, request: Request, topic: _Topic, partition: _Number) -> Response:
        """Append records, all or none, as one batch.

        With Producer-Id, Producer-Epoch and Producer-Seq, or with a leased PID in the body, a
        request that was answered already is not stored again.
        """
        await self._partition(topic, partition)
        named = by_headers(request.headers)
        way = self._maker.way_of(request)
        with self._append_room.hold() as held:
            body = await read_body(request, self._bytes_max, held)
            pool = self._ready().engine.pool
            batch = await self._maker.make(way, body, named, pool)
            held.more(len(batch.data))
            del body
            # The server may have begun to stop, the topic may have gone, since it was looked at.
            place, service = await self._partition(topic, partition), self._ready()
            outcome = await service.append(
                place, batch.data, batch.identity, repeatable=batch.repeatable
            )
        return appended(outcome, batch.identity)

    async def read(
        self,
        request: Request,
        topic: _Topic,
        partition: _Number,
        query: Annotated[ReadQuery, Query()],
    ) -> Response:
        """Read records from an offset on; the reader keeps its own place."""
        place = await self._partition(topic, partition)
        held = self._read_room.hold()
        try:
            page = await self._reads.page(request, place, query, self._ready().engine.pool)
            content = _content(place, page)
            held.more(len(content))
            return HeldResponse(content, held)
        except BaseException:
            held.release()
            raise

    def _ready(self) -> AppendService:
        current = ready_engine(self._engine)
        if self._service is None or self._service.engine is not current:
            self._service = AppendService(current)
        return self._service

    async def _partition(self, topic: str, number: int) -> Partition:
        return await find_partition(self._ready().engine, topic, number)


def _content(place: Partition, page: Page) -> bytes:
    """See `RecordsAnswer`; put together from records that are JSON already."""
    start = place.log.start_offset
    end = max(place.known_end, page.next_offset)
    numbers = f'"next_offset":{page.next_offset},"log_start":{start},"log_end":{end}'
    return b"".join((b'{"records":[', page.records, b"],", numbers.encode(), b"}"))
