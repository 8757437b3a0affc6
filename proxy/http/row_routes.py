"""POST /v1/servers/rows: the active server that keeps the coordinator's rows puts those of another.

A request names the process that it is for by a number that only readers of the rows know.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Protocol

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from starlette.responses import Response

from pidlease.coordination.journal.journal import (
    JournalConflictError,
    JournalError,
    NotRegistrarError,
)
from pidlease.coordination.journal.put_request import PUT_PATH, PutRequest

_STATUS: Final[dict[type[Exception], HTTPStatus]] = {
    NotRegistrarError: HTTPStatus.MISDIRECTED_REQUEST,
    JournalConflictError: HTTPStatus.CONFLICT,
    JournalError: HTTPStatus.SERVICE_UNAVAILABLE,
}


class RowsTarget(Protocol):
    """The coordinator's rows in Kafka, if this server may be the one that keeps them."""

    async def serve(self, request: PutRequest) -> None:
        """Put rows for another active server.

        Raises:
            NotRegistrarError: this server does not keep them; nothing was put.
            JournalConflictError: something else than expected is there.
            JournalError: they may have been put or not.
        """


def row_router(rows: Callable[[], RowsTarget | None]) -> APIRouter:
    """Make the route.

    Parameters:
        rows: the coordinator's rows in Kafka; None: this server keeps none.
    """
    router = APIRouter()

    @router.post(PUT_PATH, include_in_schema=False)
    async def put_rows(request: PutRequest) -> Response:
        target = rows()
        if target is None:
            return PlainTextResponse("this server keeps no rows", HTTPStatus.MISDIRECTED_REQUEST)
        try:
            await target.serve(request)
        except tuple(_STATUS) as error:
            return PlainTextResponse(str(error), _STATUS[type(error)])
        return Response(status_code=HTTPStatus.NO_CONTENT)

    return router
