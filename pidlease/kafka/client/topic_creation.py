"""Creates, extends, changes and deletes topics of a cluster."""

import datetime
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pidlease.kafka.api import (
    API_CREATE_PARTITIONS,
    API_CREATE_TOPICS,
    API_DELETE_TOPICS,
    API_INCREMENTAL_ALTER_CONFIGS,
)
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.cluster import Cluster
from pidlease.kafka.client.exchange import ask_for, request_for
from pidlease.kafka.codec.messages import Request, error_name

#: The cluster's own number (KIP-464).
BY_DEFAULT: Final = -1
#: Of IncrementalAlterConfigs (KIP-339).
_TOPIC_RESOURCE: Final = 2
_SET: Final = 0
#: How long a cluster may work on a change.
_TIMEOUT: Final = datetime.timedelta(seconds=30)
#: How long its response may take: a little more.
_RESPONSE_SECONDS: Final = 40.0


class RefusedChangeError(Exception):
    """The cluster refuses a change.

    Attributes:
        code: Kafka's error code.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


async def create_topic(
    cluster: Cluster,
    topic: str,
    partitions: int = BY_DEFAULT,
    replication: int = BY_DEFAULT,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Create a topic.

    Parameters:
        partitions: their number; BY_DEFAULT: the cluster's default.
        replication: the number of replicas; BY_DEFAULT: the cluster's default.
        configs: settings of the topic.

    Raises:
        RefusedChangeError: the cluster refuses it.
        UpstreamError: there is no response; the topic may exist now.
    """
    request, connection = await _request(cluster, API_CREATE_TOPICS)
    settings = tuple(
        request.part("CreatableTopicConfig", name=name, value=value)
        for name, value in (configs or {}).items()
    )
    created = request.part(
        "CreatableTopic", name=topic, num_partitions=partitions, replication_factor=replication,
        assignments=(), configs=settings,
    )  # fmt: skip
    body = request.encode(topics=(created,), timeout=_TIMEOUT, validate_only=False)
    _check((await ask_for(connection, body, request.decode, _RESPONSE_SECONDS)).topics)


async def add_partitions(cluster: Cluster, topic: str, total: int) -> None:
    """Let a topic have `total` partitions.

    Raises:
        RefusedChangeError: the cluster refuses it.
        UpstreamError: there is no response; the topic may have them now.
    """
    request, connection = await _request(cluster, API_CREATE_PARTITIONS)
    extended = request.part("CreatePartitionsTopic", name=topic, count=total, assignments=None)
    body = request.encode(topics=(extended,), timeout=_TIMEOUT, validate_only=False)
    _check((await ask_for(connection, body, request.decode, _RESPONSE_SECONDS)).results)


async def change_settings(cluster: Cluster, topic: str, configs: Mapping[str, str]) -> None:
    """Set settings of a topic; its others stay.

    Parameters:
        configs: the settings, by name.

    Raises:
        RefusedChangeError: the cluster refuses it.
        UpstreamError: there is no response; they may be set now.
    """
    request, connection = await _request(cluster, API_INCREMENTAL_ALTER_CONFIGS)
    settings = tuple(
        request.part("AlterableConfig", name=name, config_operation=_SET, value=value)
        for name, value in configs.items()
    )
    changed = request.part(
        "AlterConfigsResource", resource_type=_TOPIC_RESOURCE, resource_name=topic,
        configs=settings,
    )  # fmt: skip
    body = request.encode(resources=(changed,), validate_only=False)
    _check((await ask_for(connection, body, request.decode, _RESPONSE_SECONDS)).responses)


async def delete_topic(cluster: Cluster, topic: str) -> None:
    """Delete a topic, with its records.

    Raises:
        RefusedChangeError: the cluster refuses it.
        UpstreamError: there is no response; the topic may be deleted now.
    """
    request, connection = await _request(cluster, API_DELETE_TOPICS)
    body = request.encode(topic_names=(topic,), timeout=_TIMEOUT)
    _check((await ask_for(connection, body, request.decode, _RESPONSE_SECONDS)).responses)


async def _request(cluster: Cluster, api_key: int) -> tuple[Request, BrokerConnection]:
    """Return a request, and the connection to send it on: to the controller where it is known."""
    controller = cluster.view.controller
    connection = await (
        cluster.connection_to(controller)
        if controller in cluster.view.brokers
        else cluster.any_connection()
    )
    return request_for(connection, api_key), connection


def _check(rows: Iterable[Any]) -> None:
    for row in rows:
        if row.error_code.value:
            code = row.error_code.value
            raise RefusedChangeError(code, getattr(row, "error_message", None) or error_name(code))
