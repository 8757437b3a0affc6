"""A request that another active server serves arrives there with all that makes it exact."""

from types import SimpleNamespace
from typing import Any, cast

import httpx
from starlette.requests import Request

from pidlease.core.byte_budget import ByteBudget
from pidlease.core.topic_partition import TopicPartition
from proxy.http.owner_requests import FORWARDED, OwnerRequests
from proxy.http.request_batch import _NAMES


async def test_no_header_of_an_append_is_left_out() -> None:
    got: list[httpx.Request] = []

    def serve(request: httpx.Request) -> httpx.Response:
        got.append(request)
        return httpx.Response(200, json={"offset": 0, "duplicate": False})

    owner = SimpleNamespace(node_id=2, server="other", http_url="http://other:1")
    shared = SimpleNamespace(node_id=1, owner_of=lambda _: owner)
    engine = cast("Any", SimpleNamespace(shared_cluster=shared))
    owners = OwnerRequests(lambda: engine, httpx.MockTransport(serve))
    given = dict.fromkeys(_NAMES, b"7")
    request = Request({
        "type": "http", "method": "POST", "path": "/v1/topics/t/partitions/0/records",
        "query_string": b"", "scheme": "http", "server": ("here", 1), "headers": [*given.items()],
    })  # fmt: skip
    response = await owners.send_on(
        request, TopicPartition("t", 0), b"content", ByteBudget(1 << 20)
    )
    await owners.close()
    assert response.status_code == 200
    assert got[0].content == b"content"
    assert got[0].headers[FORWARDED] == "1"
    assert {name for name in given if name.decode() in got[0].headers} == set(given)
