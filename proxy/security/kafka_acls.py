"""Kafka's own ACLs: read every few seconds, and kept while Kafka is away."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

import structlog

from pidlease.coordination.shared_call import SharedCall
from pidlease.kafka.client.acl_requests import create_acls, delete_acls, describe_acls
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.cluster import Cluster
from pidlease.kafka.errors import UpstreamAwayError, UpstreamError, UpstreamRefusedError
from pidlease.observability.repeated_lines import LINES, kind_of
from proxy.security.acls import Acl, AclError, AclIndex, Pattern, Permission, acl_of
from proxy.security.authorizer import Authorizer

#: How often the ACLs are read.
_READ_SECONDS: Final = 5.0
#: The least time between two reads, however many changes wait for one.
_REST_SECONDS: Final = 0.05
#: How long to wait until a broker has applied a change that Kafka has confirmed.
_SEEN_SECONDS: Final = 10.0
#: More are not read.
ACLS_MAX: Final = 100_000
_PATTERNS: Final = frozenset(Pattern)
_PERMISSIONS: Final = frozenset(Permission)

_log = structlog.get_logger(__name__)


class KafkaAcls:
    """Puts Kafka's ACLs in force, and changes them.

    Parameters:
        authorizer: decides by them.
    """

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer: Final = authorizer
        self._cluster: Cluster | None = None
        self._broker = -1
        self._read_at: float | None = None
        #: The bytes of the response that has the ACLs in force.
        self._content = b""
        self._reading: asyncio.Task[None] | None = None
        self._read: Final = SharedCall(self._read_now, rest_seconds=_REST_SECONDS)

    async def start(self, cluster: Cluster) -> None:
        """Read the ACLs, and read them every few seconds from now on.

        Raises:
            UpstreamRefusedError: Kafka has no authorizer, or does not let this server read them.
            UpstreamError: no broker responds.
        """
        self._cluster = cluster
        acls = await self._read()
        if self._reading is None:
            _log.info("Kafka's ACLs are in force", entries=len(acls))
            self._reading = asyncio.create_task(self._read_often())

    async def close(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading

    @property
    def age_seconds(self) -> float | None:
        """How old the ACLs in force are; None: they have not been read yet."""
        return None if self._read_at is None else time.monotonic() - self._read_at

    # ------------------------------------------------------------------ changes

    async def create(self, creations: Iterable[Mapping[str, object]]) -> Any:
        """Have Kafka add ACLs, and return its response.

        Raises:
            UpstreamError: there is no response.
        """
        return await create_acls(await self._connection(), creations)

    async def delete(self, filters: Iterable[Mapping[str, object]]) -> Any:
        """Have Kafka delete ACLs, and return its response.

        Raises:
            UpstreamError: there is no response.
        """
        return await delete_acls(await self._connection(), filters)

    async def wait_until(self, seen: Callable[[frozenset[Acl]], bool]) -> None:
        """Read the ACLs until a change that Kafka has confirmed is in force here.

        A broker applies a change a moment after the response. If it takes long, this returns
        nevertheless: Kafka has stored the change, and a later read finds it.
        """
        error = "no broker returns it yet"
        with suppress(TimeoutError):
            async with asyncio.timeout(_SEEN_SECONDS):
                while True:  # `_read` rests between two calls
                    try:
                        if seen(await self._read()):
                            return
                    except UpstreamError as failure:
                        error = str(failure)
        _log.warning("a change of Kafka's ACLs is not in force here yet", error=error)

    # ------------------------------------------------------------------ reads

    async def _read_often(self) -> None:
        failed = False
        while True:
            await asyncio.sleep(_READ_SECONDS)
            try:
                await self._read()
            except Exception as error:  # noqa: BLE001 - the next read may succeed
                failed = True
                bug = None if isinstance(error, UpstreamError) else error
                LINES.write(
                    _log, "error", "Kafka's ACLs were not read; the previous ones stay in force",
                    kind_of(error), bug, error=str(error), age_seconds=round(self.age_seconds or 0),
                )  # fmt: skip
            else:
                if failed:
                    _log.info("Kafka's ACLs are read again", entries=len(self._authorizer.acls))
                failed = False

    async def _read_now(self) -> frozenset[Acl]:
        began = time.monotonic()
        content, response = await describe_acls(await self._connection(), self._content)
        if response is not None:
            known = None if self._read_at is None else self._authorizer.acls
            index = await asyncio.to_thread(_changed_index, response, known)
            if index is not None:
                self._authorizer.replace(index)
            self._content = content
        self._read_at = began
        return self._authorizer.acls

    async def _connection(self) -> BrokerConnection:
        """Return a connection to the broker that was asked last, if it responds.

        Another one may lag, and return ACLs that were deleted.
        """
        error: UpstreamError = UpstreamAwayError("no broker of Kafka is known")
        cluster = self._cluster
        if cluster is None:
            raise error
        for broker in sorted(cluster.view.brokers, key=lambda each: each != self._broker):
            try:
                connection = await cluster.connection_to(broker)
            except UpstreamError as failure:
                error = failure
            else:
                self._broker = broker
                return connection
        raise error


def _changed_index(response: Any, known: frozenset[Acl] | None) -> AclIndex | None:
    """Return the ACLs of a response; None: they are the known ones.

    Raises:
        UpstreamRefusedError: there are too many, or one that might deny more than is known.
    """
    found: set[Acl] = set()
    for resource in response.resources:
        for each in resource.acls:
            acl = acl_in(resource, each)
            if acl is not None:
                found.add(acl)
            if len(found) > ACLS_MAX:
                raise UpstreamRefusedError(f"Kafka has more than {ACLS_MAX} ACLs")
    index = AclIndex(found)
    return None if index.acls == known else index


def acl_in(resource: Any, entry: Any) -> Acl | None:
    """Return an ACL of a response of Kafka; None: its kind or operation is of a newer Kafka.

    Nothing that this server decides about has such a kind or operation.

    Raises:
        UpstreamRefusedError: its pattern or permission is unknown: it might deny anything.
    """
    pattern, permission = int(resource.pattern_type), int(entry.permission_type)
    try:
        return acl_of(resource.resource_type, pattern, resource.resource_name, entry)
    except AclError as error:
        if pattern not in _PATTERNS or permission not in _PERMISSIONS:
            raise UpstreamRefusedError(
                f"an ACL of Kafka for {resource.resource_name!r} is of a kind that this version of"
                f" pidlease does not know: {error}"
            ) from None
        LINES.write(_log, "warning", "an ACL of Kafka counts for nothing here", str(error),
                    name=resource.resource_name, principal=entry.principal, reason=str(error)
                    )  # fmt: skip
        return None
