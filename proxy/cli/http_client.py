"""Sends requests to a running server's HTTP port.

The login comes from a file or the environment: a URL stands in lists of processes, and in messages.
"""

import asyncio
import http.client
import json
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from typing import Any, Final

from proxy.cli.client_login import (
    LOGIN_HINT,
    PASSWORD_VARIABLE,
    USER_VARIABLE,
    CommandSecurity,
    command_security,
)

#: The default address of a server.
URL: Final = "http://127.0.0.1:8080"
_TIMEOUT_SECONDS: Final = 5.0
#: A change may wait for others, and for a slow disk.
_CHANGE_TIMEOUT_SECONDS: Final = 60.0
_ANSWER_BYTES_MAX: Final = 64 << 20
_LOGIN_REFUSED: Final = 401
_RIGHT_REFUSED: Final = 403


class UnreachableError(Exception):
    """No pidlease responds at the address; the message says what to do."""


class ServerRefusedError(Exception):
    """A server responded with an error.

    Attributes:
        code: the HTTP status.
        answer: the body's JSON; None: it is no JSON.
    """

    def __init__(self, url: str, code: int, reason: str, answer: Any, login_name: str = "") -> None:  # noqa: ANN401 - JSON
        text = f"the server at {url} is no pidlease ({code} {reason}); check --url"
        detail = (answer.get("detail") if isinstance(answer, dict) else None) or reason
        if code == _LOGIN_REFUSED:
            text = f"the server at {url} refuses {login_name} ({code} {detail}){LOGIN_HINT}"
        elif code == _RIGHT_REFUSED:
            text = f"the server at {url} refuses {login_name} ({code} {detail}); an ACL gives it"
        super().__init__(text)
        self.code: Final = code
        self.answer: Final = answer


def ask(
    url: str,
    path: str,
    change: object = None,
    security: CommandSecurity | None = None,
    *,
    method: str = "PATCH",
) -> Any:  # noqa: ANN401 - JSON
    """Send a request to a server; return the response's JSON.

    Parameters:
        path: the path and query.
        change: the body of a change; None: send a GET.
        security: TLS and login; None: those of the environment.
        method: of a change.

    Raises:
        UnreachableError: no server responds, or it is no pidlease.
        ServerRefusedError: the response's status is an error.
    """
    if not url.startswith(("http://", "https://")):
        raise UnreachableError(f"--url {url} is no HTTP address, for example {URL}")
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise UnreachableError(
            f"--url has a user or a password; give them by {USER_VARIABLE} and {PASSWORD_VARIABLE}"
        )
    security = security or command_security(None)
    headers = {"Content-Type": "application/json", **_login(url, security)}
    body = None if change is None else json.dumps(change).encode()
    # Do not use the environment's proxies: the address is the server's own.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        urllib.request.HTTPSHandler(context=security.connection.https_context),
    )
    timeout = _TIMEOUT_SECONDS if change is None else _CHANGE_TIMEOUT_SECONDS
    try:
        request = urllib.request.Request(  # noqa: S310 - checked above
            url.rstrip("/") + path, body, headers, method="GET" if change is None else method
        )
        with opener.open(request, timeout=timeout) as answer:
            return json.loads(answer.read(_ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        raise ServerRefusedError(
            url, error.code, str(error.reason), _body(error), security.login_name(url)
        ) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnreachableError(_unreachable(url, error, changes=change is not None)) from None


def _login(url: str, security: CommandSecurity) -> dict[str, str]:
    """Return the header of the login, if there is one and the URL is encrypted.

    Raises:
        UnreachableError: the file of the token cannot be read.
    """
    found = security.http_login(url)
    if found is None:
        return {}
    if isinstance(found, tuple):
        login = b64encode(":".join(found).encode()).decode()
        return {"Authorization": f"Basic {login}"}
    try:
        return {"Authorization": f"Bearer {asyncio.run(found.token())}"}
    except (OSError, ValueError) as error:
        raise UnreachableError(f"the token cannot be read: {error}") from None


def _unreachable(url: str, error: Exception, *, changes: bool) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLError):
        return f"{url}: TLS failed: {reason}{LOGIN_HINT}"
    if isinstance(reason, http.client.RemoteDisconnected | ConnectionResetError) and (
        url.startswith("http://")
    ):
        reason = f"{reason}; is it https://?"
    if changes and not isinstance(reason, ConnectionRefusedError):
        return f"{url} did not respond ({reason}); check whether the change was made"
    return (
        f"no pidlease answers at {url} ({reason}); start `pidlease serve`, or give --url the"
        " address of its --http-listen"
    )


def _body(error: urllib.error.HTTPError) -> Any:  # noqa: ANN401 - JSON
    try:
        with error:
            return json.loads(error.read(_ANSWER_BYTES_MAX))
    except (OSError, http.client.HTTPException, ValueError):
        return None
