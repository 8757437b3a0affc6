"""Producers of several clients that go on whatever happens: when one is half done, one more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count as counted
from pathlib import Path
from typing import Final, Self

from tests.clients.child import Child, wait_for
from tests.clients.client import Client, Producing
from tests.clients.judge import Acked

#: What each program says of itself first.
_OWN_LINES: Final = 1
#: The next producer begins when so much is acknowledged to the one before: faults take as long as
#: they take, and each is to meet every client at work.
_SUCCESSOR: Final = 0.5


class Writer:
    """The producers of one client with one codec.

    Attributes:
        client: whose they are.
        codec: how they compress.
        children: by the numbers of their streams.
    """

    def __init__(self, client: Client, codec: str) -> None:
        self.client = client
        self.codec = codec
        self.children: dict[int, Child] = {}

    @property
    def newest(self) -> Child:
        """The one that has the most before it."""
        return self.children[max(self.children)]

    def needs_one(self, count: int) -> bool:
        """Whether none is less than half through its `count` records."""
        return not self.children or self.newest.line_count() > count * _SUCCESSOR


class Fleet:
    """Writers, each client's with a codec, into one topic.

    Parameters:
        bootstrap: where they write,
        topic: and what to.
        count: records of each producer.
        folder: for what they say.
        kinds: clients and codecs.
        timeout_s: so long everybody may take at most to get on; beyond that it hangs.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        count: int,
        folder: Path,
        kinds: Sequence[tuple[Client, str]],
        timeout_s: float,
    ) -> None:
        self.count = count
        self.writers = [Writer(client, codec) for client, codec in kinds]
        self._bootstrap = bootstrap
        self._topic = topic
        self._folder = folder
        self._timeout_s = timeout_s
        self._streams: Iterator[int] = counted()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def get_on(self) -> None:
        """Wait until each writer's newest producer was told of a record since now."""
        due: list[tuple[Child, int]] = []
        for writer in self.writers:
            if writer.needs_one(self.count):
                self._start_one(writer)
            # At once: to start the next one takes long where it is built first, and this one
            # may have come to its end by then.
            due.append((writer.newest, max(writer.newest.line_count(), _OWN_LINES)))
        children = [child for writer in self.writers for child in writer.children.values()]
        for child, seen in due:
            wait_for(
                lambda child=child, seen=seen: child.line_count() > seen,  # type: ignore[misc]
                f"an acknowledgement to {child.name}", self._timeout_s, children,
            )  # fmt: skip

    def finish(self) -> dict[int, list[Acked]]:
        """Wait until all have come to their end; for each stream, what its producer was told."""
        told: dict[int, list[Acked]] = {}
        for writer in self.writers:
            for stream, child in writer.children.items():
                lines = child.finish(self._timeout_s)
                assert writer.client.said_version(lines) == writer.client.version
                acked = (writer.client.acked(line) for line in lines)
                told[stream] = [each for each in acked if each is not None]
        return told

    def _start_one(self, writer: Writer) -> None:
        stream = next(self._streams)
        what = Producing(self._bootstrap, self._topic, writer.codec, stream, self.count)
        call = writer.client.producer(what, self._folder)
        child = Child.start(f"{writer.client.name}-{stream}", call.command, self._folder, call.env)
        writer.children[stream] = self._stack.enter_context(child)
