"""The child process of `load.LoadProcess` for clients in Python: aiokafka's, and this project's.

One question for each line of stdin, one answer for each on stdout, as in `producer`. Both clients
get the same records and the same settings, and each record's future is looked at afterwards.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from pidlease.client import LeasedProducer

_POOL_RECORDS = 4096  # different payloads; incompressible, in case anything compresses


class _Producer(Protocol):
    """What both have in common."""

    async def start(self) -> None:
        """Connect."""

    async def send(self, topic: str, value: bytes, *, partition: int) -> asyncio.Future[Any]:
        """Take a record."""

    async def flush(self) -> None:
        """Wait until all is acknowledged."""

    async def stop(self) -> None:
        """Disconnect."""


class Sender:
    """The producer with its payloads, made before any time is measured."""

    def __init__(self, start: dict[str, Any]) -> None:
        self._start = start
        self._topic: str = start["topic"]
        self._payloads = [os.urandom(start["record_bytes"]) for _ in range(_POOL_RECORDS)]
        self._producer: _Producer

    async def connect(self) -> None:
        """Make the producer, in the loop that it lives in."""
        settings = {"bootstrap_servers": self._start["bootstrap"], **self._start["settings"]}
        if self._start["client"] == "aiokafka":
            self._producer = AIOKafkaProducer(enable_idempotence=True, **settings)
        else:
            self._producer = LeasedProducer(leases=self._start["leases"], **settings)
        await self._producer.start()

    async def close(self) -> None:
        """Disconnect."""
        await self._producer.stop()

    async def answer(self, question: dict[str, int]) -> dict[str, float | str]:
        """Do what one line asks for."""
        if "send" in question:
            return await self._send(question["send"])
        return {"stored": await self._stored()}

    async def _send(self, count: int) -> dict[str, float | str]:
        send, topic, payloads = self._producer.send, self._topic, self._payloads
        cpu_before_s, before_s = time.process_time(), time.perf_counter()
        futures = [
            await send(topic, payloads[n % _POOL_RECORDS], partition=0) for n in range(count)
        ]
        await self._producer.flush()
        elapsed_s = time.perf_counter() - before_s
        client_cpu_s = time.process_time() - cpu_before_s
        failures = [str(each.exception()) for each in futures if each.exception() is not None]
        if failures:
            return {"error": f"{len(failures)} of {count} failed: {failures[:3]}"}
        return {"elapsed_s": elapsed_s, "client_cpu_s": client_cpu_s}

    async def _stored(self) -> int:
        consumer = AIOKafkaConsumer(bootstrap_servers=self._start["bootstrap"])
        await consumer.start()
        try:
            place = TopicPartition(self._topic, 0)
            ends = await consumer.end_offsets([place])
        finally:
            await consumer.stop()
        return int(ends[place])


def main() -> None:
    """Answer until the input ends."""
    sender = Sender(json.loads(sys.argv[1]))
    with asyncio.Runner() as runner:
        runner.run(sender.connect())
        for line in sys.stdin:
            print(json.dumps(runner.run(sender.answer(json.loads(line)))), flush=True)
        runner.run(sender.close())


if __name__ == "__main__":
    main()
