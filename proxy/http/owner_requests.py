"""Sends requests about a partition to the active server that owns it: one hop, inside.

A load balancer hides the servers, so clients reach any of them. A redirect would show them, and
many clients drop their credentials when they follow one.
"""

import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from fastapi import Request
from pydantic import ValidationError
from starlette.responses import Response

from pidlease.coordination.members import Member
from pidlease.core.byte_budget import ByteBudget
from pidlease.core.lease import Lease, LeaseWanted
from pidlease.core.topic_partition import TopicPartition
from pidlease.engine.engine import Engine
from pidlease.engine.lease_service import UnknownPidError
from pidlease.engine.member_pings import SilentError
from pidlease.engine.named_leases import NameBusyError
from pidlease.http_api.lease_messages import LeaseAnswer
from pidlease.http_api.problems import Problem
from pidlease.http_api.record_messages import WAIT_MS_MAX
from proxy.http.errors import refusal
from proxy.http.forwarding_headers import FORWARDED, marked_headers, sent_on_headers
from proxy.http.request_memory import HeldBytes

if TYPE_CHECKING:
    import httpx

#: Why a member responds 401: a client that it does not know would get that from this server.
UNKNOWN_THERE: Final = "its --server-principals have no user of this server's certificate"
#: The response's header with the name of the owner.
_OWNER: Final = "Pidlease-Owner"
#: Headers of a request that are sent on; none of them is about the connection.
_SENT_ON: Final = (
    "content-type", "content-encoding", "accept", "producer-id", "producer-epoch", "producer-seq",
    "idempotency-key",
)  # fmt: skip
#: Headers of a response that are sent back.
_SENT_BACK: Final = ("content-type", "retry-after")
#: Requests in flight to one owner; more wait. Their bodies are bounded by the memory of appends in
#: flight.
_CONNECTIONS_MAX: Final = 200
_KEPT_MAX: Final = 50
_SECONDS: Final = 60.0
#: A read may wait for records at the owner.
_READ_SECONDS: Final = _SECONDS + WAIT_MS_MAX / 1000
_CONNECT_SECONDS: Final = 5.0


class OwnerUnreachableError(Exception):
    """The owner of a partition does not answer, or is unknown."""


def _check_known(found: "httpx.Response", member: Member) -> None:
    """Check that a member has not refused this server: its client can do nothing about that.

    Raises:
        OwnerUnreachableError: it has.
    """
    if found.status_code == HTTPStatus.UNAUTHORIZED:
        raise OwnerUnreachableError(f"{member.server} refuses this server: {UNKNOWN_THERE}")


def other_tls(member: Member, tls: ssl.SSLContext | None) -> str:
    """Return why nothing is sent to a member: only one of the servers has TLS; empty: it may be."""
    if member.http_url.startswith("https:") == (tls is not None):
        return ""
    return (
        f"{member.server} is at {member.http_url}, and this server has"
        f" {'TLS' if tls is not None else 'no TLS'}: all active servers need the same"
        " --http-security-protocol"
    )


def member_client(
    tls: ssl.SSLContext | None,
    seconds: float,
    connect_seconds: float,
    **options: Any,  # noqa: ANN401 - of httpx
) -> "httpx.AsyncClient":
    """Make a client for requests to other active servers.

    Parameters:
        tls: of the connections; None: they have no TLS.
        seconds: how long each step of a request may take, except
        connect_seconds: to connect.
        options: others of httpx's client.
    """
    import httpx  # noqa: PLC0415 - only several active servers need it

    return httpx.AsyncClient(
        timeout=httpx.Timeout(seconds, connect=connect_seconds),
        trust_env=False,
        verify=tls or False,  # without TLS, members are reached by http only
        **options,
    )


class OwnerRequests:
    """Sends requests on to owners of partitions.

    Parameters:
        engine: returns the engine; None while there is none yet.
        tls: of connections to other servers; None: they have no TLS.
        transport: for tests; None: the network.
    """

    def __init__(
        self,
        engine: Callable[[], Engine | None],
        tls: ssl.SSLContext | None = None,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        self._engine: Final = engine
        self._tls: Final = tls
        self._transport: Final = transport
        #: By address, and whether they are for reads. Each has connections of its own: an owner
        #: that hangs holds up no other one, and reads that wait hold up no appends.
        self._clients: Final[dict[tuple[str, bool], httpx.AsyncClient]] = {}

    async def close(self) -> None:
        """Close the connections to owners."""
        clients = list(self._clients.values())
        self._clients.clear()
        for each in clients:
            await each.aclose()

    async def send_on(
        self, request: Request, partition: TopicPartition, body: bytes, budget: ByteBudget
    ) -> Response:
        """Have the owner of a partition serve a request.

        Parameters:
            partition: one that another server owns.
            body: of the request; the caller accounts for its memory.
            budget: the memory for the response.

        Returns:
            The owner's response, or an error: 421 if the request was sent on already, 503 if the
            owner does not answer.
        """
        if FORWARDED in request.headers:
            text = f"{partition} is not served here: the servers disagree; try again"
            return refusal(Problem.NOT_OWNER, text)
        # As they came: a producer id is UTF-8, and one that comes twice is for the owner to refuse.
        headers = [each for each in request.headers.raw if each[0].decode("latin-1") in _SENT_ON]
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        try:
            owner = self._owner(partition)
            with HeldBytes(budget) as held:
                found = await self._send(owner, request.method, target, headers, body, held)
        except OwnerUnreachableError as error:
            return refusal(Problem.APPEND_FAILED, str(error))
        back = {name: found.headers[name] for name in _SENT_BACK if name in found.headers}
        return Response(found.content, found.status_code, {**back, _OWNER: owner.server})

    async def change(self, request: Request, member: Member, change: dict[str, Any]) -> Response:
        """Have a member serve a request to change it.

        Returns:
            Its response, or an error: 421 if the request was sent on already.

        Raises:
            OwnerUnreachableError: it does not answer; whether it has changed is unknown.
        """
        import httpx  # noqa: PLC0415 - only several active servers need it

        if FORWARDED in request.headers:
            text = f"{member.server} is not this server: the servers disagree; try again"
            return refusal(Problem.NOT_OWNER, text)
        try:
            async with self._answering(member):
                client = await self._connected(member)
                found = await client.request(
                    request.method, member.http_url + request.url.path, json=change,
                    headers=sent_on_headers(),
                )  # fmt: skip
        except (SilentError, httpx.HTTPError, OSError) as error:
            raise OwnerUnreachableError(
                f"{member.server} did not answer ({type(error).__name__}); look at"
                " `pidlease servers`, and try again"
            ) from error
        _check_known(found, member)
        back = {name: found.headers[name] for name in _SENT_BACK if name in found.headers}
        return Response(found.content, found.status_code, back)

    async def ask(self, wanted: LeaseWanted) -> Lease:
        """Ask the owner of a partition where a PID continues on it.

        Raises:
            UnknownPidError: the PID's lease has ended.
            NameBusyError: the owner cannot be asked now; try again.
        """
        import httpx  # noqa: PLC0415 - only several active servers need it

        partition = TopicPartition(wanted.topic, wanted.partition)
        try:
            owner = self._owner(partition)
            async with self._answering(owner):
                client = await self._connected(owner)
                # The client's right to the lease was checked here: the question is this server's.
                response = await client.post(
                    f"{owner.http_url}/v1/leases", json=wanted.body(), headers=marked_headers()
                )
        except (OwnerUnreachableError, SilentError, httpx.HTTPError, OSError) as error:
            raise NameBusyError(f"the owner of {partition} cannot be asked now: {error}") from error
        if response.status_code == HTTPStatus.GONE:
            raise UnknownPidError(f"PID {wanted.pid} is not leased on {partition}; lease a new one")
        try:
            if response.status_code != HTTPStatus.OK:
                raise NameBusyError(
                    f"the owner of {partition} answers {response.status_code}; try again"
                )
            answer = LeaseAnswer.model_validate_json(response.content)
        except ValidationError as error:
            raise NameBusyError(f"the owner of {partition} answers something else") from error
        return Lease(
            wanted.topic, wanted.partition, answer.pid, answer.generation, answer.next_sequence,
            answer.resume_at, answer.expire_ms, name=answer.name or None,
        )  # fmt: skip

    def _owner(self, partition: TopicPartition) -> Member:
        """Return the owner of a partition.

        Raises:
            OwnerUnreachableError: there is none, it does not answer pings, or it is this server,
                which takes it over.
        """
        engine = self._engine()
        shared = None if engine is None else engine.shared_cluster
        owner = None if shared is None else shared.owner_of(partition)
        if shared is None or owner is None or owner.node_id == shared.node_id:
            raise OwnerUnreachableError(f"{partition} is being taken over; try again")
        if owner.node_id in shared.pings.silent:
            text = f"{owner.server} owns {partition} and does not answer; try again"
            raise OwnerUnreachableError(text)
        return owner

    async def _send(
        self,
        owner: Member,
        method: str,
        target: str,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        held: HeldBytes,
    ) -> "httpx.Response":
        """Send a request to an owner.

        Raises:
            OwnerUnreachableError: it does not answer; whether it did anything is unknown.
            NoRoomError: there is no memory for its response.
        """
        import httpx  # noqa: PLC0415 - only several active servers need it

        client = await self._connected(owner, reads=method == "GET")
        own = [(name.encode(), value.encode()) for name, value in sent_on_headers().items()]
        request = client.build_request(
            method, owner.http_url + target, content=body, headers=[*headers, *own]
        )
        try:
            async with self._answering(owner):
                found = await client.send(request, stream=True)
                try:
                    held.more(int(found.headers.get("content-length", "0")))
                    await found.aread()
                finally:
                    await found.aclose()
        except (SilentError, httpx.HTTPError, OSError, ValueError) as error:
            raise OwnerUnreachableError(
                f"{owner.server} owns the partition and did not answer ({type(error).__name__});"
                " whether it has done this is unknown; send it again"
            ) from error
        _check_known(found, owner)
        return found

    def _answering(self, member: Member) -> AbstractAsyncContextManager[None]:
        """Do something with a member while it answers pings; SilentError: it does not."""
        engine = self._engine()
        shared = None if engine is None else engine.shared_cluster
        return nullcontext() if shared is None else shared.pings.while_answering(member.node_id)

    async def _connected(self, member: Member, *, reads: bool = False) -> "httpx.AsyncClient":
        """Return the connections to a member; close those to servers that are none any more.

        Parameters:
            reads: whether they are for reads.

        Raises:
            OwnerUnreachableError: only one of the two servers has TLS.
        """
        import httpx  # noqa: PLC0415 - only several active servers need it

        if reason := other_tls(member, self._tls):
            raise OwnerUnreachableError(reason)
        found = self._clients.get((member.http_url, reads))
        if found is not None:
            return found
        engine = self._engine()
        shared = None if engine is None else engine.shared_cluster
        members = () if shared is None else shared.view.members.values()
        known = {each.http_url for each in members}
        gone = [each for each in self._clients if each[0] not in known]
        found = self._clients[member.http_url, reads] = member_client(
            self._tls,
            _READ_SECONDS if reads else _SECONDS,
            _CONNECT_SECONDS,
            limits=httpx.Limits(
                max_connections=_CONNECTIONS_MAX, max_keepalive_connections=_KEPT_MAX
            ),
            transport=self._transport,
        )
        for each in [self._clients.pop(key) for key in gone]:
            await each.aclose()
        return found
