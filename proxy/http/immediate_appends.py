"""Serves small appends in the protocol of their connection: no task, and nothing is waited for.

What is refused before its batch is submitted, and what cannot be made at once, is left to
`direct_appends`, so each refusal has one place. So is a request if its client is not known without
a wait, or has no right or no quota left: nothing has been counted or audited then.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final, Protocol

from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from pidlease.engine.append_outcome import Outcome
from pidlease.engine.keys_in_flight import KeyInFlightError
from pidlease.kafka.records.identity_header import Identity
from pidlease.kafka.records.record_batch import InvalidBatchError
from proxy.http.direct_appends import place_of
from proxy.http.errors import NotReadyError
from proxy.http.record_responses import RefusedError, appended
from proxy.http.record_routes import RECORDS_PATH, RecordRoutes
from proxy.http.request_batch import append_headers, by_key_or_headers
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

    def fits(self, size: int) -> bool:
        """Whether the client's quotas let it append so many bytes; counts nothing."""

    def count(self, size: int) -> None:
        """Count it for the client's quotas."""

    def acting(self) -> AbstractContextManager[None]:
        """Let code that runs meanwhile know the client."""

    def is_revoked(self) -> bool:
        """Whether the client may not send it any more; this is audited then."""


#: Admits a request, by its scope; None: it is refused, or that needs a wait.
Admit = Callable[[Any], Admitted | None]


class ImmediateAppends:
    """Submits small appends to a partition when their bodies have arrived.

    Parameters:
        records: the routes that serve all other appends, with the limits for both.
        count: counts the responses.
        admit: knows clients and their rights; None: all may append.
    """

    def __init__(self, records: RecordRoutes, count: Count, admit: Admit | None = None) -> None:
        self._records: Final = records
        self._route: Final = f"POST {RECORDS_PATH}"
        self._count: Final = count
        self._admit: Final = admit

    def submit(self, scope: Mapping[str, Any], body: bytearray, respond: Respond) -> bool:
        """Submit an append; False: nothing was submitted, serve the request otherwise.

        Parameters:
            scope: of the request (ASGI).
            body: all of it.
            respond: gets the response; perhaps before this returns.
        """
        place = place_of(scope)
        if place is None or len(body) > self._records.bytes_max:
            return False
        began = time.monotonic()
        held: HeldBytes | None = None
        try:
            service = self._records.service()
            partition = service.engine.partition(*place)
            if partition is None or partition.elsewhere:
                return False
            admitted = None if self._admit is None else self._admit(scope)
            if self._admit is not None and admitted is None:
                return False
            headers = append_headers(scope["headers"])
            named = by_key_or_headers(headers)
            build = self._records.maker.build_of(headers)
            held = HeldBytes(self._records.append_memory)
            held.more(len(body))
            batch = self._records.maker.make_now(build, body, named)
            size = 0 if batch is None else max(len(body), len(batch.data))
            if batch is None or (admitted is not None and not admitted.fits(size)):
                held.release()
                return False
            held.more(len(batch.data))
            done = partial(self._done, admitted, held, batch.identity, began, respond)
            with nullcontext() if admitted is None else admitted.acting():
                service.submit(
                    partition, batch.data, batch.identity, done, repeatable=batch.repeatable
                )
            if admitted is not None:
                admitted.count(size)
        except _REFUSED:
            if held is not None:
                held.release()
            return False
        return True

    def _done(
        self,
        admitted: Admitted | None,
        held: HeldBytes,
        identity: Identity | None,
        began: float,
        respond: Respond,
        outcome: Outcome,
    ) -> None:
        held.release()
        response = appended(outcome, identity)
        if admitted is not None and admitted.is_revoked():
            response = _REVOKED
        self._count(self._route, response.status_code, time.monotonic() - began)
        respond(response)
