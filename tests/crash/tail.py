"""A consumer that follows a topic over the server's lives, and keeps all that it was given."""

import threading

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka import KafkaError as LibrdkafkaError

from tests.crash.readback import Stored

_AT_ONCE = 2000
_POLL_S = 0.1


class TailReader:
    """Reads assigned partitions from their beginning on, in a thread of its own.

    Parameters:
        bootstrap: where the server is.
        topic: what is read,
        partitions: and of how many.

    Attributes:
        faults: what must not be.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.faults: list[str] = []
        self._topic = topic
        self._read: dict[int, list[bytes]] = {number: [] for number in range(partitions)}
        self._ending = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "tail",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self._consumer.assign(
            [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)]
        )
        self._thread = threading.Thread(target=self._work, name="tail", daemon=True)
        self._thread.start()

    def end_of(self, partition: int) -> int:
        """The offset behind the last record that was read."""
        return len(self._read[partition])

    @property
    def stored(self) -> list[Stored]:
        """All that was read."""
        return [
            Stored(self._topic, number, offset, value)
            for number, values in self._read.items()
            for offset, value in enumerate(values)
        ]

    def value(self, partition: int, offset: int) -> bytes:
        """A record that was read."""
        return self._read[partition][offset]

    def finish(self, timeout_s: float) -> None:
        """Read no more."""
        self._ending.set()
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the tail reader hangs"
        self._consumer.close()

    def _work(self) -> None:
        while not self._ending.is_set():
            for message in self._consumer.consume(_AT_ONCE, _POLL_S):
                error = message.error()
                partition, offset, value = message.partition(), message.offset(), message.value()
                if error is not None:
                    if error.code() == LibrdkafkaError._AUTO_OFFSET_RESET:
                        self.faults.append(str(error))
                elif partition is not None and value is not None:
                    if offset != len(self._read[partition]):
                        self.faults.append(
                            f"{partition}: {offset} follows {len(self._read[partition]) - 1}"
                        )
                        return
                    self._read[partition].append(value)
