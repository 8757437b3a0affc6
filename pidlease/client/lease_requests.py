"""Lease requests of a producer, one at a time, with a back-off after those that failed."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from pidlease.client.errors import LeaseRefusedError, LeaseUnavailableError
from pidlease.client.lease_client import Answer, LeaseClient
from pidlease.client.partition_queue import Host, PartitionQueue
from pidlease.core.lease import NO_PID, LeaseWanted

_log = logging.getLogger(__name__)

TAKEN: Final = 409
GONE: Final = 410
NOT_FOUND: Final = 404
#: After so many seconds without a response, the log says so.
_SLOW_S: Final = 1.0


class GrantedName(NamedTuple):
    """The last grant of a name that this producer knows of."""

    pid: int
    generation: int


class TakenError(Exception):
    """The name was granted to another producer since."""


class LeaseRequests:
    """Sends the lease requests of a producer.

    Attributes:
        obstacle: why there is no lease yet; empty: no request has failed.
    """

    def __init__(self, host: Host, leases: LeaseClient) -> None:
        self._host: Final = host
        self._leases: Final = leases
        self._name: Final = host.settings.name
        self._policy: Final = host.settings.policy
        self.obstacle: str = ""
        self._failures = 0

    async def lease(self, pid: int, partitions: Sequence[PartitionQueue]) -> Sequence[Answer]:
        """Lease for partitions.

        Parameters:
            pid: the PID; -1: a new one, or the name's under its next generation.
        """
        name = self._name if pid == NO_PID else None
        wanted = [
            LeaseWanted(each.topic, each.partition, pid, name, self._policy) for each in partitions
        ]
        return await self._ask(wanted)

    async def renew(
        self, held: GrantedName, partitions: Sequence[PartitionQueue]
    ) -> Sequence[Answer]:
        """Lease the name's next PID; a repeated request gets the same PID as a lost response had.

        Raises:
            TakenError: another producer has the name by now.
        """
        wanted = [
            LeaseWanted(
                each.topic, each.partition, held.pid, self._name, self._policy, renew=True,
                generation=held.generation,
            )
            for each in partitions
        ]  # fmt: skip
        answers = await self._ask(wanted)
        if any(is_refusal(each, TAKEN) for each in answers):
            raise TakenError
        return answers

    async def _ask(self, wanted: Sequence[LeaseWanted]) -> Sequence[Answer]:
        """Send the request once; after a failure, return when the back-off is over.

        The caller repeats it, with the partitions that are to be leased by then: one without a
        lease must keep neither others waiting nor the PID from being replaced.
        """
        answers = await self._ask_once(wanted)
        reasons = [each for each in answers if isinstance(each, LeaseUnavailableError)]
        if len(reasons) < len(answers):
            self.obstacle, self._failures = "", 0
            return answers
        self._hindered(str(reasons[0]))
        self._failures += 1
        await asyncio.sleep(self._host.backoff(self._failures))
        return answers

    async def _ask_once(self, wanted: Sequence[LeaseWanted]) -> Sequence[Answer]:
        timer = self._host.loop.call_later(_SLOW_S, self._slow)
        try:
            return await self._leases.lease_pids(wanted)
        except (LeaseRefusedError, LeaseUnavailableError) as error:
            return [error] * len(wanted)
        finally:
            timer.cancel()

    def _slow(self) -> None:
        if not self.obstacle:  # the error of an earlier request says more
            self._hindered(f"no lease from {self._leases.url}: no response within {_SLOW_S:g} s")

    def _hindered(self, why: str) -> None:
        """Note why there is no lease; log each reason once, not with each retry."""
        level = logging.INFO if why == self.obstacle else logging.WARNING
        _log.log(level, "%s", why)
        self.obstacle = why


def is_refusal(answer: Answer, status: int) -> bool:
    """Return whether a lease was refused with a status."""
    return isinstance(answer, LeaseRefusedError) and answer.status == status
