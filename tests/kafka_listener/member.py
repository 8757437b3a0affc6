"""A member of a consumer group on a connection of its own, in chosen versions."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

from tests.kafka_listener.client import WireClient
from tests.kafka_listener.group_requests import (
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    SYNC_GROUP,
    committing,
    joining,
)
from tests.kafka_listener.harness import Server

#: Less than a session or a rebalance may take: what only their end brings about is too late.
WAIT_S = 25.0


async def until(happened: Callable[[], bool]) -> None:
    """Wait until something holds."""
    latest = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < latest
        await asyncio.sleep(0.002)


@dataclass
class Member:
    """A member; says what clients say."""

    client: WireClient
    group: str = "g"
    member_id: str = ""
    generation: int = -1
    instance: str | None = None
    join_version: int = 9
    sync_version: int = 5
    heartbeat_version: int = 4
    session_ms: int = 30_000
    rebalance_ms: int = 30_000

    @classmethod
    async def connect(cls, server: Server, group: str = "g", **more: Any) -> Self:
        """A member that has not joined yet."""
        return cls(await server.connect(), group, **more)

    def send_join(self, **more: Any) -> None:
        """Ask to join; `joined` takes the answer."""
        values = joining(self.group, self.member_id) | {
            "session_timeout": timedelta(milliseconds=self.session_ms),
            "rebalance_timeout": timedelta(milliseconds=self.rebalance_ms),
            "group_instance_id": self.instance,
        }
        self.client.send(JOIN_GROUP, self.join_version, **values | more)

    async def joined(self) -> Any:
        """The answer to a JoinGroup."""
        body = await self.client.receive()
        self.member_id = body.member_id
        if body.error_code == 0:
            self.generation = body.generation_id
        return body

    async def begin(self, **more: Any) -> None:
        """Ask to join, with an id, and wait for nothing more."""
        self.send_join(**more)
        if self.join_version >= 4 and not self.member_id and self.instance is None:
            assert (await self.joined()).error_code == 79
            self.send_join(**more)

    async def join(self, **more: Any) -> Any:
        """Join, however many requests it takes."""
        await self.begin(**more)
        return await self.joined()

    def send_sync(self, assignments: dict[str, bytes] | None = None, **more: Any) -> None:
        """Ask for the assignment; the leader says those of all."""
        given = [
            {"member_id": name, "assignment": each} for name, each in (assignments or {}).items()
        ]
        self.client.send(
            SYNC_GROUP, self.sync_version,
            **{
                "group_id": self.group, "generation_id": self.generation,
                "member_id": self.member_id, "group_instance_id": self.instance,
                "protocol_type": "consumer", "protocol_name": "range", "assignments": given,
            } | more,
        )  # fmt: skip

    async def sync(self, assignments: dict[str, bytes] | None = None, **more: Any) -> Any:
        """The assignment."""
        self.send_sync(assignments, **more)
        return await self.client.receive()

    async def heartbeat(self) -> int:
        """What it is told."""
        body = await self.client.call(
            HEARTBEAT, self.heartbeat_version, group_id=self.group, member_id=self.member_id,
            generation_id=self.generation, group_instance_id=self.instance,
        )  # fmt: skip
        return int(body.error_code)

    async def leave(self, version: int = 5) -> int:
        """What it is told."""
        identity = {"member_id": self.member_id, "group_instance_id": self.instance}
        body = await self.client.call(
            LEAVE_GROUP, version, group_id=self.group, member_id=self.member_id, members=[identity]
        )
        return int(body.members[0].error_code if version >= 3 else body.error_code)

    async def commit(self, topic: str, offsets: dict[int, int], version: int = 9) -> list[int]:
        """The codes, partition by partition."""
        values = committing(self.group, topic, offsets) | {
            "generation_id_or_member_epoch": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
        }
        body = await self.client.call(OFFSET_COMMIT, version, **values)
        return [int(part.error_code) for each in body.topics for part in each.partitions]


async def stable(server: Server, count: int = 2, **more: Any) -> list[Member]:
    """So many members with their first assignment, the leader first."""
    members = [await Member.connect(server, **more) for _ in range(count)]
    for each in members:
        await each.begin()
    leader = (await members[0].joined()).leader
    if count > 1:
        # The first came alone: with the others it joins once more.
        members[0].send_join()
        for each in members:
            leader = (await each.joined()).leader
    members.sort(key=lambda each: each.member_id != leader)
    members[0].send_sync({each.member_id: each.member_id.encode() for each in members})
    for each in members[1:]:
        each.send_sync()
    for each in members:
        body = await each.client.receive()
        assert (body.error_code, body.assignment) == (0, each.member_id.encode())
    return members
