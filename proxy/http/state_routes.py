"""POST /v1/servers/states: the states of this server's producers, for servers that follow them."""

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from starlette.responses import Response

from pidlease.core.topic_partition import TopicPartition
from pidlease.engine.engine import Engine
from pidlease.engine.state_feeds import StateFeeds, UnknownFeedError
from pidlease.http_api.state_messages import (
    STATE_OFFSETS_PATH,
    STATES_PATH,
    OffsetsAnswer,
    OffsetsRequest,
    PullRequest,
)
from pidlease.storage.errors import LogError
from pidlease.storage.state_updates import FeedRequest
from proxy.http.errors import ready_engine
from proxy.http.server_routes import NotSharedError
from proxy.http.unique_keys import UniqueKeysRoute

#: Of an Arrow stream.
_MEDIA_TYPE: Final = "application/vnd.apache.arrow.stream"


def state_router(engine: Callable[[], Engine | None]) -> APIRouter:
    """Make the routes.

    Parameters:
        engine: returns the engine; None while there is none yet.
    """
    router = APIRouter(route_class=UniqueKeysRoute)

    def feeds() -> StateFeeds:
        found = ready_engine(engine).feeds
        if found is None:
            raise NotSharedError("this server shares no cluster; it runs without --shared")
        return found

    @router.post(STATES_PATH, include_in_schema=False)
    async def pull(request: PullRequest) -> Response:
        from pidlease.storage.state_stream import encode_updates  # noqa: PLC0415 - pyarrow

        current = ready_engine(engine)
        wanted = FeedRequest(
            request.feed, request.number, request.noted,
            [TopicPartition(*name) for name in request.add],
            [TopicPartition(*name) for name in request.drop], request.ends,
        )  # fmt: skip
        try:
            found = await feeds().pull(wanted)
        except UnknownFeedError as error:
            return PlainTextResponse(str(error), HTTPStatus.CONFLICT)
        except LogError as error:
            return PlainTextResponse(str(error), HTTPStatus.SERVICE_UNAVAILABLE)
        content = await current.pool.run(partial(encode_updates, found, current.names))
        return Response(content, media_type=_MEDIA_TYPE)

    @router.post(STATE_OFFSETS_PATH, include_in_schema=False)
    async def offsets(request: OffsetsRequest) -> OffsetsAnswer:
        names = [TopicPartition(*name) for name in request.partitions]
        return OffsetsAnswer(offsets=feeds().offsets(names))

    return router
