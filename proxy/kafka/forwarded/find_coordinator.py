"""FindCoordinator with Kafka as the log: returns this server, which forwards to the coordinator."""

from typing import Final

from kio.schema.errors import ErrorCode

from pidlease.kafka.api import API_FIND_COORDINATOR
from pidlease.kafka.client.coordinators import GROUP, TRANSACTION, Coordinators
from pidlease.kafka.codec.messages import Response, read_request_slowly
from pidlease.kafka.codec.metadata import BrokerAddress
from pidlease.kafka.codec.primitives import RequestHeader

_FIND_MANY_FROM: Final = 4


class FindCoordinatorApi:
    """Handles FindCoordinator.

    Parameters:
        coordinators: Kafka's.
        own: this server.
    """

    def __init__(self, coordinators: Coordinators, own: BrokerAddress) -> None:
        self._coordinators = coordinators
        self._own = own

    async def answer(self, header: RequestHeader, frame: bytearray) -> bytes:
        """Return this server for each key with a coordinator that can be reached.

        Raises:
            MalformedError: the frame is not a valid request.
            UpstreamError: Kafka does not answer.
        """
        request = await read_request_slowly(header, frame)
        response = Response(API_FIND_COORDINATOR, header.version)
        kind = getattr(request, "key_type", GROUP)
        if header.version < _FIND_MANY_FROM:
            found = await self._found(kind, request.key)
            return response.encode(header.correlation_id, **found)
        rows = tuple([
            response.part("Coordinator", key=key, **await self._found(kind, key))
            for key in request.coordinator_keys
        ])  # fmt: skip
        return response.encode(header.correlation_id, coordinators=rows)

    async def _found(self, kind: int, key: str) -> dict[str, object]:
        if kind not in (GROUP, TRANSACTION):
            return _error(ErrorCode.invalid_request, f"there are no coordinators of type {kind}")
        answer = await self._coordinators.find(kind, key)
        if answer.error_code.value:
            return _error(answer.error_code, answer.error_message)
        if not await self._coordinators.is_reachable(int(answer.node_id)):
            # A client that got this server would connect and lose each request: librdkafka gives
            # up a commit after two retries. Without a coordinator it waits.
            return _error(ErrorCode.coordinator_not_available, "it cannot be reached now")
        return {
            "node_id": self._own.node_id,
            "host": self._own.host,
            "port": self._own.port,
            "error_code": ErrorCode.none,
            "error_message": None,
        }


def _error(code: ErrorCode, message: str | None) -> dict[str, object]:
    return {
        "node_id": -1, "host": "", "port": -1, "error_code": code, "error_message": message,
    }  # fmt: skip
