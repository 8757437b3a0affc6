"""What topics take: set for all of them, durably, and for each; and given to their partitions."""

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

#: Partitions that get a change before other tasks get their turn.
_AT_ONCE: Final = 500

_log = structlog.get_logger(__name__)


class TopicPolicies:
    """The policies of all topics.

    Parameters:
        store: where they are made durable.
        pool: the threads for blocking work.
    """

    def __init__(self, store: LogStore, pool: IoPool) -> None:
        #: What is set for all topics that have none of their own, by name.
        self.shared: dict[str, str] = {}
        self._store = store
        self._pool = pool

    async def load(self) -> None:
        """Read what is set for all topics.

        Raises:
            DataFolderError: it is damaged, or invalid here.
        """
        self.shared = await self._pool.run(self._store.topic_defaults)

    def of(self, topic: Topic) -> TopicPolicy:
        """What a topic takes.

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
        """Change what is set for all topics: durably first, then for each partition.

        Parameters:
            change: makes the new settings of the old ones; what it raises is raised.
            topics: all of them, by name; they do not change meanwhile.
            partitions: theirs.

        Raises:
            OSError: it could not be made durable; nothing has changed.
        """
        settings = change(dict(self.shared))
        await self._pool.run(partial(self._store.save_topic_defaults, settings))
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
