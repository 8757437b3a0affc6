"""What Kafka says of its own settings (DescribeConfigs), as far as it matters here."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import structlog

from pidlease.kafka.api import API_DESCRIBE_CONFIGS
from pidlease.kafka.client.broker_connection import BrokerConnection, version_for
from pidlease.kafka.client.exchange import ask
from pidlease.kafka.codec.messages import Request
from pidlease.kafka.errors import UpstreamError
from pidlease.observability.repeated_lines import LINES

#: Types of what has settings (org.apache.kafka.common.config.ConfigResource).
_TOPIC: Final = 2
_BROKER: Final = 4
_PRODUCERS: Final = "producer.id.expiration.ms"
_TRANSACTIONAL_IDS: Final = "transactional.id.expiration.ms"
_CLEANUP: Final = "cleanup.policy"
#: Topics that are asked for at once.
_AT_ONCE: Final = 500

_log = structlog.get_logger(__name__)


class Kept(NamedTuple):
    """How long Kafka remembers unused ids, in ms; 0: unknown.

    Attributes:
        producers_ms: producers that have not written,
        transactional_ids_ms: and transactional ids without a transaction.
    """

    producers_ms: int
    transactional_ids_ms: int


async def kept_ms(
    brokers: Iterable[int], connection_to: Callable[[int], Awaitable[BrokerConnection]]
) -> Kept:
    """How long Kafka remembers: the shortest that a broker is set to.

    Parameters:
        brokers: those that are asked.
        connection_to: a connection to one.

    Raises:
        UpstreamError: a response is invalid.
    """
    found: list[Kept] = []
    for broker in brokers:
        try:
            connection = await connection_to(broker)
        except UpstreamError as error:
            LINES.write(_log, "warning", "a broker does not return its settings", broker,
                        broker=broker, error=str(error))  # fmt: skip
            continue
        found_settings = await _ask(
            connection, _BROKER, [str(broker)], (_PRODUCERS, _TRANSACTIONAL_IDS)
        )
        settings = found_settings.get(str(broker), {})
        found.append(
            Kept(*(int(settings.get(key) or 0) for key in (_PRODUCERS, _TRANSACTIONAL_IDS)))
        )
    return Kept(
        min((each.producers_ms for each in found), default=0),
        min((each.transactional_ids_ms for each in found), default=0),
    )


async def compacted(connection: BrokerConnection, topics: Iterable[str]) -> dict[str, bool]:
    """Of which topics Kafka removes records by their keys.

    Parameters:
        connection: to the broker that is asked.
        topics: their names; those of which it does not say it are left out.

    Raises:
        UpstreamError: it does not answer.
    """
    names = list(topics)
    found: dict[str, bool] = {}
    for start in range(0, len(names), _AT_ONCE):
        found_settings = await _ask(
            connection, _TOPIC, names[start : start + _AT_ONCE], (_CLEANUP,)
        )
        for name, settings in found_settings.items():
            if settings.get(_CLEANUP) is not None:
                found[name] = "compact" in str(settings[_CLEANUP])
    return found


async def _ask(
    connection: BrokerConnection, kind: int, names: Sequence[str], keys: tuple[str, ...]
) -> dict[str, dict[str, str | None]]:
    request = Request(API_DESCRIBE_CONFIGS, version_for(connection, API_DESCRIBE_CONFIGS))
    resources = tuple(
        request.part("DescribeConfigsResource", resource_type=kind, resource_name=name,
                     configuration_keys=keys)
        for name in names
    )  # fmt: skip
    body = request.encode(resources=resources, include_synonyms=False, include_documentation=False)
    answer: Any = await ask(connection, request, body)
    return {
        str(result.resource_name): {str(each.name): each.value for each in result.configs}
        for result in answer.results
        if not result.error_code.value
    }
