"""/v1/servers/...: drain an active server, and divide the slots anew.

A member changes its own entry, so a drain is sent on to the member that it is for. Any member may
divide the slots.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final

import structlog
from fastapi import APIRouter, FastAPI, Path, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from pidlease.coordination.members import MembersError
from pidlease.engine.engine import Engine
from pidlease.engine.shared_cluster import LastServerError, SharedCluster
from pidlease.http_api.problems import Problem
from pidlease.http_api.server_messages import Rebalanced, ServerChange, ServerSlots
from proxy.http.current_caller import note_change
from proxy.http.errors import ready_engine, refusal
from proxy.http.openapi import JSON_BODY, refusals
from proxy.http.owner_requests import OwnerRequests, OwnerUnreachableError
from proxy.http.unique_keys import UniqueKeysRoute
from proxy.security.acls import CLUSTER_NAME

#: How long a drain waits for the last slot. Slots move in milliseconds.
_DRAIN_SECONDS: Final = 10.0
_SHARED: Final = (Problem.NOT_SHARED, Problem.COORDINATOR_UNAVAILABLE)

_log = structlog.get_logger(__name__)

_NodeId = Annotated[int, Path(ge=1, le=2**31 - 1, description="the server's id as a broker")]


class NotSharedError(Exception):
    """The server shares no cluster."""


class UnknownServerError(Exception):
    """No active server has this node id."""


def server_router(engine: Callable[[], Engine | None], owners: OwnerRequests) -> APIRouter:
    """Make the routes that change active servers.

    Parameters:
        engine: returns the engine; None while there is none yet.
        owners: sends a change on to another member.
    """
    router = APIRouter(prefix="/v1/servers", tags=["operations"], route_class=UniqueKeysRoute)

    def shared() -> SharedCluster:
        found = ready_engine(engine).shared_cluster
        if found is None:
            raise NotSharedError("this server shares no cluster; it runs without --shared")
        return found

    @router.post("/rebalance", operation_id="rebalance_servers", responses=refusals(*_SHARED))
    async def rebalance() -> Rebalanced:
        """Divide the slots anew by the partitions that there are now. The fewest slots move."""
        moved = await shared().rebalance()
        note_change("REBALANCE_SERVERS", f"CLUSTER:{CLUSTER_NAME}")
        return Rebalanced(moved=moved)

    @router.patch(
        "/{node_id}", operation_id="change_server", response_model=ServerSlots,
        responses=refusals(
            *JSON_BODY, *_SHARED, Problem.UNKNOWN_SERVER, Problem.LAST_SERVER, Problem.NOT_OWNER,
            Problem.SERVER_UNREACHABLE,
        ),
    )  # fmt: skip
    async def change(node_id: _NodeId, change: ServerChange, request: Request) -> Any:  # noqa: ANN401 - a model, or another member's response
        """Drain an active server, or end that. A drain waits 10 s at most for the slots to move.

        A drained server serves on, and sends requests on to the owners. It owns nothing until the
        drain is ended, or its process is started again.
        """
        current = shared()
        member = current.view.members.get(node_id)
        if member is None:
            raise UnknownServerError(f"no active server has node id {node_id}; GET /v1/servers")
        if node_id != current.node_id:
            return await owners.change(request, member, change.model_dump())
        _log.info("a request changes this server", draining=change.draining)
        if change.draining:
            await current.drain(_DRAIN_SECONDS)
        else:
            await current.undrain()
        operation = "DRAIN_SERVER" if change.draining else "UNDRAIN_SERVER"
        note_change(operation, f"SERVER:{node_id}")
        slots = current.view.slots.count(node_id)
        return ServerSlots(
            node_id=node_id, server=member.server, draining=change.draining, slots=slots
        )

    return router


def add_server_handlers(app: FastAPI) -> None:
    """Give the errors of these routes the common form."""
    kinds: dict[type[Exception], Problem] = {
        NotSharedError: Problem.NOT_SHARED,
        UnknownServerError: Problem.UNKNOWN_SERVER,
        LastServerError: Problem.LAST_SERVER,
        MembersError: Problem.COORDINATOR_UNAVAILABLE,
        OwnerUnreachableError: Problem.SERVER_UNREACHABLE,
    }

    async def refuse(_: Request, error: Exception) -> Response:
        found: JSONResponse = refusal(kinds[type(error)], str(error))
        return found

    for kind in kinds:
        app.add_exception_handler(kind, refuse)
