"""Dispatches the admin requests, and bounds how many run at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pidlease.engine.engine import Engine
from pidlease.kafka.api import (
    API_ALTER_CONFIGS,
    API_CREATE_PARTITIONS,
    API_CREATE_TOPICS,
    API_DELETE_RECORDS,
    API_DELETE_TOPICS,
    API_DESCRIBE_CONFIGS,
    API_DESCRIBE_PRODUCERS,
    API_INCREMENTAL_ALTER_CONFIGS,
)
from pidlease.kafka.codec.messages import read_request_slowly
from pidlease.kafka.codec.primitives import RequestHeader
from proxy.kafka.admin.admin_changes import AdminChanges
from proxy.kafka.admin.alter_configs import AlteringApi
from proxy.kafka.admin.config_entries import server_settings, topic_settings
from proxy.kafka.admin.create_topics_api import CreatingApi
from proxy.kafka.admin.delete_topics_api import DeletingApi
from proxy.kafka.admin.describe_configs import DescribingApi
from proxy.kafka.admin.describe_producers import DescribeProducersApi
from proxy.kafka.admin.response_rows import Rows
from proxy.kafka.client_connection import Slot
from proxy.kafka.listener_config import KafkaListenerConfig

#: Requests that are decoded at once, of those that read and of those that change: decoded, they are
#: some ten times as large. Others wait as bytes.
_REQUESTS_AT_ONCE: Final = 4
#: Deletions of a partition's records that run at once, over all requests.
_DELETIONS_AT_ONCE: Final = 8

_Answering = Callable[[Any, Rows], Awaitable[None]]


class AdminApi:
    """Handles the admin requests.

    Parameters:
        check_settings: raises ValueError for invalid topic settings.
    """

    def __init__(
        self,
        engine: Engine,
        config: KafkaListenerConfig,
        check_settings: Callable[[dict[str, str]], None],
    ) -> None:
        of_topics = topic_settings(config)
        changes = AdminChanges(1)  # the engine changes topics one after the other
        creating = CreatingApi(engine, config.cluster, of_topics, check_settings, changes)
        deleting = DeletingApi(engine, changes, AdminChanges(_DELETIONS_AT_ONCE))
        altering = AlteringApi(engine, of_topics, check_settings, changes)
        describing = DescribingApi(engine, of_topics, server_settings(config))
        self._changing = asyncio.Semaphore(_REQUESTS_AT_ONCE)
        self._reading = asyncio.Semaphore(_REQUESTS_AT_ONCE)
        self._changes: dict[int, _Answering] = {
            API_CREATE_TOPICS: creating.create_topics,
            API_DELETE_TOPICS: deleting.delete_topics,
            API_DELETE_RECORDS: deleting.delete_records,
            API_ALTER_CONFIGS: altering.alter_all,
            API_CREATE_PARTITIONS: creating.create_partitions,
            API_INCREMENTAL_ALTER_CONFIGS: altering.alter_some,
        }
        self._reads: dict[int, _Answering] = {
            API_DESCRIBE_CONFIGS: describing.describe,
            API_DESCRIBE_PRODUCERS: DescribeProducersApi(engine).describe,
        }
        #: The keys of the handled APIs.
        self.requests: Final = frozenset((*self._changes, *self._reads))

    async def answer(self, slot: Slot, header: RequestHeader, frame: bytearray) -> None:
        """Answer a request.

        Raises:
            MalformedError: the frame is not a valid request.
        """
        # After the earlier requests of this connection, as in Kafka.
        await slot.turn()
        changes = header.api_key in self._changes
        async with self._changing if changes else self._reading:
            request = await read_request_slowly(header, frame)
            rows = Rows(slot, header)
            await (self._changes if changes else self._reads)[header.api_key](request, rows)
            rows.send()
