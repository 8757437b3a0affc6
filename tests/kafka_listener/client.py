"""A tiny Kafka client for one connection, that can also say what no client would."""

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

from kio.schema.errors import ErrorCode

from tests.kafka_listener.messages import (
    CREATE_TOPICS,
    FETCH,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    decode_response,
    encode_request,
)
from tests.servers.waiting import WAIT_S

_TIMEOUT_S = WAIT_S
_BACKOFF_S = 0.02


@dataclass(frozen=True)
class Answer:
    """One partition's part of an answer to a Produce."""

    code: int
    offset: int
    log_start: int = -1
    message: str | None = None


@dataclass(frozen=True)
class Fetched:
    """One partition's part of an answer to a Fetch."""

    code: int
    end: int
    data: bytes


class WireClient:
    """One connection.

    Attributes:
        timeout_s: an answer takes so long at most.
        client_id: which its requests give.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.timeout_s = _TIMEOUT_S
        self.client_id: str | None = "wire-test"
        self._correlation = 0
        self._sent: list[tuple[int, int, int]] = []

    @classmethod
    async def connect(cls, host: str, port: int) -> Self:
        return cls(*await asyncio.open_connection(host, port, limit=64 << 20))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    # ------------------------------------------------------------------ raw

    def send_bytes(self, data: bytes) -> None:
        self.writer.write(data)

    def send_frame(self, frame: bytes) -> None:
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    def send(self, key: int, version: int, /, **values: object) -> int:
        """Send a request without waiting; its correlation id."""
        self._correlation += 1
        self._sent.append((key, version, self._correlation))
        frame = encode_request(key, version, values, self._correlation, self.client_id)
        self.send_frame(frame)
        return self._correlation

    async def receive_frame(self) -> bytes:
        async with asyncio.timeout(self.timeout_s):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def receive(self) -> Any:
        """The answer to the oldest request that has none yet; the order is checked."""
        key, version, correlation = self._sent.pop(0)
        found, body = decode_response(key, version, await self.receive_frame())
        assert found == correlation, f"answer {found} where {correlation} is due"
        return body

    def forget_last(self) -> None:
        """The request sent last gets no answer."""
        self._sent.pop()

    async def call(self, key: int, version: int, /, **values: object) -> Any:
        assert not self._sent
        self.send(key, version, **values)
        return await self.receive()

    async def is_closed(self, within_s: float = 5.0) -> bool:
        """Whether the server closes the connection without another answer."""
        try:
            async with asyncio.timeout(within_s):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    # ------------------------------------------------------------------ by name

    async def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        body = await self.call(CREATE_TOPICS, 5, **creation(topic, partitions, **configs))
        assert body.topics[0].error_code == 0, body.topics[0]

    async def lease(self) -> int:
        """A fresh PID; asked for again, as clients do, while the next block is on its way."""
        async with asyncio.timeout(_TIMEOUT_S):
            while True:
                body = await self.call(INIT_PRODUCER_ID, 4, **INIT)
                if body.error_code != ErrorCode.coordinator_load_in_progress:
                    break
                await asyncio.sleep(_BACKOFF_S)
        assert (body.error_code, body.producer_epoch) == (0, 0)
        return int(body.producer_id)

    def send_produce(
        self, topic: str, data: bytes | None, *, partition: int = 0, version: int = 9,
        acks: int = -1, transactional_id: str | None = None,
    ) -> int:  # fmt: skip
        values = produced([(topic, partition, data)], acks, transactional_id)
        return self.send(PRODUCE, version, **values)

    async def produce(
        self, topic: str, data: bytes | None, *, partition: int = 0, version: int = 9,
        acks: int = -1, transactional_id: str | None = None,
    ) -> Answer:  # fmt: skip
        assert not self._sent
        self.send_produce(
            topic, data, partition=partition, version=version, acks=acks,
            transactional_id=transactional_id,
        )  # fmt: skip
        return await self.receive_produce()

    async def receive_produce(self) -> Answer:
        return answers_of(await self.receive())[0]

    async def fetch(self, topic: str, offset: int = 0, **more: Any) -> Fetched:
        """Fetch one partition; `more` as `fetched` takes it."""
        version = more.pop("version", 11)
        body = await self.call(FETCH, version, **fetched([(topic, 0, offset)], **more))
        return fetched_of(body)[0]

    async def metadata(self, *topics: str, version: int = 9, create: bool = False) -> Any:
        named = [{"name": topic} for topic in topics]
        return await self.call(METADATA, version, topics=named, allow_auto_topic_creation=create)


INIT: dict[str, object] = {
    "transactional_id": None,
    "transaction_timeout": timedelta(seconds=60),
    "producer_id": -1,
    "producer_epoch": -1,
}


def creation(topic: str, partitions: int = 1, **configs: str) -> dict[str, object]:
    """The values of a CreateTopics for one topic; `retention_ms` stands for `retention.ms`."""
    named = [{"name": name.replace("_", "."), "value": each} for name, each in configs.items()]
    wanted = {
        "name": topic, "num_partitions": partitions, "replication_factor": 1, "configs": named,
    }  # fmt: skip
    return {"topics": [wanted], "timeout": timedelta(seconds=WAIT_S), "validate_only": False}


def produced(
    parts: Sequence[tuple[str, int, bytes | None]],
    acks: int = -1,
    transactional_id: str | None = None,
) -> dict[str, object]:
    """The values of a Produce."""
    topics = [
        {"name": topic, "partition_data": [{"index": partition, "records": data}]}
        for topic, partition, data in parts
    ]
    return {
        "transactional_id": transactional_id, "acks": acks,
        "timeout": timedelta(seconds=WAIT_S), "topic_data": topics,
    }  # fmt: skip


def answers_of(body: Any) -> list[Answer]:
    """The parts of an answer to a Produce, in order."""
    return [
        Answer(
            int(part.error_code),
            part.base_offset,
            getattr(part, "log_start_offset", -1),
            getattr(part, "error_message", None),
        )
        for topic in body.responses
        for part in topic.partition_responses
    ]


def fetched(
    parts: Sequence[tuple[str, int, int]],
    *,
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 30,
    partition_max_bytes: int = 1 << 20,
) -> dict[str, object]:
    """The values of a Fetch."""
    topics = [
        {
            "topic": topic,
            "partitions": [
                {
                    "partition": partition, "fetch_offset": offset,
                    "partition_max_bytes": partition_max_bytes, "current_leader_epoch": -1,
                }
            ],
        }
        for topic, partition, offset in parts
    ]  # fmt: skip
    return {
        "replica_id": -1, "max_wait": timedelta(milliseconds=wait_ms), "min_bytes": min_bytes,
        "max_bytes": max_bytes, "topics": topics,
    }  # fmt: skip


def fetched_of(body: Any) -> list[Fetched]:
    """The parts of an answer to a Fetch, in order."""
    return [
        Fetched(int(part.error_code), part.high_watermark, part.records or b"")
        for topic in body.responses
        for part in topic.partitions
    ]
