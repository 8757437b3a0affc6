"""POST /v1/leases: PIDs to write with."""

import asyncio
from collections.abc import Callable
from typing import Final

from fastapi import APIRouter

from pidlease.core.pid import Policy
from pidlease.engine.engine import Engine
from pidlease.engine.lease_service import Ask, LeaseService
from pidlease.http_api.lease_messages import (
    LeaseAnswer,
    LeaseBatchAnswer,
    LeaseBatchRequest,
    LeaseRequest,
)
from proxy.http.errors import REFUSALS, ready_engine, status_of

#: Leases that are granted before others get their turn.
_AT_ONCE: Final = 100


def lease_router(engine: Callable[[], Engine | None]) -> APIRouter:
    """The routes for leases.

    Parameters:
        engine: the engine; None while there is none yet.
    """
    router = APIRouter(prefix="/v1/leases", tags=["leases"])

    def service(asks: list[Ask]) -> LeaseService:
        return LeaseService(ready_engine(engine), asks)

    @router.post("")
    async def lease(request: LeaseRequest) -> LeaseAnswer:
        """Lease a PID for a partition, or ask where one that was leased goes on."""
        ask = _ask(request)
        return await _lease(service([ask]), ask)

    @router.post("/batch")
    async def lease_batch(request: LeaseBatchRequest) -> LeaseBatchAnswer:
        """Several leases at once. Each is granted or refused for itself; the status is 200."""
        asks = [_ask(each) for each in request.leases]
        leases = service(asks)
        answers = []
        for number, each in enumerate(asks):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                answers.append(await _lease(leases, each))
            except REFUSALS as error:
                status, _ = status_of(error)
                answers.append(
                    LeaseAnswer(
                        topic=each.topic,
                        partition=each.partition,
                        error=str(error),
                        status=status,
                    )
                )
        return LeaseBatchAnswer(leases=answers)

    return router


def _ask(request: LeaseRequest) -> Ask:
    return Ask(
        request.topic,
        request.partition,
        request.pid,
        request.generation,
        request.name or "",
        request.assign_name,
        Policy[request.policy.upper()],
        request.renew,
    )


async def _lease(service: LeaseService, ask: Ask) -> LeaseAnswer:
    granted = await service.lease(ask)
    return LeaseAnswer(
        topic=ask.topic,
        partition=ask.partition,
        pid=granted.pid,
        generation=granted.generation,
        sequence_number=granted.sequence_number,
        expire_ms=granted.expire_ms,
        resume_at=granted.resume_at,
        name=granted.name,
    )
