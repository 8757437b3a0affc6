"""Creates and deletes topics, and adds partitions, through a Kafka listener."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final

import typer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)

from pidlease.kafka.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from proxy.cli.console import cannot_run, refused

#: The default address of a server's Kafka listener.
SERVERS: Final = "127.0.0.1:9092"
ServersOption = Annotated[
    str, typer.Option(envvar="PIDLEASE_SERVERS", help="HOST:PORT of the Kafka listener.")
]
#: The listener's default: its own number of partitions, Kafka's replication factor.
BY_DEFAULT: Final = -1
#: A change may wait for others, and for a slow disk.
_TIMEOUT_MS: Final = 60_000


def create_topic(
    servers: str, topic: str, partitions: int, replication: int, settings: Mapping[str, str]
) -> None:
    """Create a topic; end the command if it fails."""
    new: tuple[Any, ...] = (topic, partitions, replication, [], list(settings.items()))
    _run(servers, CreateTopicsRequest([new], _TIMEOUT_MS, validate_only=False))


def add_partitions(servers: str, topic: str, count: int) -> None:
    """Let a topic have `count` partitions; end the command if it fails."""
    _run(servers, CreatePartitionsRequest([(topic, (count, None))], _TIMEOUT_MS, False))  # noqa: FBT003 - aiokafka's


def delete_topic(servers: str, topic: str) -> None:
    """Delete a topic; end the command if it fails."""
    _run(servers, DeleteTopicsRequest([topic], _TIMEOUT_MS))


def quiet_kafka_client() -> None:
    """Keep the client library's log lines off the console: its errors are reported once."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


def kafka_unreachable(servers: str) -> typer.Exit:
    """Print that no Kafka listener responds; return the exit to raise."""
    return cannot_run(
        f"no Kafka listener answers at {servers}; start `pidlease serve`, or give --servers the"
        " HOST:PORT of its --kafka-listen"
    )


def _reason(code: int) -> str:
    if code == UNKNOWN_TOPIC_OR_PARTITION:
        return "there is no such topic"
    return str(for_code(code).description)


def _run(servers: str, request: Any) -> None:  # noqa: ANN401 - one of aiokafka's
    quiet_kafka_client()
    problems = asyncio.run(_ask(servers, request))
    if problems:
        raise refused("; ".join(problems))


async def _ask(servers: str, request: Any) -> list[str]:  # noqa: ANN401 - one of aiokafka's
    """Send a change to the cluster; return why it refuses it, for each topic."""
    async with _client(servers) as client:
        try:
            answer = await client.send(client.cluster.controller.nodeId, request)
        except (KafkaError, OSError, TimeoutError) as error:
            raise cannot_run(
                f"{servers} did not respond ({error!r}); check whether the change was made"
            ) from None
    # Each of the responses ends with rows of topic, error code, and mostly a message.
    rows = getattr(answer, answer.SCHEMA.names[-1])
    return [
        f"{topic}: {(message and message[0]) or _reason(code)}"
        for topic, code, *message in rows
        if code
    ]


async def partitions_of(servers: str, topic: str) -> list[int]:
    """Return a topic's partitions, without creating it; end the command if there is no topic."""
    async with _client(servers) as client:
        try:
            cluster = await client.fetch_all_metadata()
        except (KafkaError, OSError, TimeoutError):
            raise kafka_unreachable(servers) from None
    found = cluster.partitions_for_topic(topic)
    if not found:
        raise refused(f"there is no topic {topic}")
    return sorted(found)


@asynccontextmanager
async def _client(servers: str) -> AsyncIterator[AIOKafkaClient]:
    try:
        client = AIOKafkaClient(
            bootstrap_servers=servers, client_id="pidlease-cli", request_timeout_ms=_TIMEOUT_MS
        )
        await client.bootstrap()
    except (KafkaError, OSError, ValueError):
        raise kafka_unreachable(servers) from None
    try:
        yield client
    finally:
        await client.close()
