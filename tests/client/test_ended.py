"""Producers that can send no more: they leave the name to the next one, and say so."""

import asyncio
import time
from typing import Any

import pytest

from pidlease.client import DeliveryTimeoutError, ProducerError, SessionEndedError
from pidlease.core.pid import Policy, make_pid
from tests.client.harness import world

_LAST = 2**63 - 1
#: It would be granted before the second producer's later record otherwise.
_BACKOFF_MS = 50


async def test_one_that_can_send_no_more_asks_for_its_name_no_more() -> None:
    """Once it fenced the next producer of the name when the coordinator came back."""
    async with world() as there:
        there.leases.away = 10**6
        options: dict[str, Any] = {"name": "n", "retry_backoff_max_ms": _BACKOFF_MS}
        async with there.producer(**options, delivery_timeout_ms=300) as first:
            with pytest.raises(DeliveryTimeoutError):
                await first.send_and_wait("t", b"x")
            with pytest.raises(SessionEndedError):
                await first.send("t", b"y")
            async with there.producer(**options) as second:
                sent = await second.send("t", b"x")
                there.leases.away = 0
                await sent
                for _ in range(3):
                    await asyncio.sleep(_BACKOFF_MS / 1000)
                    await second.send_and_wait("t", b"z")


_GONE = "no sequence number is left"


async def test_a_sequence_that_has_ended() -> None:
    """Once the record vanished: its future was never completed, and flush never returned."""
    async with (
        world() as there,
        there.producer(name="n", policy="monotonic", initial_sequence_id=_LAST - 1) as producer,
    ):
        assert (await producer.send_and_wait("t", b"x")).sequence == _LAST
        sent = await producer.send("t", b"y")
        with pytest.raises(ProducerError, match=_GONE):
            await sent
        with pytest.raises(SessionEndedError, match=_GONE):
            await producer.flush()
        with pytest.raises(SessionEndedError, match=_GONE):
            await producer.send("t", b"z")


async def test_a_batch_beyond_the_end_of_a_sequence() -> None:
    pid = make_pid(Policy.STRICT, 1)
    async with world() as there:
        there.leases.ends_at[pid] = time.monotonic() + 3600
        options: dict[str, Any] = {"pid": pid, "generation": 0, "sequences": {("t", 0): _LAST}}
        async with there.producer(**options) as producer:
            sent = [await producer.send("t", each) for each in (b"x", b"y")]
            for each in sent:
                with pytest.raises(ProducerError, match=_GONE):
                    await each
            with pytest.raises(SessionEndedError, match=_GONE):
                await producer.flush()


async def test_no_initial_id_is_beyond_the_last() -> None:
    async with world() as there:
        with pytest.raises(ValueError, match=f"initial_sequence_id {_LAST} is outside"):
            there.producer(name="n", policy="monotonic", initial_sequence_id=_LAST)
