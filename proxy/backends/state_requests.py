"""Asks other active servers for the states of their producers."""

import ssl
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ValidationError

from pidlease.coordination.members import Member
from pidlease.core.producer_names import ProducerNames
from pidlease.core.topic_partition import TopicPartition
from pidlease.engine.state_follower import FeedGoneError, FollowError
from pidlease.http_api.state_messages import (
    STATE_OFFSETS_PATH,
    STATES_PATH,
    OffsetsAnswer,
    OffsetsRequest,
    PullRequest,
)
from pidlease.storage.io_pool import IoPool
from pidlease.storage.snapshot_rows import SnapshotError
from pidlease.storage.state_updates import FeedRequest, StateUpdates
from proxy.http.forwarding_headers import marked_headers
from proxy.http.owner_requests import UNKNOWN_THERE, member_client, other_tls

if TYPE_CHECKING:
    import httpx

_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 1.5
#: The longest answer that is read: the most rows of an answer take a tenth of it.
_BYTES_MAX: Final = 64 << 20
_TEXT_MAX: Final = 500


class HttpStateRequests:
    """Asks over HTTP (implements `StateRequests`).

    Parameters:
        tls: of connections to other servers; None: they have no TLS.
        names: gets the producer ids of policy epoch.
        pool: threads to decode states.
    """

    def __init__(self, tls: ssl.SSLContext | None, names: ProducerNames, pool: IoPool) -> None:
        self._tls: Final = tls
        self._names: Final = names
        self._pool: Final = pool
        self._client: httpx.AsyncClient | None = None
        self._closed = False

    async def pull(self, member: Member, request: FeedRequest) -> StateUpdates:
        """Return what has changed since the last request of a feed (`StateRequests.pull`)."""
        from pidlease.storage.state_stream import decode_updates  # noqa: PLC0415 - pyarrow

        body = PullRequest.model_validate(request._asdict())
        content = await self._post(member, STATES_PATH, body)
        try:
            return await self._pool.run(partial(decode_updates, content, self._names))
        except SnapshotError as error:
            raise FollowError(f"{member.server} sends {error}") from error

    async def offsets(self, member: Member, names: Sequence[TopicPartition]) -> list[int]:
        """Return up to which offset a server knows partitions (`StateRequests.offsets`)."""
        request = OffsetsRequest(partitions=list(names))
        content = await self._post(member, STATE_OFFSETS_PATH, request)
        try:
            found = OffsetsAnswer.model_validate_json(content).offsets
        except ValidationError as error:
            raise FollowError(f"{member.server} answers something else: {error}") from error
        if len(found) != len(names):
            raise FollowError(f"{member.server} answers for {len(found)} of {len(names)}")
        return found

    async def close(self) -> None:
        """Close the connections."""
        self._closed = True
        if self._client is not None:
            await self._client.aclose()

    async def _post(self, member: Member, path: str, request: BaseModel) -> bytes:
        import httpx  # noqa: PLC0415 - only several active servers need it

        if reason := other_tls(member, self._tls) or ("this server stops" if self._closed else ""):
            raise FollowError(reason)
        client = self._client
        if client is None:
            client = self._client = member_client(self._tls, _SECONDS, _CONNECT_SECONDS)
        headers = {**marked_headers(), "content-type": "application/json"}
        content = bytearray()
        try:
            async with client.stream(
                "POST", f"{member.http_url}{path}", content=request.model_dump_json(),
                headers=headers,
            ) as found:  # fmt: skip
                async for part in found.aiter_bytes():
                    content += part
                    if len(content) > _BYTES_MAX:
                        raise FollowError(f"{member.server} answers more than {_BYTES_MAX} bytes")
        except (httpx.HTTPError, OSError) as error:
            raise FollowError(
                f"{member.server} does not answer ({type(error).__name__})"
            ) from error
        if found.status_code == HTTPStatus.OK:
            return bytes(content)
        text = content[:_TEXT_MAX].decode(errors="replace")
        if found.status_code == HTTPStatus.CONFLICT:
            raise FeedGoneError(f"{member.server}: {text}")
        if found.status_code == HTTPStatus.UNAUTHORIZED:
            text = UNKNOWN_THERE
        if found.status_code == HTTPStatus.NOT_FOUND:
            text = "it is of an older version"
        raise FollowError(f"{member.server} answers {found.status_code}: {text}")
