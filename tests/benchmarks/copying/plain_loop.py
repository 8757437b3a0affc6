"""What one would write oneself: an aiokafka consumer, an aiokafka producer, and commits behind.

At least once: what it has sent since its last commit is sent again when it is killed.
`python -m tests.benchmarks.copying.plain_loop SOURCE DESTINATION TOPIC COPY GROUP`.
"""

from __future__ import annotations

import asyncio
import sys
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

_WAIT_MS = 500
_AT_ONCE = 10_000
_COMMIT_EVERY_S = 1.0
#: Aiokafka's default of 16 KB would slow it down by half.
_BATCH_BYTES = 128 << 10
_LINGER_MS = 5
#: It is stopped while others have their turn.
_SESSION_MS = 60_000


async def copy(source: str, destination: str, topic: str, renamed: str, group: str) -> None:
    """Copy until it is killed."""
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=source, group_id=group, enable_auto_commit=False,
        auto_offset_reset="earliest", session_timeout_ms=_SESSION_MS,
    )  # fmt: skip
    producer = AIOKafkaProducer(
        bootstrap_servers=destination, acks="all", max_batch_size=_BATCH_BYTES,
        linger_ms=_LINGER_MS,
    )  # fmt: skip
    async with consumer, producer:
        committed_s = time.monotonic()
        while True:
            found = await consumer.getmany(timeout_ms=_WAIT_MS, max_records=_AT_ONCE)
            sent = [
                await producer.send(
                    renamed, each.value, each.key, place.partition, each.timestamp, each.headers
                )
                for place, records in found.items()
                for each in records
            ]
            await producer.flush()
            for each in sent:
                each.result()
            if time.monotonic() - committed_s > _COMMIT_EVERY_S:
                await consumer.commit()
                committed_s = time.monotonic()


if __name__ == "__main__":
    asyncio.run(copy(*sys.argv[1:6]))
