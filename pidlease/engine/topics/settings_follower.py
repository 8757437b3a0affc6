"""Follows the settings of topics that other active servers change."""

import asyncio
from typing import Final

import structlog

from pidlease.coordination.shared_call import SharedCall
from pidlease.engine.topics.topic_table import TopicTable
from pidlease.log.ports import LogStore
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import LogError
from pidlease.storage.io_pool import IoPool
from pidlease.storage.topics.topic_settings import SettingError, check_shared

_log = structlog.get_logger(__name__)


class SettingsFollower:
    """Applies the settings of topics that other active servers have changed.

    Parameters:
        store: reads the settings.
        table: the topics.
        pool: the threads for the coordinator.
    """

    def __init__(self, store: LogStore, table: TopicTable, pool: IoPool) -> None:
        self._store: Final = store
        self._table: Final = table
        self._pool: Final = pool
        self._call: Final = SharedCall(self._catch_up)
        self._task: asyncio.Task[None] | None = None

    async def look(self) -> None:
        """Begin to catch up; do not wait, because takeovers may hold up changes of topics."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._try_to_catch_up())

    async def stop(self) -> None:
        """Follow nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def catch_up(self) -> None:
        """Apply all changes that other servers have made before this call.

        Raises:
            LogError: the settings cannot be read now.
        """
        try:
            await self._call()
        except OSError as error:
            raise LogError(f"the settings of topics cannot be read now: {error}") from error

    async def _try_to_catch_up(self) -> None:
        try:
            await self.catch_up()
        except LogError as error:
            LINES.write(_log, "warning", "the settings of topics may be old", kind_of(error),
                        error=str(error))  # fmt: skip
        except Exception as error:  # noqa: BLE001 - the next look is needed all the same
            LINES.write(_log, "error", "the settings of topics could not be followed",
                        kind_of(error), error, error=repr(error))  # fmt: skip

    async def _catch_up(self) -> None:
        if await self._pool.run(self._store.settings_changed):
            await self._table.change(self._apply())

    async def _apply(self) -> None:
        shared = await self._pool.run(self._store.read_settings)
        try:
            check_shared(shared)
        except SettingError as error:
            _log.error("the settings of all topics are invalid here; the former ones stay in force",
                       error=str(error))  # fmt: skip
            shared = self._table.policies.shared
        await self._table.apply_settings(shared)
