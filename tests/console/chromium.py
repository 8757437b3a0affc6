"""A real Chromium, as far as this machine has one, and the console of a server in this process."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest

from pidlease.engine.engine import wall_clock_ms
from pidlease.engine.outcome_history import SAMPLE_SECONDS, OutcomeHistory
from pidlease.observability.loop_lag import LoopLag
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.http.console_answers import Broker, ConsoleSources
from proxy.http.http_listener import add_http_api
from proxy.ops.console_page import add_console_page
from proxy.ops.ops_api import ops_app
from tests.http_api.appending import listening
from tests.kafka_listener.harness import Server, Wanted, serving
from tests.servers.waiting import WAIT_S

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

#: Names of the program; TESTS_CHROMIUM names another one.
_PROGRAMS: Final = ("chromium", "chromium-browser")
#: Guards against a browser that hangs, in ms.
HANG_MS: Final = 60_000


def program() -> str:
    """The browser; skips the test where there is none."""
    pytest.importorskip("playwright.async_api", reason="needs playwright")
    found = os.environ.get("TESTS_CHROMIUM") or next(filter(None, map(shutil.which, _PROGRAMS)), "")
    if not found:
        pytest.skip("needs Chromium: apt-get install chromium")
    return found


@asynccontextmanager
async def chromium() -> AsyncIterator["Browser"]:
    """A browser without windows; skips the test where it cannot run."""
    executable = program()
    from playwright.async_api import Error, async_playwright

    async with async_playwright() as playwright:
        try:
            browser = await playwright.chromium.launch(
                executable_path=executable, timeout=HANG_MS,
                # As root there is no sandbox; it loads the test's own page only.
                args=["--no-sandbox", "--disable-dev-shm-usage"],
            )  # fmt: skip
        except Error as error:
            pytest.skip(f"Chromium does not start here: {str(error)[:200]}")
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Seen:
    """What a page has complained about, and asked for."""

    errors: list[str] = field(default_factory=list)
    urls: set[str] = field(default_factory=set)


@asynccontextmanager
async def page_of(
    browser: "Browser", width: int = 1280, height: int = 800, scheme: Any = "light"
) -> AsyncIterator[tuple["Page", Seen]]:
    """A page of a new profile, and what it complains about."""
    context = await browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, timezone_id="UTC",
        reduced_motion="reduce",
    )  # fmt: skip
    context.set_default_timeout(HANG_MS)
    page, seen = await context.new_page(), Seen()
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("request", lambda request: seen.urls.add(request.url))

    def note(message: Any) -> None:
        if message.type in ("error", "warning"):
            seen.errors.append(message.text)

    page.on("console", note)
    try:
        yield page, seen
    finally:
        await context.close()


@dataclass
class Served:
    """A server in this process with its console."""

    url: str
    client: httpx.AsyncClient
    server: Server
    history: OutcomeHistory
    _samples: int = 0

    def sample(self) -> None:
        """Take a sample of the history; the samples of a test end now, whatever time it took."""
        self.history.sample(wall_clock_ms())
        step_ms = int(SAMPLE_SECONDS * 1000)
        last_ms = wall_clock_ms()
        kept = list(self.history.samples)
        self.history.samples.clear()
        self.history.samples.extend(
            each._replace(at_ms=last_ms - (len(kept) - 1 - index) * step_ms)
            for index, each in enumerate(kept)
        )


@asynccontextmanager
async def served(
    folder: Path, wanted: Wanted | None = None, brokers: tuple[Broker, ...] = ()
) -> AsyncIterator[Served]:
    """A server in this process, with its console."""

    async def scrape() -> bytes:
        return b""

    async with serving(folder, wanted) as server, LoopLag(0.01) as lag:
        server.engine.ready = True
        history = OutcomeHistory(lambda: server.engine, lag)
        app = ops_app(lambda: server.engine, 0, scrape, str)
        add_http_api(
            app, lambda: server.engine, lambda: server.topics,
            console=ConsoleSources(history, lambda: brokers),
        )  # fmt: skip
        add_console_page(app)
        async with listening(app) as port:
            url = f"http://{LOOPBACK}:{port}"
            async with httpx.AsyncClient(base_url=url, timeout=WAIT_S) as client:
                yield Served(url, client, server, history)
