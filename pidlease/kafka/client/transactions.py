"""Fences a partition's earlier writers by Kafka's producer epoch and an empty aborted transaction.

InitProducerId raises the epoch of a transactional id. The abort marker takes the new epoch to the
partition's leader, which rejects older epochs from then on; consumers do not see the marker. So all
that an earlier writer ever stored precedes the marker. (KIP-98; tried on Kafka 4.1.1 with the
versions in SENT_VERSIONS. By newer versions the broker raises epochs itself, and then fences plain
batches of the same producer: KIP-890.)
"""

import asyncio
import datetime
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from pidlease.core.backoff import Backoff
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.api import (
    API_ADD_PARTITIONS_TO_TXN,
    API_DESCRIBE_TRANSACTIONS,
    API_END_TXN,
    API_INIT_PRODUCER_ID,
)
from pidlease.kafka.client.cluster import Cluster
from pidlease.kafka.client.coordinators import TRANSACTION, Coordinators, NoCoordinatorError
from pidlease.kafka.client.exchange import ask, request_for
from pidlease.kafka.error_codes import COORDINATOR_MOVED, TRANSACTION_BUSY
from pidlease.kafka.errors import (
    UpstreamAwayError,
    UpstreamError,
    UpstreamNonsenseError,
    UpstreamRefusedError,
)
from pidlease.kafka.records.writer_batch import Writer
from pidlease.observability.loggers import Logger
from pidlease.observability.repeated_lines import LINES

#: Kafka's own producer ids are below this number, those that pidlease leases are not.
_PIDS_OF_KAFKA: Final = 1 << 48
#: The prefix of the transactional ids of all writers; no client may use it.
WRITERS_PREFIX: Final = "pidlease/"
#: The topic of the coordinator's rows, which no client may read or write. Where it exists, a server
#: has served the cluster before.
SERVED_TOPIC: Final = "__pidlease"

#: The transaction ends at once; if that fails, Kafka aborts it after this time.
_TRANSACTION: Final = datetime.timedelta(seconds=15)
#: How long to retry, in seconds; not longer than a response may take.
_SECONDS: Final = 20.0
_BACKOFF: Final = Backoff(0.02, 1.0)

_log = Logger(__name__)


class _NotServedError(UpstreamRefusedError):
    """The coordinator is of an earlier version of Kafka."""


class Fencing:
    """Fences earlier writers of a partition by Kafka's own producer epoch.

    Parameters:
        cluster: the connections to brokers.
        coordinators: of transactional ids.
    """

    def __init__(self, cluster: Cluster, coordinators: Coordinators) -> None:
        self._cluster: Final = cluster
        self._coordinators: Final = coordinators

    async def raise_epoch(self, place: TopicPartition) -> Writer:
        """Become the partition's writer at Kafka's coordinator.

        Raises:
            UpstreamError: it failed, or the outcome is unknown.
        """
        response = await self._ask(
            place, API_INIT_PRODUCER_ID, lambda response: response.error_code,
            transactional_id=self._id(place), transaction_timeout=_TRANSACTION,
        )  # fmt: skip
        writer = Writer(int(response.producer_id), int(response.producer_epoch))
        if not (0 <= writer.pid < _PIDS_OF_KAFKA and writer.epoch >= 0):
            error = f"Kafka returns {writer} as the writer of {place}: no valid producer"
            LINES.write(_log, "error", "a response of Kafka is invalid", str(place),
                        error=error)  # fmt: skip
            raise UpstreamNonsenseError(error)
        return writer

    async def mark(self, place: TopicPartition, writer: Writer) -> None:
        """Have Kafka append the writer's marker to the partition, soon after this returns.

        Raises:
            UpstreamError: it failed, or the outcome is unknown.
        """
        of = {"transactional_id": self._id(place), "producer_id": writer.pid,
              "producer_epoch": writer.epoch}  # fmt: skip
        await self._ask(
            place, API_ADD_PARTITIONS_TO_TXN, _of_partition,
            **{f"v3_and_below_{name}": value for name, value in of.items()},
        )  # fmt: skip
        await self._ask(
            place, API_END_TXN, lambda response: response.error_code, **of, committed=False
        )

    async def current(self, place: TopicPartition) -> Writer | None:
        """Return a partition's writer; None: the coordinator cannot return it (before Kafka 3.0).

        Raises:
            UpstreamError: it does not respond.
        """
        try:
            response = await self._ask(
                place, API_DESCRIBE_TRANSACTIONS,
                lambda response: _only(response.transaction_states).error_code,
                transactional_ids=(self._id(place),),
            )  # fmt: skip
        except _NotServedError:
            return None
        found = response.transaction_states[0]
        return Writer(int(found.producer_id), int(found.producer_epoch))

    def _id(self, place: TopicPartition) -> str:
        cluster = self._cluster.view.cluster_id
        return f"{WRITERS_PREFIX}{cluster}/{place.topic}/{place.partition}"

    async def _ask(
        self, place: TopicPartition, api_key: int, code_of: Callable[[Any], ErrorCode],
        **values: object,
    ) -> Any:  # fmt: skip # noqa: ANN401 - one of kio's classes
        """Send a request to the coordinator, until it is neither busy nor another one.

        Raises:
            UpstreamError: there was no success in time, or the request is refused.
        """
        writer = f"the writer of {place} ({self._id(place)})"
        latest = time.monotonic() + min(_SECONDS, self._cluster.config.request_seconds)
        failures = 0
        while True:
            try:
                response = await self._once(place, api_key, values)
                code = code_of(response)
            except UpstreamRefusedError:
                raise
            except UpstreamError as error:
                self._coordinators.forget()
                reason = str(error)
            else:
                if not code.value:
                    return response
                reason = f"Kafka returns {code.name.upper()} ({code.value})"
                if code in COORDINATOR_MOVED:
                    self._coordinators.forget()
                elif code not in TRANSACTION_BUSY:
                    raise UpstreamRefusedError(f"{writer}: {reason}", code.value)
            if time.monotonic() >= latest:
                raise UpstreamAwayError(f"{writer}: {reason}")
            failures += 1
            await asyncio.sleep(_BACKOFF.seconds(failures))

    async def _once(self, place: TopicPartition, api_key: int, values: dict[str, object]) -> Any:  # noqa: ANN401
        try:
            broker = await self._coordinators.of(TRANSACTION, self._id(place))
        except NoCoordinatorError as error:
            if error.code is ErrorCode.transactional_id_authorization_failed:
                raise UpstreamRefusedError(str(error), error.code.value) from error
            raise
        connection = await self._cluster.connection_to(broker)
        if api_key not in connection.versions:
            raise _NotServedError(f"broker {broker} does not serve API {api_key}")
        request = request_for(connection, api_key)
        if api_key == API_ADD_PARTITIONS_TO_TXN:
            topic = request.part(
                "AddPartitionsToTxnTopic", name=place.topic, partitions=(place.partition,)
            )
            values = {**values, "v3_and_below_topics": (topic,)}
        return await ask(connection, request, request.encode(**values))


def _of_partition(response: Any) -> ErrorCode:  # noqa: ANN401 - one of kio's classes
    topic = _only(response.results_by_topic_v3_and_below)
    found: ErrorCode = _only(topic.results_by_partition).partition_error_code
    return found


def _only(rows: Sequence[Any]) -> Any:  # noqa: ANN401 - one of kio's classes
    """Return the only row of a response.

    Raises:
        UpstreamNonsenseError: there are none, or more.
    """
    if len(rows) != 1:
        raise UpstreamNonsenseError(f"a response with {len(rows)} rows instead of one")
    return rows[0]
