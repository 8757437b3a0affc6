"""Sends requests to a running server's HTTP port.

User and password come from the environment, and so does the authority of its certificate
(SSL_CERT_FILE, which openssl reads): a URL stands in lists of processes, and in messages.
"""

import http.client
import json
import os
import urllib.error
import urllib.request
from base64 import b64encode
from typing import Any, Final

#: The default address of a server.
URL: Final = "http://127.0.0.1:8080"
USER_VARIABLE: Final = "PIDLEASE_USER"
PASSWORD_VARIABLE: Final = "PIDLEASE_PASSWORD"  # noqa: S105 - a variable's name
_TIMEOUT_SECONDS: Final = 5.0
#: A change may wait for others, and for a slow disk.
_CHANGE_TIMEOUT_SECONDS: Final = 60.0
_ANSWER_BYTES_MAX: Final = 64 << 20


class UnreachableError(Exception):
    """No pidlease responds at the address; the message says what to do."""


class ServerRefusedError(Exception):
    """A server responded with an error.

    Attributes:
        code: the HTTP status.
        answer: the body's JSON; None: it is no JSON.
    """

    def __init__(self, url: str, code: int, reason: str, answer: Any) -> None:  # noqa: ANN401 - JSON
        super().__init__(f"the server at {url} is no pidlease ({code} {reason}); check --url")
        self.code: Final = code
        self.answer: Final = answer


def ask(url: str, path: str, change: object = None) -> Any:  # noqa: ANN401 - JSON
    """Send a request to a server; return the response's JSON.

    Parameters:
        path: the path and query.
        change: the body of a PATCH; None: send a GET.

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
    headers = {"Content-Type": "application/json", **_login(url)}
    body = None if change is None else json.dumps(change).encode()
    # Do not use the environment's proxies: the address is the server's own.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    timeout = _TIMEOUT_SECONDS if change is None else _CHANGE_TIMEOUT_SECONDS
    try:
        request = urllib.request.Request(  # noqa: S310 - checked above
            url.rstrip("/") + path, body, headers, method="GET" if change is None else "PATCH"
        )
        with opener.open(request, timeout=timeout) as answer:
            return json.loads(answer.read(_ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        raise ServerRefusedError(url, error.code, str(error.reason), _body(error)) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnreachableError(_unreachable(url, error, changes=change is not None)) from None


def _login(url: str) -> dict[str, str]:
    """Return the header of the login, if the environment has one and the URL is encrypted."""
    user, password = (os.environ.get(each, "") for each in (USER_VARIABLE, PASSWORD_VARIABLE))
    if not user or not url.startswith("https://"):
        return {}
    return {"Authorization": f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"}


def _unreachable(url: str, error: Exception, *, changes: bool) -> str:
    reason = getattr(error, "reason", error)
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
