"""The coordinators of groups and of transactional ids."""

from collections.abc import Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from pidlease.kafka.api import API_FIND_COORDINATOR
from pidlease.kafka.client.cluster import Cluster
from pidlease.kafka.errors import UpstreamAwayError, UpstreamError
from pidlease.observability.loggers import Logger
from pidlease.observability.repeated_lines import LINES

GROUP: Final = 0
TRANSACTION: Final = 1
#: Coordinators that are remembered.
_KNOWN_MAX: Final = 100_000
#: The longest group or transactional id of which the coordinator is remembered.
_KEY_MAX: Final = 512

_log = Logger(__name__)


class NoCoordinatorError(UpstreamAwayError):
    """Kafka returns no coordinator.

    Attributes:
        code: Kafka's error code.
    """

    def __init__(self, key: str, code: ErrorCode) -> None:
        super().__init__(f"no coordinator of {key!r}: {code.name}")
        self.code = code


class Coordinators:
    """Finds the coordinators of groups and transactional ids, and remembers them.

    Parameters:
        cluster: the connections to brokers.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[tuple[int, str], int] = {}

    async def of(self, kind: int, key: str) -> int:
        """Return the broker that coordinates: the remembered one, if there is one.

        Parameters:
            kind: GROUP or TRANSACTION.
            key: the group, or the transactional id.

        Raises:
            UpstreamError: there is none now, or no broker responds.
        """
        broker = self._known.get((kind, key))
        if broker is None:
            response = await self.find(kind, key)
            if response.error_code.value:
                raise NoCoordinatorError(key, response.error_code)
            broker = int(response.node_id)
        return broker

    def forget(self) -> None:
        """Forget all coordinators: one of them did not respond."""
        self._known.clear()

    async def is_reachable(self, broker: int) -> bool:
        """Return whether a broker accepts connections. Kafka may return a dead one."""
        try:
            await self._cluster.connection_to(broker)
        except UpstreamError as error:
            LINES.write(_log, "info", "a coordinator cannot be reached", broker,
                        broker=broker, error=str(error))  # fmt: skip
            return False
        return True

    async def split(self, kind: int, keys: Sequence[str]) -> dict[int, list[str]]:
        """Group keys by their coordinators.

        Raises:
            UpstreamError: there is none now, or no broker responds.
        """
        found: dict[int, list[str]] = {}
        for key in keys:
            found.setdefault(await self.of(kind, key), []).append(key)
        return found

    async def find(self, kind: int, key: str) -> Any:  # noqa: ANN401 - one of kio's classes
        """Request a coordinator, and return the response, even if it has an error code.

        Raises:
            UpstreamError: no broker responds.
        """
        response = await self._cluster.ask(API_FIND_COORDINATOR, key=key, key_type=kind)
        self._known.pop((kind, key), None)
        if not response.error_code.value:
            if response.node_id not in self._cluster.view.brokers:
                await self._cluster.refresh()
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            if len(key) <= _KEY_MAX:
                self._known[kind, key] = int(response.node_id)
        return response
