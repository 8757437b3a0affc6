"""Writes the real rows into the source, over and over, until it is told to stop."""

import asyncio
import logging
import time
from typing import Final

from confluent_kafka import KafkaError, Producer

from deploy.demo.proxy_process import DemoError
from deploy.demo.rows import load_records

_PER_SECOND: Final = 1_500
_STEP_S: Final = 0.02
_LAST_S: Final = 30.0
#: The server is killed under it: a record is tried again for as long.
_TRIED_MS: Final = 60_000


class Filler:
    """See the module's text.

    Parameters:
        bootstrap: HOST:PORT of the source.
        log: where it says what it sees of the network.

    Attributes:
        sent: how many records it has sent.
    """

    def __init__(self, bootstrap: str, log: logging.Logger) -> None:
        self._producer: Final = Producer({
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "logger": log,
            "message.timeout.ms": _TRIED_MS, "reconnect.backoff.max.ms": 500,
        })  # fmt: skip
        rows = [row for rows in load_records().values() for row in rows]
        self._rows: Final = sorted(rows, key=lambda row: (row.number, row.client))
        self._failed: list[str] = []
        self._last: Final = asyncio.Event()
        self.sent = 0

    async def run(self) -> None:
        """Write until `stop`, and wait until all is acknowledged.

        Raises:
            DemoError: it is not.
        """
        began = time.monotonic()
        while not self._last.is_set():
            while self.sent < (time.monotonic() - began) * _PER_SECOND:
                self._send()
            self._producer.poll(0)
            await asyncio.sleep(_STEP_S)
        left = await asyncio.to_thread(self._producer.flush, _LAST_S)
        if left or self._failed:
            raise DemoError(f"the source did not take {left} records; {self._failed[:3]}")

    def stop(self) -> None:
        """Write no more."""
        self._last.set()

    def _send(self) -> None:
        row = self._rows[self.sent % len(self._rows)]
        key = b"%07d" % self.sent  # rows come again: it tells one from the other
        self._producer.produce(row.topic, row.value, key, row.partition, on_delivery=self._told)
        self.sent += 1

    def _told(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self._failed.append(str(error))
