"""A search over 10,000 partitions lets the event loop turn: by its steps, not by time."""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final, TypeVar, cast

import pytest

from pidlease.engine.engine import Engine
from pidlease.kafka.codec.time_slices import STEPS_AT_ONCE
from proxy.http.console_answers import PartitionSearch

_TOPICS: Final = 1000
_EACH: Final = 10
_Found = TypeVar("_Found")


class _Engine:
    """10,000 partitions; it counts those that were looked at.

    Attributes:
        seen: partitions and topics that the search has asked for.
    """

    def __init__(self) -> None:
        self.topics = [f"topic-{number:04}" for number in range(_TOPICS)]
        self.awaited: dict[str, Any] = {}
        self.topics_version = 1
        self.seen = 0
        self.pool = self

    def partitions_of(self, _: str) -> Sequence[SimpleNamespace]:
        self.seen += 1 + _EACH
        return (SimpleNamespace(log=SimpleNamespace(stopped=""), taken_over=False),) * _EACH

    async def run(self, call: Callable[[], _Found]) -> _Found:
        return call()


@pytest.mark.parametrize("search", ["", "TOPIC"])
async def test_a_search_of_all_partitions_is_done_in_slices(search: str) -> None:
    engine = _Engine()
    answer = asyncio.create_task(
        PartitionSearch().answer(cast("Engine", engine), search, "stopped", "", 100)
    )
    turns, before, most = 0, 0, 0
    while not answer.done():
        await asyncio.sleep(0)
        most = max(most, engine.seen - before)
        turns, before = turns + 1, engine.seen
    assert (await answer).partitions == []
    assert engine.seen == _TOPICS * (1 + _EACH)
    # A topic's partitions are fetched together, so a slice may end within one topic.
    assert most <= STEPS_AT_ONCE + 1 + _EACH
    assert turns >= _TOPICS * (1 + _EACH) // STEPS_AT_ONCE
