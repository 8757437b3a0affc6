"""The golden histories of appends that fail, over the Kafka door and by the HTTP door's service.

The server is real but for its log, which stores or fails an append when the history says so.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from pidlease.core.pid import Policy
from pidlease.engine.append_service import AppendService
from pidlease.engine.partition import Partition
from pidlease.kafka.records.identity_header import Identity
from pidlease.log.ports import AppendDone, NewBatch
from pidlease.storage.errors import AppendFailedError
from tests.golden.appends import APPENDS, AppendHistory, append_id
from tests.kafka_listener.batches import changed, identified
from tests.kafka_listener.client import WireClient
from tests.kafka_listener.harness import Server

_CODES = {0: "appended", 13: "session ended", 19: "failed", 45: "overlap", 46: "duplicate"}


class Player:
    """Plays a history."""

    def __init__(self, server: Server, partition: Partition, policy: str) -> None:
        self.server = server
        self.partition = partition
        self.name = "web" if policy == "epoch" else ""
        self.pid = -1 if self.name else server.engine.leases.lease(Policy[policy.upper()])
        if policy == "monotonic":
            server.engine.leases.fences[self.pid] = -1  # a name is bound to it
        self.client: WireClient | None = None
        self.lock = asyncio.Lock()
        self.sent: deque[str] = deque()
        self.told: dict[str, str] = {}
        self.held: deque[tuple[Sequence[NewBatch], AppendDone]] = deque()
        self.append = partition.log.append
        self.reading: list[asyncio.Task[None]] = []

    def hold(self, batches: Sequence[NewBatch], done: AppendDone) -> None:
        self.held.append((batches, done))

    async def play(self, step: dict[str, Any]) -> None:
        if "send" in step:
            await self._send(step["send"], step["first"], step["last"])
        elif "log" in step:
            await self._log(fail=step["log"] == "fail")
        elif "told" in step:
            await self._settle(len(step["told"]))
            assert self.told == step["told"]
            self.told.clear()
        elif "reconnect" in step:
            self.client = None
        elif "holds" in step:
            found = [
                (found.identity.first, found.identity.last)
                for found in self.partition.log.read_batches(0)
                if found.identity is not None
            ]
            assert [list(each) for each in found] == step["holds"]
        await self._settle(-1)

    async def _send(self, name: str, first: int, last: int) -> None:
        identity = Identity(self.pid, self.name, 0, first, last)
        data = identified([name.encode()], identity)
        if self.name:
            service = AppendService(self.server.engine)
            work = service.append(
                self.partition, bytearray(changed(data, producer_id=-1)), identity
            )
            self.reading.append(asyncio.create_task(self._await(name, work)))
            return
        if self.client is None:
            self.client = await self.server.connect()
            self.sent.clear()
        self.client.send_produce("t", data)
        self.sent.append(name)
        self.reading.append(asyncio.create_task(self._read(self.client)))

    async def _await(self, name: str, work: Any) -> None:
        self.told[name] = (await work).status.value

    async def _read(self, client: WireClient) -> None:
        async with self.lock:
            answer = await client.receive_produce()
        status = _CODES[answer.code]
        duplicate = answer.code == 0 and answer.message == "duplicate"
        self.told[self.sent.popleft()] = "duplicate" if duplicate else status

    async def _log(self, *, fail: bool) -> None:
        async with asyncio.timeout(60):
            while not self.held:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        while self.held:
            batches, done = self.held.popleft()
            if fail:
                done(AppendFailedError("no space left"))
            else:
                self.append(batches, done)
            await self._settle(-1)

    async def _settle(self, answers: int) -> None:
        async with asyncio.timeout(60):
            while len(self.told) < answers:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("history", APPENDS, ids=append_id)
async def test_history(
    server: Server, client: WireClient, history: AppendHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create("t")
    partition = server.engine.partition("t", 0)
    assert partition is not None
    player = Player(server, partition, history.policy)
    monkeypatch.setattr(partition.log, "append", player.hold)
    for step in history.steps:
        await player.play(step)
    assert any("holds" in step for step in history.steps)
    for task in player.reading:
        assert task.done()
        await task


def test_there_are_some_of_each_kind() -> None:
    assert len(APPENDS) == 8
    assert {each.policy for each in APPENDS} == {"strict", "monotonic", "epoch"}
