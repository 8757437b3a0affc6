"""Write a small data directory by the version of the current folder, and pack it.

In a checkout of that version: `python .../tests/formats/directory_writer.py NAME.tar.xz`. The
directory has records of two Kafka clients and of an HTTP producer, a snapshot after half of them,
and a log that a kill has ended. It uses only what every version has: the command `serve`, Kafka
clients and HTTP.
"""

import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from pidlease.testing.loopback_ports import free_ports

#: The batches of each topic, one record each; a snapshot follows the first half.
BATCHES: Final = 6
_START_S: Final = 60


def value(producer: str, number: int) -> bytes:
    """The value of a record."""
    return f"{producer} {number}".encode()


class _Server:
    def __init__(self, data: Path) -> None:
        self.kafka, self.http = free_ports(2)
        command = [sys.executable, "-m", "proxy", "serve", "--data-dir", str(data)]
        listen = ["--kafka-listen", f"127.0.0.1:{self.kafka}"]
        listen += ["--http-listen", f"127.0.0.1:{self.http}"]
        env = {**os.environ, "PYTHONPATH": "."}
        self.process = subprocess.Popen([*command, *listen], env=env)
        deadline = time.monotonic() + _START_S
        while not self._ready():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError("the server does not start")
            time.sleep(0.1)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/readyz", timeout=5):
                return True
        except OSError:
            return False

    def append(self, number: int) -> None:
        """Append a record under policy epoch, where the version has it."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http}/v1/topics/http/partitions/0/records",
            data=value("http", number),
            headers={
                "Content-Type": "application/octet-stream", "Producer-Id": "till-7",
                "Producer-Epoch": "0", "Producer-Seq": str(number),
            },
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=30) as response:
            json.load(response)

    def end(self, number: int) -> None:
        """Send a signal, and wait until it has ended."""
        self.process.send_signal(number)
        self.process.wait(60)


def write(data: Path, *, http: bool) -> None:
    """Write the directory; `http`: the version has appends over HTTP."""
    server = _Server(data)
    _send(server, range(BATCHES // 2), http=http)
    server.end(signal.SIGTERM)
    server = _Server(data)
    _send(server, range(BATCHES // 2, BATCHES), http=http)
    server.end(signal.SIGKILL)


def _send(server: _Server, numbers: range, *, http: bool) -> None:
    producer = Producer({
        "bootstrap.servers": f"127.0.0.1:{server.kafka}", "enable.idempotence": True,
        "linger.ms": 0,
    })  # fmt: skip
    for number in numbers:
        producer.produce("kafka", value("kafka", number), partition=0)
        if producer.flush(60):
            raise RuntimeError("a record was not delivered")
        if http:
            if number == 0:
                other = Producer({"bootstrap.servers": f"127.0.0.1:{server.kafka}"})
                other.list_topics("http", timeout=30)
            server.append(number)


def main() -> None:
    """Write and pack."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        write(data, http="--no-http" not in sys.argv)
        with tarfile.open(sys.argv[1], "w:xz") as archive:
            archive.add(data, "data")


if __name__ == "__main__":
    main()
