"""Who coordinates which group and which transactional id; clients are told that we do."""

from collections.abc import Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from pidlease.storage.upstream.cluster import Cluster
from pidlease.storage.upstream.errors import UpstreamAwayError
from pidlease.storage.upstream.messages import FIND_COORDINATOR
from proxy.kafka.config import NODE_ID, ClusterConfig
from proxy.kafka.messages import Response, read_request_slowly
from proxy.kafka.wire import RequestHeader

GROUP: Final = 0
TRANSACTION: Final = 1
#: One key in a request, which every broker understands.
_VERSIONS: Final = (1, 3)
_FIND_MANY_FROM: Final = 4
#: Coordinators that are remembered.
_KNOWN_MAX: Final = 100_000


class NoCoordinatorError(UpstreamAwayError):
    """Kafka names no coordinator.

    Attributes:
        code: why.
    """

    def __init__(self, key: str, code: ErrorCode) -> None:
        super().__init__(f"no coordinator of {key!r}: {code.name}")
        self.code = code


class Coordinators:
    """See the module's text.

    Parameters:
        cluster: who is asked.
        config: how the server describes itself.
    """

    def __init__(self, cluster: Cluster, config: ClusterConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._known: dict[tuple[int, str], int] = {}

    async def of(self, kind: int, key: str) -> int:
        """The broker that coordinates; asked for once, and again when a client asks for it.

        Parameters:
            kind: GROUP or TRANSACTION.
            key: the group, or the transactional id.

        Raises:
            UpstreamError: it cannot be found out now.
        """
        broker = self._known.get((kind, key))
        if broker is None:
            answer = await self._find(kind, key)
            if answer.error_code.value:
                raise NoCoordinatorError(key, answer.error_code)
            broker = int(answer.node_id)
        return broker

    def forget(self) -> None:
        """One of them did not answer: all are asked for again."""
        self._known.clear()

    async def split(self, kind: int, keys: Sequence[str]) -> dict[int, list[str]]:
        """Which broker coordinates which of them.

        Raises:
            UpstreamError: it cannot be found out now.
        """
        found: dict[int, list[str]] = {}
        for key in keys:
            found.setdefault(await self.of(kind, key), []).append(key)
        return found

    async def _find(self, kind: int, key: str) -> Any:
        answer = await self._cluster.ask(FIND_COORDINATOR, _VERSIONS, key=key, key_type=kind)
        self._known.pop((kind, key), None)
        if not answer.error_code.value:
            if answer.node_id not in self._cluster.view.brokers:
                await self._cluster.look()
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[kind, key] = int(answer.node_id)
        return answer

    async def answer(self, header: RequestHeader, frame: bytearray) -> bytes:
        """Answer FindCoordinator: the proxy, wherever Kafka has one.

        Raises:
            MalformedRequestError: it is none.
            UpstreamError: Kafka cannot be asked.
        """
        request = await read_request_slowly(header, frame)
        response = Response(FIND_COORDINATOR, header.version)
        kind = getattr(request, "key_type", GROUP)
        if header.version < _FIND_MANY_FROM:
            found = await self._told(kind, request.key)
            return response.encode(header.correlation_id, **found)
        rows = tuple([
            response.part("Coordinator", key=key, **await self._told(kind, key))
            for key in request.coordinator_keys
        ])  # fmt: skip
        return response.encode(header.correlation_id, coordinators=rows)

    async def _told(self, kind: int, key: str) -> dict[str, object]:
        if kind not in (GROUP, TRANSACTION):
            return _error(ErrorCode.invalid_request, f"there are no coordinators of type {kind}")
        answer = await self._find(kind, key)
        if answer.error_code.value:
            return _error(answer.error_code, answer.error_message)
        return {
            "node_id": NODE_ID,
            "host": self._config.host,
            "port": self._config.port,
            "error_code": ErrorCode.none,
            "error_message": None,
        }


def _error(code: ErrorCode, message: str | None) -> dict[str, object]:
    return {
        "node_id": -1, "host": "", "port": -1, "error_code": code, "error_message": message,
    }  # fmt: skip
