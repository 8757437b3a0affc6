"""The child process of `load.LoadProcess`: one idempotent librdkafka producer.

One question for each line of stdin, {"send": 1000} or {"stored": 0}, one answer for each on
stdout, all JSON. It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

POOL_RECORDS = 4096  # different payloads; incompressible, in case anything compresses
_POLL_EVERY = 1000
_READ_AT_ONCE = 10_000
FLUSH_TIMEOUT_S = 120


class Sender:
    """The producer with its payloads, made before any time is measured."""

    def __init__(self, start: dict[str, Any]) -> None:
        self._topic: str = start["topic"]
        self._connect: dict[str, Any] = {
            "bootstrap.servers": start["bootstrap"], **start["security"],
        }  # fmt: skip
        self._failures: list[str] = []
        self._payloads = [os.urandom(start["record_bytes"]) for _ in range(POOL_RECORDS)]
        self._producer = Producer(
            {
                **self._connect,
                "enable.idempotence": True,
                **self._reports(),
                "log_level": 3,  # a fresh Kafka makes it warn a few times before it is ready
                **start["settings"],
            }
        )

    def _reports(self) -> dict[str, Any]:
        """A Python call for each delivered record would measure Python.

        Every failure is still reported, and the log's own end must fit the count afterwards.
        """
        return {"delivery.report.only.error": True, "on_delivery": self._on_delivery}

    def answer(self, question: dict[str, int]) -> dict[str, Any]:
        """Do what one line asks for."""
        if "send" in question:
            return self._timed(self._send, question["send"])
        if "read" in question:
            return self._timed(self._read, question["read"])
        return {"stored": self._stored()}

    def _timed(self, work: Callable[[int], int], count: int) -> dict[str, Any]:
        cpu_before_s, before_s = time.process_time(), time.perf_counter()
        left = work(count)
        elapsed_s = time.perf_counter() - before_s
        if left or self._failures:
            failures = f"{len(self._failures)} failed {self._failures[:3]}"
            return {"error": f"of {count} records {left} were never answered, {failures}"}
        return {"elapsed_s": elapsed_s, "client_cpu_s": time.process_time() - cpu_before_s}

    def _read(self, count: int) -> int:
        """Read so many records from the log's start, each exactly once; how many did not come."""
        self._consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
        expected, until_s = 0, time.monotonic() + FLUSH_TIMEOUT_S
        while expected < count and time.monotonic() < until_s:
            for message in self._consumer.consume(min(count - expected, _READ_AT_ONCE), 1.0):
                if message.error() is not None or message.offset() != expected:
                    self._failures.append(f"{message.error()} at {message.offset()}")
                expected += 1
        self._consumer.unassign()
        return count - expected

    @cached_property
    def _consumer(self) -> Consumer:
        # The poll that is under way at the log's end when a burst is over holds up the next one,
        # as far as it has not ended while the other side had its turn: by 500 ms, by default.
        wait = {"fetch.wait.max.ms": 10}
        return Consumer({**self._connect, "group.id": "bench", **wait})

    def _send(self, count: int) -> int:
        """As little Python for each record as possible; returns how many were not answered."""
        produce, poll, payloads = self._producer.produce, self._producer.poll, self._payloads
        for n in range(count):
            while True:
                try:
                    produce(self._topic, payloads[n % POOL_RECORDS], partition=0)
                    break
                except BufferError:  # librdkafka's queue is full: the server is the slower one
                    poll(0.01)
            if n % _POLL_EVERY == 0:
                poll(0)
        return self._producer.flush(FLUSH_TIMEOUT_S)

    def _stored(self) -> int:
        consumer = Consumer({**self._connect, "group.id": "bench"})
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=30)
        finally:
            consumer.close()
        return int(high) - int(low)

    def _on_delivery(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failures.append(str(error))


def main(kind: type[Sender] = Sender) -> None:
    """Answer until the input ends."""
    sender = kind(json.loads(sys.argv[1]))
    for line in sys.stdin:
        print(json.dumps(sender.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
