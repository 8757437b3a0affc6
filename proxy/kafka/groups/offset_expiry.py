"""Expires committed offsets, and removes empty groups without offsets."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import structlog

from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.offsets.journal_records import CommittedOffset, Forget, Record, RemoveGroup
from pidlease.storage.offsets.offset_store import OffsetStore
from pidlease.storage.offsets.offset_table import StoredGroup
from proxy.kafka.groups.group import State
from proxy.kafka.groups.group_coordinator import GroupCoordinator
from proxy.kafka.groups.subscription import CONSUMER

#: How often offsets are expired (Kafka's offsets.retention.check.interval.ms).
_CHECK_SECONDS: Final = 600.0
#: How often failed writes of the coordinator are retried.
_TICK_SECONDS: Final = 1.0
#: Groups that are checked before other tasks run.
_GROUPS_AT_ONCE: Final = 100

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Expiry:
    """Expires offsets that no group needs.

    Attributes:
        clock_ms: returns the time, in ms since 1970.
    """

    coordinator: GroupCoordinator
    offsets: OffsetStore
    clock_ms: Callable[[], int]

    async def run(self) -> None:
        """Run until cancelled."""
        checked = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = time.monotonic()
            try:
                self.coordinator.store_again()
                if now - checked >= _CHECK_SECONDS:
                    checked = now
                    await self.check()
            except Exception as error:  # noqa: BLE001 - the next run tries again
                LINES.write(_log, "error", "maintenance of consumer groups failed", kind_of(error),
                            error, error=repr(error))  # fmt: skip

    async def check(self) -> None:
        """Remove expired offsets, and empty groups without offsets.

        As in GroupCoordinatorShard.cleanupGroupMetadata. A topic's offsets are removed when its
        deletion is complete, not here: a deletion that has begun may still fail.
        """
        ids = list(self.offsets.table.groups)
        for start in range(0, len(ids), _GROUPS_AT_ONCE):
            records = [self._removal(each) for each in ids[start : start + _GROUPS_AT_ONCE]]
            writes = [self.offsets.write(each) for each in records if each is not None]
            # The store logs a failure; the next run tries again.
            await asyncio.gather(*writes, return_exceptions=True)
            await asyncio.sleep(0)

    def _removal(self, group_id: str) -> Record | None:
        """Return the record that removes a group or its expired offsets."""
        stored = self.offsets.table.groups.get(group_id)
        if stored is None or self.offsets.is_busy(group_id):
            return None  # a pending record may change what the group has
        expired = {topic: tuple(self._expired(group_id, stored, topic)) for topic in stored.topics}
        leaving = tuple((topic, numbers) for topic, numbers in expired.items() if numbers)
        left = any(len(expired[topic]) < len(part.offsets) for topic, part in stored.topics.items())
        if not left and self.coordinator.state(group_id) is State.EMPTY:
            if group_id in self.coordinator.active:
                return None  # a member is about to join
            _log.info("group removed: it has no members and no offsets", group=group_id)
            return RemoveGroup(group_id)
        if leaving:
            _log.info("offsets expired", group=group_id, topics=len(leaving))
            return Forget(group_id, leaving)
        return None

    def _expired(self, group_id: str, stored: StoredGroup, topic: str) -> Iterator[int]:
        """Yield the partitions of a topic with expired offsets (ClassicGroup, KIP-211)."""
        group = self.coordinator.active.get(group_id)
        state = self.coordinator.state(group_id)
        if group is not None and (group.unsaved or group.reads(topic)):
            return  # an unsaved group has only just become empty
        since_ms = 0
        if state is State.EMPTY:
            # An offset committed later counts from its commit.
            since_ms = max(stored.empty_ms, 0)
        elif self.coordinator.protocol_type(group_id) != CONSUMER or state is not State.STABLE:
            return
        now_ms = self.clock_ms()
        for partition, committed in stored.topics[topic].offsets.items():
            if self._is_past(committed, since_ms, now_ms):
                yield partition

    def _is_past(self, committed: CommittedOffset, since_ms: int, now_ms: int) -> bool:
        if committed.expire_ms >= 0:
            return now_ms >= committed.expire_ms
        since_ms = max(since_ms, committed.commit_ms)
        return now_ms - since_ms >= self.coordinator.limits.offsets_retention_ms
