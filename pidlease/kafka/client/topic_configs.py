"""Settings of topics and brokers in Kafka (DescribeConfigs)."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from pidlease.kafka.api import API_DESCRIBE_CONFIGS
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.exchange import ask, request_for
from pidlease.kafka.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from pidlease.kafka.errors import UpstreamError
from pidlease.observability.loggers import Logger
from pidlease.observability.repeated_lines import LINES

#: Kinds of resources that have settings (org.apache.kafka.common.config.ConfigResource).
TOPIC: Final = 2
BROKER: Final = 4
_PRODUCERS: Final = "producer.id.expiration.ms"
_TRANSACTIONAL_IDS: Final = "transactional.id.expiration.ms"
_CLEANUP: Final = "cleanup.policy"
#: Topics in one request.
_TOPICS_MAX: Final = 500

_log = Logger(__name__)


class IdExpirations(NamedTuple):
    """How long Kafka remembers unused ids, in ms; 0: unknown.

    Attributes:
        producers_ms: producer ids that do not write.
        transactional_ids_ms: transactional ids without a transaction.
    """

    producers_ms: int
    transactional_ids_ms: int


async def id_expirations(
    brokers: Iterable[int], connection_to: Callable[[int], Awaitable[BrokerConnection]]
) -> IdExpirations:
    """Return the shortest expirations that any broker has.

    Parameters:
        brokers: the brokers to ask.
        connection_to: returns a connection to one of them.

    Raises:
        UpstreamError: a response is invalid.
    """
    found: list[IdExpirations] = []
    for broker in brokers:
        try:
            connection = await connection_to(broker)
        except UpstreamError as error:
            LINES.write(_log, "warning", "a broker does not return its settings", broker,
                        broker=broker, error=str(error))  # fmt: skip
            continue
        found_settings = await describe_configs(
            connection, BROKER, [str(broker)], (_PRODUCERS, _TRANSACTIONAL_IDS)
        )
        settings = found_settings.get(str(broker), {})
        found.append(IdExpirations(
            *(int(settings.get(key) or 0) for key in (_PRODUCERS, _TRANSACTIONAL_IDS))
        ))  # fmt: skip
    return IdExpirations(
        min((each.producers_ms for each in found), default=0),
        min((each.transactional_ids_ms for each in found), default=0),
    )


async def compacted(connection: BrokerConnection, topics: Iterable[str]) -> dict[str, bool | None]:
    """Return for topics whether Kafka removes their records by their keys; None: it does not say.

    Topics that the broker does not know are left out: it may lag.

    Parameters:
        connection: to the broker to ask.
        topics: their names.

    Raises:
        UpstreamError: it does not respond.
    """
    names = list(topics)
    found: dict[str, bool | None] = {}
    for start in range(0, len(names), _TOPICS_MAX):
        some = names[start : start + _TOPICS_MAX]
        for result in await _described(connection, TOPIC, some, (_CLEANUP,)):
            if result.error_code.value == UNKNOWN_TOPIC_OR_PARTITION:
                continue
            policy = next((each.value for each in result.configs if each.name == _CLEANUP), None)
            found[str(result.resource_name)] = None if policy is None else "compact" in str(policy)
    return found


async def describe_configs(
    connection: BrokerConnection, kind: int, names: Sequence[str], keys: tuple[str, ...]
) -> dict[str, dict[str, str | None]]:
    """Return settings by resource and key; a resource with an error is left out.

    Parameters:
        connection: to the broker to ask.
        kind: TOPIC or BROKER.
        names: of the resources.
        keys: of the settings.

    Raises:
        UpstreamError: it does not respond.
    """
    return {
        str(result.resource_name): {str(each.name): each.value for each in result.configs}
        for result in await _described(connection, kind, names, keys)
        if not result.error_code.value
    }


async def _described(
    connection: BrokerConnection, kind: int, names: Sequence[str], keys: tuple[str, ...]
) -> tuple[Any, ...]:
    """Return the broker's result for each resource, as for `describe_configs`."""
    request = request_for(connection, API_DESCRIBE_CONFIGS)
    resources = tuple(
        request.part("DescribeConfigsResource", resource_type=kind, resource_name=name,
                     configuration_keys=keys)
        for name in names
    )  # fmt: skip
    body = request.encode(resources=resources, include_synonyms=False, include_documentation=False)
    response: Any = await ask(connection, request, body)
    results: tuple[Any, ...] = response.results
    return results
