"""Headers of the requests that active servers send to one another.

One marks them: a marked request is never sent on again. The other one names the client of a request
that is sent on; without it, the server itself is the client. Where servers know one another by
their certificates, `RequestAccess` refuses both from everyone else.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from pidlease.coordination.journal.put_request import PUT_PATH
from pidlease.http_api.ping_messages import PING_PATH
from pidlease.http_api.state_messages import STATE_OFFSETS_PATH, STATES_PATH
from proxy.http.current_caller import CALLER
from proxy.security.authorizer import Caller

#: Marks a request of another active server.
FORWARDED: Final = "pidlease-forwarded"
#: The principal and the address of the client that sent the request.
CLIENT: Final = "pidlease-client"
#: The paths, with their methods, by which active servers stay members and follow each other.
MEMBER_PATHS: Final = {
    PING_PATH: "GET", PUT_PATH: "POST", STATES_PATH: "POST", STATE_OFFSETS_PATH: "POST",
}  # fmt: skip
_MARK: Final = FORWARDED.encode()
#: A token's user may have characters that UTF-8 does not have.
_ERRORS: Final = "surrogatepass"


def marked_headers() -> dict[str, str]:
    """Return the headers of a request for this server itself."""
    return {FORWARDED: "1"}


def sent_on_headers() -> dict[str, str]:
    """Return the headers of a request that is sent on for the present client."""
    current = CALLER.get()
    if current is None:
        return marked_headers()
    return {**marked_headers(), CLIENT: urlencode(current.caller._asdict(), errors=_ERRORS)}


def is_of_member(scope: Mapping[str, Any]) -> bool:
    """Whether a request is one by which another active server stays a member."""
    return MEMBER_PATHS.get(scope["path"]) == scope["method"] and any(
        name == _MARK for name, _ in scope["headers"]
    )


def client_of(value: bytes) -> Caller | None:
    """Return the client that a header names; None: it names none."""
    try:
        fields = dict(parse_qsl(value.decode(), keep_blank_values=True, errors=_ERRORS))
    except ValueError:
        return None
    if fields.keys() != set(Caller._fields) or not fields["principal"].startswith("User:"):
        return None
    return Caller(**fields)
