"""Refuses changes that web pages of other origins ask for.

A browser sends some requests of any page at once, with the login that it keeps, and hides only the
response: a POST with a body of plain text, among others (the Fetch standard, "CORS-safelisted").
"""

from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pidlease.http_api.problems import Problem
from proxy.http.direct_appends import is_foreign
from proxy.http.errors import refusal

_ANY: Final = "*"
#: Of pages of this server, and of requests that no page sends: of an extension of the browser.
_OWN_SITES: Final = ("same-origin", "none")
_READS: Final = ("GET", "HEAD", "OPTIONS")


class ForeignPages:
    """Refuses requests of other pages than this server's own and those of some origins.

    Parameters:
        origins: of the pages that may send requests; `*`: all.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app: Final = app
        self._origins: Final = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] == "http" and scope["method"] not in _READS and is_foreign(scope):
            headers = Headers(scope=scope)
            origin = headers["origin"]
            if not self._may_send(origin, headers):
                text = f"a web page of {origin} sent the request; see the setting cors-origins"
                await refusal(Problem.NOT_AUTHORIZED, text)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _may_send(self, origin: str, headers: Headers) -> bool:
        if origin in self._origins or _ANY in self._origins:
            return True
        # A browser that says where the page is from knows better: a load balancer may have replaced
        # Host. It says so to https and to the machine itself only.
        site = headers.get("sec-fetch-site")
        if site is not None:
            return site in _OWN_SITES
        return origin.partition("://")[2] == headers.get("host")
