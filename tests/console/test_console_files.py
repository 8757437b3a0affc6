"""The files of the console: how they are served, and that they need nothing from elsewhere."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Final

import httpx
import pytest
from fastapi import FastAPI

from pidlease.storage.topics.topic_store import Topic
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.configuration.settings import load_settings
from proxy.http.http_listener import add_http_api
from proxy.ops.console_page import add_console_page
from proxy.ops.ops_api import ops_app
from tests.http_api.appending import listening, path_of, values
from tests.kafka_listener.harness import serving

_ASSETS: Final = ("/console/console.css", "/console/console.js", "/console/charts.js",
                  "/console/elements.js", "/console/views.js", "/console/icon.svg")  # fmt: skip
_FOLDER: Final = Path(str(files("proxy.ops") / "console_assets"))


@asynccontextmanager
async def client_of(folder: Path, *, console: bool = True) -> AsyncIterator[httpx.AsyncClient]:
    async def scrape() -> bytes:
        return b""

    async with serving(folder) as server:
        server.engine.ready = True
        app: FastAPI = ops_app(lambda: server.engine, 0, scrape, str)
        add_http_api(app, lambda: server.engine, lambda: server.topics)
        if console:
            add_console_page(app)
        await server.engine.create_topic(Topic.new("t", 1))
        async with (
            listening(app) as port,
            httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}") as client,
        ):
            yield client


async def test_all_files_have_a_strict_policy(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        for path in ("/", *_ASSETS):
            response = await client.get(path)
            assert response.status_code == 200, path
            policy = response.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert response.headers["x-content-type-options"] == "nosniff"
            head = await client.head(path)
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-length"] == response.headers["content-length"]
            assert (await client.post(path)).status_code == 405


async def test_the_page_hides_no_other_path(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        for path in (
            "/x", "/console", "/console/", "/console/x.js", "/console/..%2fconsole_page.py",
            "/index.html",
        ):  # fmt: skip
            response = await client.get(path)
            assert (response.status_code, response.json()["code"]) == (404, "not_found"), path
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        assert (await client.post(path_of(), json=values("a"))).status_code == 200
        stream = {"content-type": "text/plain"}
        assert (await client.put("/v1/stream/s", headers=stream)).status_code == 201
        assert (await client.get("/v1/stream/s")).status_code == 200


async def test_without_the_page_its_paths_do_not_exist(tmp_path: Path) -> None:
    async with client_of(tmp_path, console=False) as client:
        for path in ("/", *_ASSETS):
            response = await client.get(path)
            assert (response.status_code, response.json()["code"]) == (404, "not_found")
        assert (await client.get("/v1/outcomes")).status_code == 200


def test_the_page_is_on_unless_a_setting_says_otherwise() -> None:
    assert load_settings(None, {}).console
    assert not load_settings(None, {"console": "false"}).console


@pytest.mark.parametrize("path", sorted(_FOLDER.iterdir()), ids=lambda path: path.name)
def test_nothing_comes_from_elsewhere_and_no_text_is_markup(path: Path) -> None:
    text = path.read_text()
    hosts = set(re.findall(r"https?://[^\s\"'`]+", text)) - {"http://www.w3.org/2000/svg"}
    assert hosts <= {"https://"}, "a check of a link's scheme"
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text)
    assert not re.findall(r"\beval\(|new Function|localStorage|document\.cookie", text)
    if path.suffix == ".html":
        assert not re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", text)
