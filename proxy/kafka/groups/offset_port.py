"""What the groups ask of whoever stores their offsets."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from pidlease.storage.offsets.journal_records import Record
from pidlease.storage.offsets.offset_table import OffsetTable


class Offsets(Protocol):
    """Durable committed offsets; `pidlease.storage.offsets.offset_store` has them."""

    @property
    def table(self) -> OffsetTable:
        """What is stored, and may be returned."""

    def write(self, record: Record) -> "asyncio.Future[None]":
        """Store a record, after all that were given before.

        Returns:
            Done when it is stored and `table` says it; OffsetsFailedError where it is not.

        Raises:
            OffsetsFullError: there would be too many offsets.
        """

    def is_busy(self, group: str) -> bool:
        """Whether records of a group are being stored."""

    async def settled(self) -> None:
        """Wait until all that was given to `write` so far is stored, or has failed."""

    def keep_topics(self, topic_ids: Mapping[str, str]) -> None:
        """Let go of the offsets of all topics but these: name -> id."""

    def forget_topic(self, topic_id: str) -> None:
        """Let go of the offsets of a topic that was deleted."""
