"""Serves small appends in the protocol of their connection: no task, and nothing is waited for.

What is refused before its batch is submitted, and what cannot be made at once, is left to
`direct_appends`, so each refusal has one place. So is a request if its client is not known without
a wait, or has no right or no quota left: nothing has been counted or audited then.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, Protocol

from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from pidlease.engine.append_outcome import Outcome
from pidlease.engine.keys_in_flight import KeyInFlightError
from pidlease.kafka.records.record_batch import InvalidBatchError
from proxy.http.direct_appends import is_foreign, place_of
from proxy.http.errors import NotReadyError
from proxy.http.http_listener import HttpApi
from proxy.http.record_responses import RefusedError
from proxy.http.record_routes import RECORDS_PATH
from proxy.http.request_memory import HeldBytes

#: All that is raised before a batch is submitted.
_REFUSED: Final = (
    InvalidBatchError,
    KeyInFlightError,
    NotReadyError,
    RefusedError,
    RequestValidationError,
)
#: Counts a response: its route, status code and duration in seconds.
Count = Callable[[str, int, float], None]
#: Gets the response to a request.
Respond = Callable[[Response], None]
#: The response to a client that has lost its right meanwhile, as uvicorn makes it where an
#: application returns none.
_REVOKED: Final = Response("Internal Server Error", 500, {
    "Content-Type": "text/plain; charset=utf-8", "Content-Length": "21", "Connection": "close",
})  # fmt: skip


class Admitted(Protocol):
    """A request that its client may send."""

    def may_append(self, size: int, name: str | None) -> bool:
        """Whether the client's quotas let it append so many bytes, and its rights under a name.

        Nothing is counted or audited.
        """

    def count(self, size: int) -> None:
        """Count it for the client's quotas."""

    def acting(self) -> AbstractContextManager[None]:
        """Let code that runs meanwhile know the client."""

    def is_revoked(self) -> bool:
        """Whether the client may not send it any more; this is audited then."""


#: Admits a request, by its scope; None: it is refused, or that needs a wait.
Admit = Callable[[Any], Admitted | None]


class ImmediateAppends:
    """Submits small appends to partitions and streams when their bodies have arrived.

    Parameters:
        api: the routes that serve all other appends, with the limits for both.
        count: counts the responses.
        admit: knows clients and their rights; None: all may append.
    """

    def __init__(self, api: HttpApi, count: Count, admit: Admit | None = None) -> None:
        self._records: Final = api.records
        self._streams: Final = api.streams
        self._records_route: Final = f"POST {RECORDS_PATH}"
        self._streams_route: Final = f"POST {api.streams.path}"
        self._count: Final = count
        self._admit: Final = admit

    def serves(self, scope: Mapping[str, Any]) -> bool:
        """Whether a request is an append that may be small enough, by its method and path."""
        return place_of(scope) is not None or self._is_to_stream(scope)

    def _is_to_stream(self, scope: Mapping[str, Any]) -> bool:
        is_post = scope["method"] == "POST"
        return is_post and self._streams.is_stream(scope["path"]) and not is_foreign(scope)

    def submit(self, scope: Mapping[str, Any], body: bytearray, respond: Respond) -> bool:
        """Submit an append; False: nothing was submitted, serve the request otherwise.

        Parameters:
            scope: of the request (ASGI).
            body: all of it.
            respond: gets the response; perhaps before this returns.
        """
        place = place_of(scope)
        if place is None and not self._is_to_stream(scope):
            return False
        if len(body) > self._records.bytes_max:
            return False
        route = self._streams_route if place is None else self._records_route
        began = time.monotonic()
        held: HeldBytes | None = None
        try:
            service = self._records.service()
            admitted = None if self._admit is None else self._admit(scope)
            if self._admit is not None and admitted is None:
                return False
            held = HeldBytes(self._records.append_memory, len(body))
            if place is None:
                append = self._streams.prepare_now(scope, body)
            else:
                append = self._records.prepare_now(place, scope, body)
            size = 0 if append is None else max(len(body), len(append.data))
            if append is None or (
                admitted is not None
                and not admitted.may_append(size, service.name_of(append.identity))
            ):
                held.release()
                return False
            held.more(len(append.data))
            partition, data, identity, answer, repeatable, send = append
            done = partial(self._done, admitted, held, began, route, answer, respond)
            if admitted is None:
                service.submit(partition, data, identity, done, repeatable=repeatable, send=send)
            else:
                with admitted.acting():
                    service.submit(
                        partition, data, identity, done, repeatable=repeatable, send=send
                    )
                admitted.count(size)
        except _REFUSED:
            if held is not None:
                held.release()
            return False
        return True

    def _done(  # noqa: PLR0913, PLR0917 - of an append
        self,
        admitted: Admitted | None,
        held: HeldBytes,
        began: float,
        route: str,
        answer: Callable[[Outcome], Response],
        respond: Respond,
        outcome: Outcome,
    ) -> None:
        held.release()
        response = answer(outcome)
        if admitted is not None and admitted.is_revoked():
            response = _REVOKED
        self._count(route, response.status_code, time.monotonic() - began)
        respond(response)
