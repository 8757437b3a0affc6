"""The coordinators of groups and of transactional ids."""

from collections.abc import Sequence
from typing import Any, Final

import structlog
from kio.schema.errors import ErrorCode

from pidlease.kafka.api import API_FIND_COORDINATOR
from pidlease.kafka.client.cluster import Cluster
from pidlease.kafka.errors import UpstreamAwayError, UpstreamError
from pidlease.observability.repeated_lines import LINES

GROUP: Final = 0
TRANSACTION: Final = 1
#: Coordinators that are remembered.
_KNOWN_MAX: Final = 100_000

_log = structlog.get_logger(__name__)


class NoCoordinatorError(UpstreamAwayError):
    """Kafka names no coordinator.

    Attributes:
        code: why.
    """

    def __init__(self, key: str, code: ErrorCode) -> None:
        super().__init__(f"no coordinator of {key!r}: {code.name}")
        self.code = code


class Coordinators:
    """Finds the coordinators of groups and transactional ids, and remembers them.

    Parameters:
        cluster: finds them.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
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
            answer = await self.find(kind, key)
            if answer.error_code.value:
                raise NoCoordinatorError(key, answer.error_code)
            broker = int(answer.node_id)
        return broker

    def forget(self) -> None:
        """One of them did not answer: all are asked for again."""
        self._known.clear()

    async def is_reachable(self, broker: int) -> bool:
        """Whether a broker takes connections. One that died may be named for seconds more."""
        try:
            await self._cluster.connection_to(broker)
        except UpstreamError as error:
            LINES.write(_log, "info", "a coordinator cannot be reached", broker,
                        broker=broker, error=str(error))  # fmt: skip
            return False
        return True

    async def split(self, kind: int, keys: Sequence[str]) -> dict[int, list[str]]:
        """Which broker coordinates which of them.

        Raises:
            UpstreamError: it cannot be found out now.
        """
        found: dict[int, list[str]] = {}
        for key in keys:
            found.setdefault(await self.of(kind, key), []).append(key)
        return found

    async def find(self, kind: int, key: str) -> Any:  # noqa: ANN401 - one of kio's classes
        """Ask for one; the answer, whatever it is.

        Raises:
            UpstreamError: there is none.
        """
        answer = await self._cluster.ask(API_FIND_COORDINATOR, key=key, key_type=kind)
        self._known.pop((kind, key), None)
        if not answer.error_code.value:
            if answer.node_id not in self._cluster.view.brokers:
                await self._cluster.look()
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[kind, key] = int(answer.node_id)
        return answer
