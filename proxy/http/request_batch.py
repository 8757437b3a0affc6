"""A request's body made into a record batch."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.requests import Request

from pidlease.http_api.record_messages import AppendRequest, NewRecord
from pidlease.kafka.records.identity_header import HEADER_KEY, Identity, encode_identity
from pidlease.kafka.records.record_batch import MAGIC
from pidlease.storage.io_pool import IoPool
from proxy.http.record_refusals import BodyTooLongError, WrongTypeError
from proxy.http.request_producer import by_body

#: Bodies that are made into batches on the event loop: one or two milliseconds at most.
_JSON_INLINE_BYTES: Final = 8 << 10
_RAW_INLINE_BYTES: Final = 256 << 10


class NewBatch(NamedTuple):
    """What a body was made into.

    Attributes:
        data: the batch.
        identity: who sends it; None: nobody says so.
        repeatable: whether the same request makes the same content: each record brought its time,
            or none did, and all have the server's.
    """

    data: bytearray
    identity: Identity | None
    repeatable: bool


Build = Callable[[bytearray, Identity | None], NewBatch]


class BatchMaker:
    """Makes batches.

    Parameters:
        bytes_max: the largest batch.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max: Final = bytes_max
        # One large body at a time: what it takes beside its own size comes once, and threads
        # would only take the interpreter from one another.
        self._large: Final = asyncio.Lock()

    def way_of(self, request: Request) -> tuple[Build, int]:
        """How a request's body is to be read, and up to which size on the event loop.

        Raises:
            WrongTypeError: it is of no kind that is taken.
        """
        coding = request.headers.get("content-encoding", "identity")
        if coding.strip().lower() != "identity":
            raise WrongTypeError("Content-Encoding", f"{coding[:50]} is not taken; send it plain")
        kinds = request.headers.getlist("content-type")
        kind = kinds[0].partition(";")[0].strip().lower() if len(kinds) == 1 else ""
        if kind == "application/json":
            return self._of_json, _JSON_INLINE_BYTES
        if kind == "application/octet-stream":
            return self._of_raw, _RAW_INLINE_BYTES
        text = "is application/json, or application/octet-stream for one record's value"
        raise WrongTypeError("Content-Type", text)

    async def make(
        self, way: tuple[Build, int], body: bytearray, named: Identity | None, pool: IoPool
    ) -> NewBatch:
        """Make a batch of a body.

        Parameters:
            way: as `way_of` says.
            body: the body.
            named: who sends it, as the headers say.
            pool: the threads for large ones.

        Raises:
            RequestValidationError: the body says nothing that makes sense.
            WhoError: what it says of its producer does not.
            BodyTooLongError: the batch would be too large.
        """
        build, inline_bytes = way
        if len(body) <= inline_bytes:
            return build(body, named)
        async with self._large:
            return await pool.run(partial(build, body, named))

    def _of_raw(self, body: bytearray, named: Identity | None) -> NewBatch:
        record = NewRecord.model_construct(value=bytes(body), key=None, headers=[])
        return NewBatch(self._build([record], named), named, repeatable=True)

    def _of_json(self, body: bytearray, named: Identity | None) -> NewBatch:
        try:
            request = AppendRequest.model_validate_json(body)
        except ValidationError as error:
            errors = error.errors(include_url=False, include_context=False, include_input=False)
            first = {**errors[0], "loc": ("body", *errors[0]["loc"])}
            raise RequestValidationError([first]) from None
        identity = by_body(request, named)
        repeatable = len({record.timestamp_ms is None for record in request.records}) == 1
        return NewBatch(self._build(request.records, identity), identity, repeatable)

    def _build(self, records: Sequence[NewRecord], identity: Identity | None) -> bytearray:
        builder: Any = DefaultRecordBatchBuilder(MAGIC, 0, 0, -1, -1, -1, self._bytes_max)
        now_ms = time.time_ns() // 1_000_000
        for place, record in enumerate(records):
            headers = [(each.key, each.value) for each in record.headers]
            if identity is not None and place == 0:
                headers.insert(0, (HEADER_KEY.decode(), encode_identity(identity)))
            time_ms = now_ms if record.timestamp_ms is None else record.timestamp_ms
            if builder.append(place, time_ms, record.key, record.value, headers) is None:
                raise self._too_long()
        if builder.size() > self._bytes_max:
            raise self._too_long()
        data: bytearray = builder.build()
        return data

    def _too_long(self) -> BodyTooLongError:
        return BodyTooLongError(
            f"the records make a batch of more than {self._bytes_max} bytes; send less at once"
        )
