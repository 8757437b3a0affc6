"""The OpenAPI document: it says what is sent, and its examples are valid.

The suite's clients validate every response against it: see `openapi_check`.
"""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator, ValidationError

from pidlease.http_api.problems import MEDIA_TYPE
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.http.http_listener import add_http_api
from proxy.ops.ops_api import ops_app
from tests.http_api.appending import listening
from tests.http_api.openapi_check import OpenApiCheck
from tests.kafka_listener.harness import serving


async def _scrape() -> bytes:
    return b"up 1\n"


def _app(engine: Any = None) -> FastAPI:
    app = ops_app(lambda: engine, time.time_ns() // 1_000_000, _scrape, str)
    add_http_api(app, lambda: engine, lambda: None)
    return app


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield f"{method} {path}", operation


def test_operation_ids_are_names() -> None:
    ids = [operation["operationId"] for _, operation in _operations(_app().openapi())]
    assert len(ids) == len(set(ids)) > 10
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)+", each) for each in ids), ids


def test_errors_are_problem_documents_and_422_is_not_fastapi_s() -> None:
    for name, operation in _operations(_app().openapi()):
        for status, response in operation["responses"].items():
            if status >= "400" and operation["tags"] != ["operations"]:
                assert list(response["content"]) == [MEDIA_TYPE], (name, status)
        ours = operation["operationId"] in (
            "get_stream", "read_records", "append_records", "append_records_by_key",
        )  # fmt: skip
        assert ("422" in operation["responses"]) == ours


def test_examples_are_valid() -> None:
    document = _app().openapi()
    components = document["components"]
    found = 0
    for schema in components["schemas"].values():
        for example in schema.get("examples", ()):
            Draft202012Validator({**schema, "components": components}).validate(example)
            found += 1
    for _, operation in _operations(document):
        for response in operation["responses"].values():
            for content in response.get("content", {}).values():
                if "example" in content:
                    schema = {**content["schema"], "components": components}
                    Draft202012Validator(schema).validate(content["example"])
                    found += 1
    assert found > 10


async def test_the_pages_of_operators(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        server.engine.ready = True
        for engine in (server.engine, None):
            app = _app(engine)
            check = OpenApiCheck(app.openapi())
            async with (
                listening(app) as port,
                httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}") as client,
            ):
                for path in ("/healthz", "/readyz", "/metrics", "/v1/status", "/v1/topics"):
                    check.check("GET", path, await client.get(path))
                for path in ("/healthz", "/readyz"):
                    headers = await client.head(path)
                    assert headers.status_code == (await client.get(path)).status_code
                    assert not headers.content


async def test_docs_need_nothing_from_elsewhere() -> None:
    app = _app()
    async with (
        listening(app) as port,
        httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}") as client,
    ):
        page = await client.get("/docs")
        assert page.headers["content-type"].startswith("text/html")
        assert not re.findall(r"<script|<link|<img|src=|@import|https?://", page.text)
        for name, operation in _operations(app.openapi()):
            assert f'id="{operation["operationId"]}"' in page.text, name
        assert (await client.get("/openapi.json")).json() == app.openapi()


def test_the_check_finds_what_is_not_described() -> None:
    check = OpenApiCheck(_app().openapi())
    fit = {"offset": 1, "duplicate": False}
    path = "/v1/topics/t/partitions/0/records"
    check.check("POST", path, httpx.Response(200, json=fit))
    for wrong in (
        httpx.Response(201, json=fit),
        httpx.Response(200, json={**fit, "more": 1}),
        httpx.Response(200, json={"duplicate": False}),
        httpx.Response(200, text="fine"),
        httpx.Response(404, json={"error": "no"}),
    ):
        with pytest.raises((AssertionError, ValidationError)):
            check.check("POST", path, wrong)
