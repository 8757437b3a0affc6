"""Dispatches the requests of consumer groups, and builds their handlers."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from pidlease.engine.engine import Engine, wall_clock_ms
from pidlease.kafka.api import (
    API_DELETE_GROUPS,
    API_DESCRIBE_GROUPS,
    API_FIND_COORDINATOR,
    API_HEARTBEAT,
    API_JOIN_GROUP,
    API_LEAVE_GROUP,
    API_LIST_GROUPS,
    API_OFFSET_COMMIT,
    API_OFFSET_DELETE,
    API_OFFSET_FETCH,
    API_SYNC_GROUP,
)
from pidlease.storage.offsets.offset_store import OffsetStore
from pidlease.storage.topics.topic_store import Topic
from proxy.kafka.groups.group_admin_api import GroupAdminApi
from proxy.kafka.groups.group_coordinator import GroupCoordinator
from proxy.kafka.groups.group_steps import GroupLimits
from proxy.kafka.groups.membership_api import MembershipApi
from proxy.kafka.groups.offset_expiry import Expiry
from proxy.kafka.groups.offsets_api import OffsetsApi
from proxy.kafka.request_order import Ordered


class GroupsApi:
    """Consumer groups, and their committed offsets.

    Parameters:
        addresses: the host and port that clients connect to, by the name of their listener.
        clock_ms: returns the time, in ms since 1970.

    Attributes:
        requests: API key -> its handler.
    """

    def __init__(
        self,
        engine: Engine,
        offsets: OffsetStore,
        limits: GroupLimits,
        addresses: Mapping[str, tuple[str, int]],
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.coordinator: Final = GroupCoordinator(offsets, limits, clock_ms)
        self.expiry: Final = Expiry(self.coordinator, offsets, clock_ms)
        membership = MembershipApi(self.coordinator)
        committed = OffsetsApi(engine, self.coordinator, offsets, clock_ms)
        admin = GroupAdminApi(self.coordinator, offsets, addresses)
        self.requests: Final[dict[int, Ordered]] = {
            API_OFFSET_COMMIT: committed.offset_commit,
            API_OFFSET_FETCH: committed.offset_fetch,
            API_FIND_COORDINATOR: admin.find_coordinator,
            API_JOIN_GROUP: membership.join_group,
            API_HEARTBEAT: membership.heartbeat,
            API_LEAVE_GROUP: membership.leave_group,
            API_SYNC_GROUP: membership.sync_group,
            API_DESCRIBE_GROUPS: admin.describe_groups,
            API_LIST_GROUPS: admin.list_groups,
            API_DELETE_GROUPS: admin.delete_groups,
            API_OFFSET_DELETE: committed.offset_delete,
        }
        self._engine = engine
        self._offsets = offsets
        self._maintenance: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start serving, after the engine's recovery and the read of the stored offsets."""
        topics = self._engine.topics.values()
        self._offsets.keep_topics({topic.name: topic.topic_id for topic in topics})
        self.coordinator.start()
        self._engine.on_topic_deleted.append(self._forget)
        self._maintenance = asyncio.create_task(self.expiry.run())

    async def close(self) -> None:
        """Complete all waiting requests, and reject new ones. Pending writes go on."""
        self.coordinator.close()
        if self._maintenance is not None:
            self._maintenance.cancel()
            with suppress(asyncio.CancelledError):
                await self._maintenance

    async def _forget(self, topic: Topic) -> None:
        self._offsets.forget_topic(topic.topic_id)
