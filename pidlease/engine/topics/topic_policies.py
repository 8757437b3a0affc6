"""The policies of topics: the settings of all topics, and their effect on each partition."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from pidlease.core.topic_policy import TopicPolicy
from pidlease.engine.partition import Partition
from pidlease.log.ports import LogStore
from pidlease.storage.io_pool import IoPool
from pidlease.storage.topics.topic_settings import SettingsChange, policy_in_force
from pidlease.storage.topics.topic_store import Topic

#: Partitions that get a change before other tasks can run.
_AT_ONCE: Final = 500

_log = structlog.get_logger(__name__)


class TopicPolicies:
    """The policies of all topics.

    Parameters:
        store: stores the settings.
    """

    def __init__(self, store: LogStore, pool: IoPool) -> None:
        #: The settings of all topics, by name.
        self.shared: dict[str, str] = {}
        self._store = store
        self._pool = pool

    async def load(self) -> None:
        """Read the settings of all topics.

        Raises:
            DataFolderError: they are damaged, or invalid here.
        """
        self.shared = await self._pool.run(self._store.topic_defaults)

    def of(self, topic: Topic) -> TopicPolicy:
        """Return the batches that a topic allows.

        Raises:
            SettingError: its settings are invalid.
        """
        policy = policy_in_force(topic.overrides, self.shared)
        return replace(policy, compacted=True) if topic.compacted else policy

    async def change_shared(
        self,
        change: SettingsChange,
        topics: Mapping[str, Topic],
        partitions: Mapping[str, Iterable[Partition]],
    ) -> None:
        """Change the settings of all topics: durably first, then for each partition.

        Parameters:
            change: makes the new settings from the old ones; its errors are raised.
            topics: all topics by name; they must not change meanwhile.
            partitions: their partitions.

        Raises:
            OSError: the settings are not stored; nothing has changed.
        """
        settings = await self._pool.run(partial(self._store.change_topic_defaults, change))
        await self.apply_shared(settings, topics, partitions)

    async def apply_shared(
        self,
        settings: dict[str, str],
        topics: Mapping[str, Topic],
        partitions: Mapping[str, Iterable[Partition]],
    ) -> None:
        """Apply stored settings of all topics to each partition; otherwise as `change_shared`."""
        self.shared = settings
        changed = 0
        for name, topic in topics.items():
            policy = self.of(topic)
            for each in partitions[name]:
                each.policy = policy
                changed += 1
                if changed % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        _log.info("settings of all topics altered", settings=settings)
