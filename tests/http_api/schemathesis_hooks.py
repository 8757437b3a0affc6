"""What schemathesis does not know by itself; it imports this module."""

from typing import Any

import schemathesis
from schemathesis import Case, HookContext, SerializationContext

from pidlease.http_api.record_messages import WAIT_MS_MAX

#: A read may wait for records for a minute.
_WAIT_MS_MAX = 20


@schemathesis.serializer("application/x-ndjson")
def ndjson(context: SerializationContext, value: Any) -> bytes:
    """The OpenAPI document says that such a body is text."""
    return value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")


@schemathesis.hook
def before_call(context: HookContext, case: Case[Any], kwargs: dict[str, Any]) -> None:
    """Let no valid read wait for long."""
    wait = str((case.query or {}).get("wait_ms"))
    if wait.isdecimal() and _WAIT_MS_MAX < int(wait) <= WAIT_MS_MAX:
        case.query["wait_ms"] = _WAIT_MS_MAX
