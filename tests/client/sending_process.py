"""What a process of multiprocessing runs that never stops its producer."""

import threading
import time

from pidlease.client import BlockingProducer


def send_in_process(server: dict[str, str]) -> None:
    """Send records by a thread that outlives the main thread."""
    producer = BlockingProducer(
        bootstrap_servers=server["bootstrap_servers"],
        leases=server["leases"],
        delivery_timeout_ms=3_000,
    )
    producer.start()

    def send() -> None:
        for number in range(100):
            producer.send("t", b"%d" % number)
            time.sleep(0.001)

    threading.Thread(target=send).start()
