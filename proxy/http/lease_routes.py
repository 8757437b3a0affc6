"""POST /v1/leases and /v1/leases/batch: lease PIDs."""

import asyncio
from collections.abc import Callable
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from pidlease.core.lease import Lease, LeaseWanted
from pidlease.engine.engine import Engine
from pidlease.engine.lease_service import LeaseService
from pidlease.http_api.lease_messages import (
    LeaseAnswer,
    LeaseBatchAnswer,
    LeaseBatchRequest,
    LeaseRequest,
)
from pidlease.http_api.problems import Problem
from proxy.http.current_caller import note_change, require_lease, shown_name
from proxy.http.errors import REFUSALS, problem_of, ready_engine
from proxy.http.forwarding_headers import FORWARDED
from proxy.http.model_response import model_response
from proxy.http.openapi import JSON_BODY, refusals
from proxy.http.owner_requests import OwnerRequests
from proxy.http.unique_keys import UniqueKeysRoute

#: The route of a single lease.
LEASES_PATH: Final = "/v1/leases"
#: Leases granted before other tasks run.
_AT_ONCE: Final = 100
_REFUSALS: Final = refusals(
    *JSON_BODY,
    Problem.INVALID_NAME,
    Problem.NAME_REQUIRED,
    Problem.WRONG_POLICY,
    Problem.UNKNOWN_TOPIC,
    Problem.UNKNOWN_PARTITION,
    Problem.NAME_CONFLICT,
    Problem.NAME_TAKEN,
    Problem.UNKNOWN_PID,
    Problem.NOT_OWNER,
    Problem.TOPIC_NOT_READY,
    Problem.PARTITION_STOPPED,
    Problem.NAME_BUSY,
    Problem.NAMES_UNAVAILABLE,
    Problem.PIDS_UNAVAILABLE,
)


class LeaseRoutes:
    """The routes for leases.

    Parameters:
        engine: returns the engine; None while there is none yet.
        owners: asks other active servers about their partitions.
        cluster_id: returns the id of the cluster; empty while it is not known.
    """

    def __init__(
        self,
        engine: Callable[[], Engine | None],
        owners: OwnerRequests,
        cluster_id: Callable[[], str],
    ) -> None:
        self._engine: Final = engine
        self._owners: Final = owners
        self._cluster_id: Final = cluster_id
        self.router: Final = APIRouter(tags=["leases"], route_class=UniqueKeysRoute)
        self.router.add_api_route(
            LEASES_PATH, self.lease, methods=["POST"], response_model=LeaseAnswer,
            operation_id="lease_pid", responses=_REFUSALS,
        )  # fmt: skip
        #: The route of `lease`.
        self.lease_route: Final = self.router.routes[-1]
        self.router.add_api_route(
            f"{LEASES_PATH}/batch", self.lease_batch, methods=["POST"],
            operation_id="lease_pids", responses=refusals(*JSON_BODY),
        )  # fmt: skip

    async def lease(self, request: LeaseRequest, raw: Request) -> Response:
        """Lease a PID for a partition, or ask where a leased one continues."""
        require_lease(request.name, request.topic)
        wanted = LeaseWanted(**request.model_dump())
        ask = None if FORWARDED in raw.headers else self._owners.ask
        service = LeaseService(ready_engine(self._engine), [wanted], ask)
        return model_response(self._answer(await _leased(service, wanted)))

    async def lease_batch(self, request: LeaseBatchRequest) -> LeaseBatchAnswer:
        """Lease several PIDs, each granted or refused separately; the status is always 200."""
        batch = [LeaseWanted(**each.model_dump()) for each in request.leases]
        service = LeaseService(ready_engine(self._engine), batch, self._owners.ask)
        answers = []
        for number, each in enumerate(batch):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                require_lease(each.name, each.topic)
                answers.append(self._answer(await _leased(service, each)))
            except REFUSALS as error:
                problem, _ = problem_of(error)
                answers.append(
                    LeaseAnswer(
                        topic=each.topic,
                        partition=each.partition,
                        error=str(error),
                        code=problem.code,
                        status=problem.status,
                    )
                )
        return LeaseBatchAnswer(leases=answers)

    def _answer(self, lease: Lease) -> LeaseAnswer:
        return LeaseAnswer(
            topic=lease.topic,
            partition=lease.partition,
            pid=lease.pid,
            generation=lease.generation,
            next_sequence=lease.sequence_number,
            sequence_number=lease.sequence_number,
            expire_ms=lease.expire_ms,
            resume_at=lease.resume_at,
            name=shown_name(lease.name),
            cluster_id=self._cluster_id(),
        )


async def _leased(service: LeaseService, wanted: LeaseWanted) -> Lease:
    """Lease a PID; the audit log gets the name, if there is one."""
    lease = await service.lease(wanted)
    if lease.name and (wanted.name or wanted.assign_name):
        note_change("LEASE_NAME", f"TRANSACTIONAL_ID:{lease.name}")
    return lease
