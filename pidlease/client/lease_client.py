"""Leases PIDs over HTTP (lease_pid)."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import httpx

from pidlease.client.errors import LeaseRefusedError, LeaseUnavailableError
from pidlease.http_api.lease_messages import LEASES_MAX, NO_PID

_TOO_MANY: Final = 429
_SERVER_ERRORS: Final = range(500, 600)
#: The Date header of a response has whole seconds.
_DATE_STEP_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class LeaseWanted:
    """A lease request.

    Attributes:
        pid: -1: a new one, or the name's; else one that was leased before.
        name: of the producer; None: it has none, or the PID implies it.
        policy: strict or monotonic.
        renew: the name's lease is about to end: lease a new PID.
        generation: with name, pid and renew: renew only if both are still the name's last grant;
            -1: take over the name from its current producer.
    """

    topic: str
    partition: int
    pid: int = NO_PID
    name: str | None = None
    policy: str = "strict"
    renew: bool = False
    generation: int = -1

    def body(self) -> dict[str, Any]:
        """Return the JSON fields of the request; fields with default values are left out."""
        body: dict[str, Any] = {"topic": self.topic, "partition": self.partition, "pid": self.pid}
        if self.name is not None:
            body |= {"name": self.name, "policy": self.policy, "renew": self.renew}
        if self.generation >= 0:
            body["generation"] = self.generation
        return body


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease on a partition.

    Attributes:
        generation: the generation to use.
        sequence_number: first_sequence of the first batch.
        resume_at: the sequence number of the first record; above sequence_number only after the
            name has got a new PID.
        expire_ms: when the lease ends, in ms since 1970 by the server's clock; -1: unknown.
        ends_at: the same in seconds of this process's monotonic clock; infinite: unknown.
    """

    topic: str
    partition: int
    pid: int
    generation: int
    sequence_number: int
    resume_at: int
    expire_ms: int
    ends_at: float
    name: str | None = None


class LeaseClient:
    """Leases PIDs from a server.

    Parameters:
        url: of the HTTP port, `http://HOST:PORT`.
        timeout_s: of a request.
        transport: for tests; None: the network.
    """

    def __init__(
        self, url: str, *, timeout_s: float = 30, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._http: Final = httpx.AsyncClient(
            base_url=url, timeout=timeout_s, transport=transport, trust_env=False
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def lease_pid(self, topic: str, partition: int, pid: int = NO_PID) -> Lease:
        """Lease a PID for a partition, or the next sequence number of a known PID.

        Parameters:
            pid: one that was leased before; -1: a new one.

        Raises:
            LeaseRefusedError: the server refuses the lease.
            LeaseUnavailableError: the server cannot lease now; try again.
        """
        return await self._one(LeaseWanted(topic, partition, pid))

    async def lease_named(
        self,
        topic: str,
        partition: int,
        name: str,
        *,
        policy: str = "strict",
        renew: bool = False,
    ) -> Lease:
        """Lease a name's PID under its next generation: older ones are fenced from then on.

        Parameters:
            name: of the producer, 1 to 256 bytes.
            policy: strict or monotonic.
            renew: the lease is about to end, and no batch is in flight: lease a new PID.

        Raises:
            LeaseRefusedError: the server refuses the lease.
            LeaseUnavailableError: the server cannot lease now; try again.
        """
        return await self._one(LeaseWanted(topic, partition, NO_PID, name, policy, renew))

    async def _one(self, wanted: LeaseWanted) -> Lease:
        (answer,) = await self.lease_pids([wanted])
        if isinstance(answer, Lease):
            return answer
        raise answer

    async def lease_pids(
        self, wanted: Sequence[LeaseWanted]
    ) -> list[Lease | LeaseRefusedError | LeaseUnavailableError]:
        """Request several leases at once; the server grants or refuses each one.

        Parameters:
            wanted: at most 1000. Those of one name get the same generation.

        Raises:
            LeaseRefusedError: the server refuses the whole request.
            LeaseUnavailableError: the server cannot lease now; try again.
        """
        if not 1 <= len(wanted) <= LEASES_MAX:
            raise ValueError(f"{len(wanted)} leases at once; 1 to {LEASES_MAX}")
        bodies = [each.body() for each in wanted]
        single = len(wanted) == 1
        path, body = ("", bodies[0]) if single else ("/batch", {"leases": bodies})
        asked = _Moment(time.monotonic(), time.time())
        try:
            response = await self._http.post("/v1/leases" + path, json=body)
            return _answers(response, len(wanted), asked)
        except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
            text = f"no lease from {self._http.base_url}: {error!r}"
            raise LeaseUnavailableError(text) from None


_Answer = Lease | LeaseRefusedError | LeaseUnavailableError


class _Moment(NamedTuple):
    """A moment in seconds of this process's monotonic clock, and of the machine's clock."""

    monotonic: float
    wall: float


def _answers(response: httpx.Response, count: int, asked: _Moment) -> list[_Answer]:
    """Decode a response.

    Parameters:
        count: how many leases were requested.
        asked: when the request was sent. A lease's time counts from then: a response that comes
            late, or is read late, must not make it look longer than it is.

    Raises:
        LeaseRefusedError, LeaseUnavailableError: of the whole request.
        ValueError, KeyError, TypeError, AttributeError: it is not a valid response.
    """
    body = response.json()
    if response.status_code != httpx.codes.OK:
        raise _refusal(str(body["error"]), response.status_code, body.get("field"))
    rows = [body] if count == 1 else body["leases"]
    if len(rows) != count:
        raise ValueError(f"{len(rows)} answers where {count} are due")
    server_ms = _server_ms(response, asked)
    return [_lease(row, asked.monotonic, server_ms) for row in rows]


def _refusal(
    text: str, status: int, field: str | None = None
) -> LeaseRefusedError | LeaseUnavailableError:
    if status == _TOO_MANY or status in _SERVER_ERRORS:
        return LeaseUnavailableError(f"{text} (HTTP {status})")
    return LeaseRefusedError(text, status, field)


def _lease(row: dict[str, Any], asked: float, server_ms: float) -> _Answer:
    if row.get("error"):
        return _refusal(row["error"], row["status"])
    expire_ms = row["expire_ms"]
    ends_at = asked + (expire_ms - server_ms) / 1000 if expire_ms >= 0 else float("inf")
    sequence = row["sequence_number"]
    return Lease(
        topic=row["topic"],
        partition=row["partition"],
        pid=row["pid"],
        generation=row["generation"],
        sequence_number=sequence,
        resume_at=row.get("resume_at", sequence),
        expire_ms=expire_ms,
        ends_at=ends_at,
        name=row.get("name") or None,
    )


def _server_ms(response: httpx.Response, asked: _Moment) -> float:
    """Return the server's time at the request, or a little later, in ms since 1970.

    It is by this machine's clock if that agrees with the response's Date header, which has whole
    seconds; otherwise it is the end of the Date's second.
    """
    try:
        there = parsedate_to_datetime(response.headers["Date"]).timestamp()
    except (KeyError, ValueError):
        return asked.wall * 1000
    # The second may have begun while the response was sent.
    late = min(time.monotonic() - asked.monotonic, _DATE_STEP_S)
    if there - late <= asked.wall <= there + _DATE_STEP_S:
        return asked.wall * 1000
    return (there + _DATE_STEP_S) * 1000
