"""The console: a page for operators at /, which shows the JSON of the HTTP API. It changes nothing.

Its files are parts of the package: no build step makes them, and no file comes from another host.
"""

from importlib.resources import files
from typing import Final

from fastapi import FastAPI
from starlette.responses import Response

#: Scripts, styles and requests are the page's own; nothing inline is executed, so no record, name
#: or reason that is shown can become a script.
_CONTENT_SECURITY_POLICY: Final = "; ".join((
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
))  # fmt: skip
_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
#: The path of each file of the page, and its type.
_FILES: Final = {
    "/": ("console.html", "text/html"),
    "/console/console.css": ("console.css", "text/css"),
    "/console/console.js": ("console.js", "text/javascript"),
    "/console/charts.js": ("charts.js", "text/javascript"),
    "/console/elements.js": ("elements.js", "text/javascript"),
    "/console/views.js": ("views.js", "text/javascript"),
    "/console/icon.svg": ("icon.svg", "image/svg+xml"),
}


def add_console_page(app: FastAPI) -> None:
    """Serve the page and its files."""
    folder = files("proxy.ops") / "console_assets"
    for path, (name, kind) in _FILES.items():
        _add(app, path, (folder / name).read_bytes(), kind)


def _add(app: FastAPI, path: str, content: bytes, kind: str) -> None:
    async def asset() -> Response:
        """Return a file of the page."""
        return Response(content, headers=_HEADERS, media_type=kind)

    app.add_api_route(path, asset, methods=["GET", "HEAD"], include_in_schema=False)
