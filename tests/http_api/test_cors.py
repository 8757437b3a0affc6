"""Requests of web pages from other origins: refused by browsers, unless the origin is set."""

from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

from proxy.configuration.settings import Settings
from tests.servers.pidlease import not_started

_ORIGIN = "https://shop.example.org"
_ASK = {
    "origin": _ORIGIN,
    "access-control-request-method": "POST",
    "access-control-request-headers": "content-type,producer-id,producer-epoch,producer-seq",
}


@pytest.mark.parametrize(
    ("origins", "allowed"),
    [
        ("", None),
        (_ORIGIN, _ORIGIN),
        (f"http://a:1,{_ORIGIN}", _ORIGIN),
        ("http://a", None),
        ("*", "*"),
    ],
)
def test_who_may_send(tmp_path: Path, origins: str, allowed: str | None) -> None:
    with not_started(tmp_path, cors_origins=origins) as server:
        server.start()
        path = f"{server.http_url}/v1/topics"
        asked = httpx.options(path, headers=_ASK)
        done = httpx.get(path, headers={"origin": _ORIGIN})
        for each in (asked, done):
            assert each.headers.get("access-control-allow-origin") == allowed
        assert done.status_code == 200
        if allowed:
            assert asked.status_code == 200
            refused = httpx.get(path + "/u", headers={"origin": _ORIGIN})
            assert refused.json()["code"] == "unknown_topic"
            assert refused.headers["access-control-allow-origin"] == allowed


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({}, False),
        ({"origin": _ORIGIN}, False),
        ({"origin": "https://evil.example"}, True),
        ({"origin": "null"}, True),
        ({"origin": "https://evil.example", "sec-fetch-site": "same-site"}, True),
        # Behind a load balancer that replaces Host.
        ({"origin": "https://public.example", "sec-fetch-site": "same-origin"}, False),
        ({"origin": "chrome-extension://abc", "sec-fetch-site": "none"}, False),
        ({"origin": "http://public.example", "host": "public.example"}, False),
    ],
)
def test_a_page_of_another_origin_changes_nothing(
    tmp_path: Path, headers: dict[str, str], refused: bool
) -> None:
    """Browsers send such a request, with the login that they keep, and hide only the response."""
    with not_started(tmp_path, cors_origins=_ORIGIN) as server:
        server.start()
        stream = f"{server.http_url}/v1/stream/notes"
        text = {"content-type": "text/plain"}
        assert httpx.put(stream, headers=text).status_code == 201
        done = httpx.post(stream, content=b"x", headers=text | headers)
        assert done.status_code == (403 if refused else 204)
        assert httpx.get(stream, headers=headers).content == (b"" if refused else b"x")
        if refused:
            assert done.json()["code"] == "not_authorized"
            assert "cors-origins" in done.json()["error"]


@pytest.mark.parametrize(
    "value", ["a", "https://", "https://a/b", "https://a b", "ftp://a", "https://*"]
)
def test_what_is_no_origin(tmp_path: Path, value: str) -> None:
    with pytest.raises(ValidationError, match="SCHEME"):
        Settings.model_validate({"data_dir": tmp_path, "cors_origins": value})
