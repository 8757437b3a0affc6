"""The load of a comparison, and the process that sends it in bursts."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.servers.kafka.install import java_command

_ROOT = Path(__file__).resolve().parents[2]
#: One file that Java compiles as it starts it.
_JAVA_PRODUCER = Path(__file__).with_name("JavaProducer.java")
#: Heap as Kafka's own performance tool has it; and no lines about how the client is configured.
_JAVA_OPTIONS = ("-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
_STOP_TIMEOUT_S = 30


@dataclass(frozen=True)
class Load:
    """What a producer sends; `settings` are the client's, on top of its defaults.

    A round is `bursts` turns of each contender. Bursts are short (some 0.1 to 0.3 s), so that
    whatever else the machine does in that second hits both contenders alike.
    """

    records: int  # of one burst
    record_bytes: int
    bursts: int
    settings: dict[str, str | int | float | bool]
    reads: bool = False  # a burst reads the first records of a log that was filled before
    per_second: int = 0  # evenly, and deliveries are timed; 0: as fast as they are taken

    @property
    def single(self) -> bool:
        """Whether each record is a request of its own."""
        return self.settings.get("batch.num.messages") == 1

    @property
    def burst_megabytes(self) -> float:
        """Payload of one burst in 10^6 bytes."""
        return self.records * self.record_bytes / 1e6


@dataclass(frozen=True)
class Timing:
    """What the producer's process measured of one burst, up to the last acknowledgement."""

    elapsed_s: float
    client_cpu_s: float
    delivered_ms: tuple[float, ...] = ()  # how long records took, where that was asked for


class LostRecordsError(RuntimeError):
    """Not every record stands in the log exactly once: the measurement means nothing."""


def _command(client: str, *, paced: bool) -> list[str]:
    """What is run for a client; the load is its argument."""
    if client == "Java":
        return java_command(str(_JAVA_PRODUCER), *_JAVA_OPTIONS)
    if client == "librdkafka":
        module = "paced_producer" if paced else "producer"
    else:
        module = "python_producer"
    return [sys.executable, "-m", f"tests.benchmarks.{module}"]


class LoadProcess:
    """One producer in a process of its own, told over its stdin when it is its turn.

    Of its own, because its GIL and memory must not be shared with whoever measures; one for the
    whole comparison, because starting it takes longer than a burst.
    """

    def __init__(
        self,
        load: Load,
        bootstrap: str,
        topic: str,
        *,
        client: str = "librdkafka",
        leases: str = "",
        marked: bool = False,
        security: Mapping[str, str] | None = None,
    ) -> None:
        """`leases` is where the client asks for them, if it does.

        `marked`: the first record has a marker before it, which takes an offset.
        `security`: settings of librdkafka.
        """
        self._marks = int(marked)
        self._where = f"{topic} at {bootstrap}"
        self._acknowledged = 0
        self._load = load
        start = {
            **dataclasses.asdict(load),
            "bootstrap": bootstrap, "topic": topic, "client": client, "leases": leases,
            "security": dict(security or {}),
        }  # fmt: skip
        self._child = subprocess.Popen(
            [*_command(client, paced=bool(load.per_second)), json.dumps(start)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child.stdin is not None:
            self._child.stdin.close()  # the end of its input is its end
        try:
            self._child.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def connect(self) -> None:
        """Bring topic, connection and producer id into being, outside of the measured time."""
        self._send(self._load.records if self._load.reads else 1)

    def burst(self, records: int) -> Timing:
        """Send `records` and wait until all are acknowledged, or read them."""
        if self._load.reads:
            answer = self._ask({"read": records})
            return Timing(answer["elapsed_s"], answer["client_cpu_s"])
        return self._send(records)

    def _send(self, records: int) -> Timing:
        answer = self._ask({"send": records})
        self._acknowledged += records
        delivered_ms = tuple(answer.get("delivered_ms", ()))
        return Timing(answer["elapsed_s"], answer["client_cpu_s"], delivered_ms)

    def verify(self) -> None:
        """Compare with the end of the log that the server itself tells."""
        stored = int(self._ask({"stored": 0})["stored"])
        if stored != self._acknowledged + self._marks:
            raise LostRecordsError(
                f"{self._where}: {self._acknowledged} acknowledged, {stored} stored"
            )

    def _ask(self, question: Mapping[str, int]) -> dict[str, Any]:
        if self._child.stdin is None or self._child.stdout is None:
            raise RuntimeError("the producer was started without pipes")
        try:
            self._child.stdin.write(json.dumps(question) + "\n")
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise LostRecordsError(f"{self._where}: the producer died, its error stands above")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise LostRecordsError(f"{self._where}: {answer['error']}")
        return answer
