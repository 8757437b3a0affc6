"""Producers of a client at work, one for each codec, while the server is killed under them."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.clients.child import Child, wait_for
from tests.clients.client import CODECS, Client, Producing
from tests.clients.judge import Acked
from tests.crash.seeds import SOAK
from tests.servers.pidlease import PidleaseServer

PARTITIONS = 4
#: So long everybody may take at most to get on, and to come to the end; beyond that it hangs.
HANG_S = 900.0 if SOAK else 300.0
#: A kill from outside comes when this part of all records is acknowledged, at the latest. Far
#: enough from the end: what is still in a program's own buffer is not seen here.
_LATEST = 0.15
_ENOUGH_LEFT = 0.9
#: What each program says of itself first.
_OWN_LINES: Final = 1
#: A server that dies of itself dies at one of its first writes. A write takes all batches that
#: wait for a partition, five of each producer at most, of a hundred records: so there are more.
_WRITES_MAX = 12


@dataclass(frozen=True)
class Written:
    """What a client's producers were told.

    Attributes:
        acked: for each stream (the number of a codec in CODECS), in the order told.
        version: of the client, as it gave it itself.
        duplicates: batches that came again since the last kill, and were recognised.
    """

    acked: dict[int, list[Acked]]
    version: str
    duplicates: float


def write(
    server: PidleaseServer, client: Client, topic: str, count: int, kills: int, random: Random
) -> Written:
    """Let a producer of each codec write `count` records, and kill the server so many times.

    Each time is twice: it is killed from outside, and started again it dies by SIGKILL between an
    append and its answers. So there are records on their way.
    """
    folder = server.directory / "producers"
    create_topic(server, topic, PARTITIONS)
    deaths: list[list[int]] = []
    with ExitStack() as stack:
        children = [
            stack.enter_context(_start(server, client, topic, stream, count, folder))
            for stream in range(len(CODECS))
        ]
        _begin_together(children)
        for number in range(kills):
            part = (number + random.random()) / kills * _LATEST
            deaths.append(_kill(server, children, part * count * len(CODECS)))
            _die_before_the_answer(server, topic, random)
            server.restart({k: v for k, v in server.settings.items() if k != "faults"})
        lines = [child.finish(HANG_S) for child in children]
    for seen in deaths:
        known = sum(
            client.acked(line) is not None
            for printed, number in zip(lines, seen, strict=True)
            for line in printed[:number]
        )
        assert 0 < known < _ENOUGH_LEFT * count * len(CODECS), f"{known} acknowledged at a kill"
    acked = {
        stream: [told for line in printed if (told := client.acked(line)) is not None]
        for stream, printed in enumerate(lines)
    }
    duplicates = server.metric("pidlease_batches_judged_total", outcome="duplicate")
    return Written(acked, client.said_version(lines[0]), duplicates)


def create_topic(server: PidleaseServer, topic: str, partitions: int) -> None:
    """Make a topic beforehand, as clients that do not make topics ask for."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    for done in admin.create_topics([NewTopic(topic, partitions)]).values():
        done.result(HANG_S)


def _start(
    server: PidleaseServer, client: Client, topic: str, stream: int, count: int, folder: Path
) -> Child:
    what = Producing(server.bootstrap, topic, CODECS[stream], stream, count)
    call = client.producer(what, folder)
    return Child.start(f"producer-{CODECS[stream]}", call.command, folder, call.env)


def _begin_together(children: Sequence[Child]) -> None:
    """Hold each producer that has begun until all have.

    Five virtual machines come up one after the other: the first could be through by then; and who
    has not connected yet when the server is killed may give up (aiokafka).
    """
    waiting = list(children)

    def all_began() -> bool:
        for child in [each for each in waiting if each.line_count() > _OWN_LINES]:
            child.process.send_signal(signal.SIGSTOP)
            waiting.remove(child)
        return not waiting

    wait_for(all_began, "each producer to begin", HANG_S, children)
    for child in children:
        child.process.send_signal(signal.SIGCONT)


def _kill(server: PidleaseServer, children: Sequence[Child], enough: float) -> list[int]:
    """SIGKILL when the producers together were told of so many records; how far each one was."""

    def far_enough() -> bool:
        return sum(child.line_count() - _OWN_LINES for child in children) > enough

    wait_for(far_enough, "acknowledgements to the producers", HANG_S, children)
    server.kill9()
    return [child.line_count() for child in children]


def _die_before_the_answer(server: PidleaseServer, topic: str, random: Random) -> None:
    """A life that ends when a batch has been appended, and nobody has been told."""
    fault = f"kill after write */{topic}-*.log {random.randint(1, _WRITES_MAX)}"
    server.settings = {**server.settings, "faults": fault}
    server.launch()
    code = server.wait_exit(HANG_S)
    assert code == -signal.SIGKILL, f"{fault}: ended with {code}"
    assert "fault: kill after write" in server.log_text()
