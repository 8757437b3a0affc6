"""What is done with stored offsets from time to time: they expire."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import structlog

from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.offsets.journal_records import CommittedOffset, Forget, Record, RemoveGroup
from pidlease.storage.offsets.offset_table import StoredGroup
from proxy.kafka.groups.group import State
from proxy.kafka.groups.group_coordinator import Coordinator
from proxy.kafka.groups.offset_port import Offsets
from proxy.kafka.groups.subscription import CONSUMER

#: How often it is looked for what is to leave (Kafka's offsets.retention.check.interval.ms).
_CHECK_SECONDS: Final = 600.0
#: How often something else is looked for.
_TICK_SECONDS: Final = 1.0
#: Groups that are looked at before others get their turn.
_GROUPS_AT_ONCE: Final = 100

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Expiry:
    """Expires offsets that no group needs.

    Attributes:
        coordinator: knows the groups' states.
        offsets: what is stored.
        clock_ms: the time, in ms since 1970.
    """

    coordinator: Coordinator
    offsets: Offsets
    clock_ms: Callable[[], int]

    async def run(self) -> None:
        """Go on until cancelled."""
        checked = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = time.monotonic()
            try:
                self.coordinator.store_again()
                if now - checked >= _CHECK_SECONDS:
                    checked = now
                    await self.check()
            except Exception as error:  # noqa: BLE001 - what goes wrong once is tried again
                LINES.write(_log, "error", "maintenance of consumer groups failed", kind_of(error),
                            error, error=repr(error))  # fmt: skip

    async def check(self) -> None:
        """Let go of offsets that have expired, and of groups that are empty.

        See GroupCoordinatorShard.cleanupGroupMetadata. Those of a topic leave when it is deleted,
        and only then: one that is being deleted may yet stay.
        """
        ids = list(self.offsets.table.groups)
        for start in range(0, len(ids), _GROUPS_AT_ONCE):
            records = [self._leaving(each) for each in ids[start : start + _GROUPS_AT_ONCE]]
            writes = [self.offsets.write(each) for each in records if each is not None]
            # The store logs a failure; the next run tries again.
            await asyncio.gather(*writes, return_exceptions=True)
            await asyncio.sleep(0)

    def _leaving(self, group_id: str) -> Record | None:
        """What is to leave of a group; None: nothing."""
        stored = self.offsets.table.groups.get(group_id)
        if stored is None or self.offsets.is_busy(group_id):
            return None  # with a record in flight it is unknown what the group will have
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
        """The partitions of a topic with expired offsets (ClassicGroup, KIP-211)."""
        group = self.coordinator.active.get(group_id)
        state = self.coordinator.state(group_id)
        if group is not None and (group.unsaved or group.reads(topic)):
            return  # where it is not stored yet since when it is empty, it is so only now
        since_ms = 0
        if state is State.EMPTY:
            # Whatever came later counts from when it came.
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
