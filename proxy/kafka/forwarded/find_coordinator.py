"""FindCoordinator with Kafka as the log: returns this server, which forwards to the coordinator."""

from typing import Final

from kio.schema.errors import ErrorCode

from pidlease.kafka.api import API_FIND_COORDINATOR
from pidlease.kafka.client.coordinators import GROUP, TRANSACTION, Coordinators
from pidlease.kafka.codec.messages import Response, read_request_slowly
from pidlease.kafka.codec.metadata import BrokerAddress
from pidlease.kafka.codec.primitives import RequestHeader
from proxy.kafka.brokers import Brokers

_FIND_MANY_FROM: Final = 4


class FindCoordinatorApi:
    """Handles FindCoordinator.

    Parameters:
        coordinators: Kafka's.
        brokers: has the address of this server.
    """

    def __init__(self, coordinators: Coordinators, brokers: Brokers) -> None:
        self._coordinators = coordinators
        self._brokers = brokers

    async def answer(self, header: RequestHeader, frame: bytearray, listener: str) -> bytes:
        """Return this server for each key with a coordinator that can be reached.

        Parameters:
            listener: the name of the one on which the request came.

        Raises:
            MalformedError: the frame is not a valid request.
            UpstreamError: Kafka does not answer.
        """
        request = await read_request_slowly(header, frame)
        response = Response(API_FIND_COORDINATOR, header.version)
        kind, own = getattr(request, "key_type", GROUP), self._brokers.own(listener)
        if header.version < _FIND_MANY_FROM:
            found = await self._found(kind, request.key, own)
            return response.encode(header.correlation_id, **found)
        rows = tuple([
            response.part("Coordinator", key=key, **await self._found(kind, key, own))
            for key in request.coordinator_keys
        ])  # fmt: skip
        return response.encode(header.correlation_id, coordinators=rows)

    async def _found(self, kind: int, key: str, own: BrokerAddress) -> dict[str, object]:
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
            "node_id": own.node_id,
            "host": own.host,
            "port": own.port,
            "error_code": ErrorCode.none,
            "error_message": None,
        }


def _error(code: ErrorCode, message: str | None) -> dict[str, object]:
    return {
        "node_id": -1, "host": "", "port": -1, "error_code": code, "error_message": message,
    }  # fmt: skip
