"""Streams that are over are removed without a request."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pidlease.storage.topics.stream_settings import STREAM_EXPIRES, STREAM_TYPE
from pidlease.storage.topics.topic_store import Topic
from proxy.http.streams import stream_catalog
from proxy.http.streams.stream_catalog import StreamCatalog
from tests.http_api.appending import door
from tests.servers.waiting import WAIT_S

_OVER = {STREAM_TYPE: "text/plain", STREAM_EXPIRES: "2001-01-01T00:00:00Z"}


async def test_one_that_cannot_be_removed_does_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_catalog, "_SWEEP_SECONDS", 0.01)
    tried = []
    async with door(tmp_path) as here:
        engine, topics = here.server.engine, here.server.topics
        delete = topics.delete

        async def failing(name: str) -> None:
            tried.append(name)
            if name == "a":
                raise OSError(5, "Input/output error")
            await delete(name)

        monkeypatch.setattr(topics, "delete", failing)
        for name in "abc":
            await engine.create_topic(Topic.new(name, 1, _OVER))
        catalog = StreamCatalog(lambda: engine, lambda: topics)
        with capture_logs() as logs:
            catalog.start()
            async with asyncio.timeout(WAIT_S):
                while engine.topics.keys() & {"b", "c"} or tried.count("a") < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            catalog.close()
        assert "a" in engine.topics
        assert any("could not be removed" in each["event"] for each in logs)
