"""Creates and deletes topics, and adds partitions, through a Kafka listener."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Final, NamedTuple

import typer

from pidlease.kafka.client import topic_creation
from pidlease.kafka.client.bootstrap import wrong_settings
from pidlease.kafka.client.cluster import Cluster
from pidlease.kafka.client.settings import UpstreamConfig, addresses_of
from pidlease.kafka.client.topic_creation import BY_DEFAULT, RefusedChangeError
from pidlease.kafka.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from pidlease.kafka.errors import UpstreamError, UpstreamLoginError
from proxy.cli.client_login import LOGIN_HINT, CommandSecurity
from proxy.cli.console import cannot_run, refused

__all__ = ["BY_DEFAULT", "SERVERS", "KafkaListener", "ServersOption", "add_partitions",
           "connected_cluster", "create_topic", "delete_topic", "kafka_unreachable",
           "partitions_of"]  # fmt: skip

#: The default address of a server's Kafka listener.
SERVERS: Final = "127.0.0.1:9092"
ServersOption = Annotated[
    str, typer.Option(envvar="PIDLEASE_SERVERS", help="HOST:PORT of the Kafka listener.")
]


class KafkaListener(NamedTuple):
    """The addresses of a Kafka listener, and how to connect to it."""

    servers: str
    security: CommandSecurity


def create_topic(
    server: KafkaListener,
    topic: str,
    partitions: int,
    replication: int,
    settings: Mapping[str, str],
) -> None:
    """Create a topic; end the command if it fails."""
    create = partial(
        topic_creation.create_topic, topic=topic, partitions=partitions, replication=replication,
        configs=settings,
    )  # fmt: skip
    asyncio.run(_change(server, topic, create))


def add_partitions(server: KafkaListener, topic: str, count: int) -> None:
    """Let a topic have `count` partitions; end the command if it fails."""
    asyncio.run(
        _change(server, topic, partial(topic_creation.add_partitions, topic=topic, total=count))
    )


def delete_topic(server: KafkaListener, topic: str) -> None:
    """Delete a topic; end the command if it fails."""
    asyncio.run(_change(server, topic, partial(topic_creation.delete_topic, topic=topic)))


def kafka_unreachable(servers: str, reason: Exception) -> typer.Exit:
    """Print that no Kafka listener responds, and why; return the exit to raise."""
    if isinstance(reason, UpstreamLoginError):
        return cannot_run(f"{reason}{LOGIN_HINT}")
    return cannot_run(
        f"no Kafka listener answers at {servers}; start `pidlease serve`, or give --servers the"
        f" HOST:PORT of its --kafka-listen ({reason})"
    )


async def partitions_of(server: KafkaListener, topic: str) -> list[int]:
    """Return a topic's partitions, without creating it; end the command if there is no topic."""
    async with connected_cluster(server) as cluster:
        try:
            found = (await cluster.look_up([topic])).topics.get(topic)
        except UpstreamError as error:
            raise kafka_unreachable(server.servers, error) from None
    if found is None or not found.leaders:
        raise refused(f"there is no topic {topic}")
    return list(range(len(found.leaders)))


async def check_reachable(server: KafkaListener) -> str:
    """End the command if the server refuses the login.

    Returns:
        Why the server cannot be reached now; empty: it can.
    """
    cluster = Cluster(_config(server))
    try:
        await cluster.start()
    except UpstreamLoginError as error:
        raise kafka_unreachable(server.servers, error) from None
    except UpstreamError as error:
        return str(error)
    finally:
        await cluster.close()
    return ""


async def _change(
    server: KafkaListener, topic: str, change: Callable[[Cluster], Awaitable[None]]
) -> None:
    """Send a change to the cluster; end the command if it fails."""
    async with connected_cluster(server) as cluster:
        try:
            await change(cluster)
        except RefusedChangeError as error:
            absent = error.code == UNKNOWN_TOPIC_OR_PARTITION
            raise refused(f"{topic}: {'there is no such topic' if absent else error}") from None
        except UpstreamError as error:
            raise cannot_run(
                f"{server.servers} did not respond ({error}); check whether the change was made"
            ) from None


@asynccontextmanager
async def connected_cluster(server: KafkaListener) -> AsyncIterator[Cluster]:
    """Connect to the cluster; end the command if it cannot be reached."""
    try:
        config = _config(server)
        cluster = Cluster(config)
    except ValueError as error:
        raise kafka_unreachable(server.servers, error) from None
    try:
        await cluster.start()
    except UpstreamError as error:
        why = await wrong_settings(config, error) or error
        raise kafka_unreachable(server.servers, why) from None
    try:
        yield cluster
    finally:
        await cluster.close()


def _config(server: KafkaListener) -> UpstreamConfig:
    """Return how to connect.

    Raises:
        ValueError: an address or a setting is invalid.
    """
    config = UpstreamConfig(addresses_of(server.servers), client_id="pidlease-cli")
    return server.security.connection.secured(config)
