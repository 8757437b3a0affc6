"""Headers of the requests that active servers send to one another.

One marks them: a marked request is never sent on again. The other one names the client of a request
that is sent on; without it, the server itself is the client. Where servers know one another by
their certificates, `RequestAccess` refuses both from everyone else.
"""

from typing import Final
from urllib.parse import parse_qsl, urlencode

from proxy.http.current_caller import CALLER
from proxy.security.authorizer import Caller

#: Marks a request of another active server.
FORWARDED: Final = "pidlease-forwarded"
#: The principal and the address of the client that sent the request.
CLIENT: Final = "pidlease-client"
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


def client_of(value: bytes) -> Caller | None:
    """Return the client that a header names; None: it names none."""
    try:
        fields = dict(parse_qsl(value.decode(), keep_blank_values=True, errors=_ERRORS))
    except ValueError:
        return None
    if fields.keys() != set(Caller._fields) or not fields["principal"].startswith("User:"):
        return None
    return Caller(**fields)
