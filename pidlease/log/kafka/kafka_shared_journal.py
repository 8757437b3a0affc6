"""The coordinator's rows in Kafka, for several active servers (--shared).

One of them is the registrar: the writer of the topic, as a server that serves the cluster alone.
The others read the topic, and send it what they want to put over HTTP. So what a put expects is
checked against all rows, and only what holds is in the log (ADR 38).

The registrar puts the row "owner" every half second, with its address. If a server sees three times
that it has not come, or if nothing listens at the address, it becomes the registrar itself. Kafka
fences the former one, so a server that is wrong about that costs a change of the registrar, never a
row.

A session is kept by signs of life to the registrar, which removes the rows of those that are silent
(`SESSION`). It counts its own ticks: if it was suspended, nobody's session has ended.
"""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import structlog
from typing_extensions import override

from pidlease.coordination.journal.journal import (
    SESSION,
    Fields,
    JournalConflictError,
    JournalError,
    NotRegistrarError,
    Row,
)
from pidlease.coordination.journal.put_request import PutRequest
from pidlease.kafka.client.kafka_client import Upstream
from pidlease.log.kafka.kafka_journal import (
    BACKOFF,
    SECONDS,
    SERVED_TOPIC,
    SILENT_LOOKS,
    KafkaJournal,
)
from pidlease.observability.repeated_lines import LINES, kind_of

#: The name of all active servers together, for one that serves alone.
SEVERAL: Final = "several"
#: How often the registrar shows itself, and others show themselves to it.
TICK_SECONDS: Final = 0.5
#: After so many looks without a row of the registrar, another server takes over.
_SILENT_TICKS: Final = 3
#: So often in a row must nothing listen at the registrar's address.
_REFUSALS_MAX: Final = 2
#: The kinds with rows that end with a session.
_OF_SESSIONS: Final = ("member",)

_log = structlog.get_logger(__name__)


class RegistrarAwayError(Exception):
    """The registrar has not answered; it may have put rows."""


class RegistrarGoneError(Exception):
    """Nothing listens at the registrar's address."""


#: Sends a request to the registrar at an address; returns the status and the body of the response.
AskRegistrar = Callable[[str, bytes], Awaitable[tuple[int, str]]]


class SharedKafkaJournal(KafkaJournal):
    """Rows in the topic `__pidlease`, for one of several active servers.

    Parameters:
        upstream: the cluster, after its first metadata response.
        server: this server's name, for the operator.
        clock_ms: the time, in ms since 1970.
        url: where other active servers reach this one's HTTP port.
        session_seconds: silence that ends a session.
        ask: asks the registrar; RegistrarAwayError, RegistrarGoneError: it does not answer.
    """

    def __init__(
        self,
        upstream: Upstream,
        server: str,
        clock_ms: Callable[[], int],
        url: str,
        session_seconds: float,
        ask: AskRegistrar,
    ) -> None:
        super().__init__(upstream, server, SEVERAL, clock_ms)
        self._url: Final = url
        self._session_ticks: Final = session_seconds / TICK_SECONDS
        self._ask: Final = ask
        self._tasks: list[asyncio.Task[None]] = []
        #: The registrar's last row, and how many looks found no newer one.
        self._seen: Fields = {}
        self._looks = 0
        #: The registrar that is gone, by its run.
        self._gone = ""
        self._refusals = 0
        #: The registrar that has replaced this one: it lives, though it may not be reached.
        self._replaced_by = ""
        #: Ticks since a session has shown itself, if this server is the registrar.
        self._heard: dict[str, int] = {}

    # ------------------------------------------------------------------ the registrar's row

    @override
    def _owner_row(self, server: str) -> Row:
        row = super()._owner_row(SEVERAL if server else "")
        return row._replace(fields={**(row.fields or {}), "name": server, "url": self._url})

    @property
    def stranger(self) -> str:
        """The name of a server without --shared that serves the cluster; empty: none."""
        owner = self._owner()
        return str(owner["server"]) if self._serves_elsewhere(owner) else ""

    @property
    def is_registrar(self) -> bool:
        """Whether this server writes the rows, as far as it knows."""
        return self._writes and self._owner().get("run") == self._run

    @property
    def _writes(self) -> bool:
        """Whether it is the writer, or must find out whether it still is."""
        return self._writer is not None or self._unsettled

    @override
    async def _claim(self) -> str:
        await self._make_topic()
        await self._look()
        if self.stranger and self._looks < SILENT_LOOKS:
            return self.stranger
        if not self._owner().get("server") or self.stranger:
            await self._become()
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._run_on(each))
                           for each in (self._watch_registrar, self._show)]  # fmt: skip
        return ""

    async def _look(self) -> None:
        """Read on, and count the looks without a new row of the registrar."""
        await self._refresh()
        owner = self._owner()
        self._looks = self._looks + 1 if owner is self._seen else 0
        self._seen = owner

    async def _become(self) -> None:
        """Become the registrar.

        Raises:
            JournalError: this server may be the registrar, or not.
            UpstreamError: Kafka does not answer now.
        """
        first = self._created and not self._rows
        former = self._owner()
        await self._take()
        if self.stranger and self._owner() is not former:
            raise JournalError(f"{self.stranger} serves this cluster without --shared")
        await self._put_owner()
        self.first_service = self.first_service or first
        self._heard.clear()
        self._gone = self._replaced_by = ""
        _log.info("this server keeps the rows of all active servers", topic=SERVED_TOPIC,
                  former=former.get("name") or former.get("server") or None,
                  writer=self._writer)  # fmt: skip

    @override
    def _check_owner(self) -> None:
        """Check that no other server has become the registrar.

        Raises:
            NotRegistrarError: one has.
        """
        owner = self._owner()
        if not self._writes or owner.get("run") == self._run:
            return
        self._writer, self._unsettled = None, False
        self._replaced_by = str(owner.get("run"))
        _log.warning("another server keeps the rows now", server=owner.get("name"))
        raise NotRegistrarError(f"{owner.get('name') or 'another server'} keeps the rows now")

    @override
    async def _refresh(self) -> None:
        try:
            await super()._refresh()
        except NotRegistrarError:
            await self._read_on()

    # ------------------------------------------------------------------ putting

    @override
    async def _put(self, rows: Sequence[Row], expected: Sequence[Row]) -> None:
        latest = time.monotonic() + SECONDS
        failures = 0
        while True:
            try:
                registrar = await self._locked(self._registrar)
                if registrar is not None:
                    await self._send(registrar, rows, expected)
                else:
                    await self._locked(partial(self._try_to_put, lambda: rows, expected))
            except (NotRegistrarError, RegistrarGoneError, RegistrarAwayError) as error:
                # If an attempt has put the rows, the next one finds other ones than expected.
                again = bool(expected) or not isinstance(error, RegistrarAwayError)
                if not again or time.monotonic() >= latest:
                    raise JournalError(f"no server keeps the rows now: {error}") from error
            else:
                return
            failures += 1
            await asyncio.sleep(BACKOFF.seconds(failures))

    async def _registrar(self) -> Fields | None:
        """Return the registrar's row; None: it is this server, or it has just become it.

        Raises:
            JournalError: a server without --shared serves the cluster, or another error.
            UpstreamError: Kafka does not answer now.
        """
        if self._ended:
            raise JournalError(self._ended)
        if self.is_registrar:
            return None
        await self._refresh()
        if self.stranger:
            raise JournalError(f"{self.stranger} serves this cluster without --shared")
        owner = self._owner()
        if owner.get("server") and owner["run"] != self._gone:
            return owner
        await self._become()
        return None

    async def _send(self, registrar: Fields, rows: Sequence[Row], expected: Sequence[Row]) -> None:
        """Have the registrar put rows.

        Raises:
            JournalConflictError: something else than expected is there; nothing was put.
            JournalError, RegistrarAwayError: they may have been put or not.
            RegistrarGoneError, NotRegistrarError: nothing was put.
        """
        run = str(registrar["run"])
        request = PutRequest(
            run=run, session=self.session, rows=list(rows), expected=list(expected)
        )
        asked = asyncio.ensure_future(
            self._ask(str(registrar["url"]), request.model_dump_json().encode())
        )
        try:
            while not (await asyncio.wait({asked}, timeout=TICK_SECONDS / 5))[0]:
                if run == self._gone or self._owner().get("run") != run:
                    raise RegistrarAwayError(f"{registrar['name']} does not answer")
            status, text = asked.result()
        except RegistrarGoneError:
            self._refusals += 1
            if self._refusals >= _REFUSALS_MAX and run != self._replaced_by:
                self._gone = run
            raise
        finally:
            asked.cancel()
        self._refusals = 0
        if status == HTTPStatus.CONFLICT:
            raise JournalConflictError(text)
        if status == HTTPStatus.MISDIRECTED_REQUEST:
            raise NotRegistrarError(text)
        if status != HTTPStatus.NO_CONTENT:
            raise JournalError(f"{registrar['name']} keeps the rows, and answers {status}: {text}")

    async def serve(self, request: PutRequest) -> None:
        """Put rows for another active server.

        Raises:
            NotRegistrarError: this server is not the registrar; nothing was put.
            JournalConflictError: something else than expected is there; nothing was put.
            JournalError: they may have been put or not.
        """
        if not (self.is_registrar and hmac.compare_digest(request.run, self._run)):
            raise NotRegistrarError("another server keeps the rows")
        self._heard[request.session] = 0
        rows = request.rows_to_put()
        if rows:
            expected = request.rows_expected()
            await self._locked(partial(self._try_to_put, lambda: rows, expected))

    # ------------------------------------------------------------------ signs of life

    async def _run_on(self, tick: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                await tick()
            except (
                JournalError,
                NotRegistrarError,
                RegistrarGoneError,
                RegistrarAwayError,
            ) as error:
                LINES.write(_log, "warning", "the coordinator's rows cannot be kept now",
                            kind_of(error), error=str(error))  # fmt: skip
            except Exception as error:  # noqa: BLE001 - the next tick is needed all the same
                LINES.write(_log, "error", "the coordinator's rows cannot be kept now",
                            kind_of(error), error, error=repr(error))  # fmt: skip

    async def _watch_registrar(self) -> None:
        """Read on; take over if the registrar is silent."""
        await self._locked(self._look)
        if self._looks >= _SILENT_TICKS and not self.stranger and not self.is_registrar:
            self._gone = str(self._owner().get("run"))
            await self._locked(self._registrar)

    async def _show(self) -> None:
        """Show this server to the others, if it is the registrar, or else to that."""
        registrar = await self._locked(self._registrar)
        if registrar is not None:
            await self._send(registrar, (), ())
            return
        await self._check()
        await self._end_sessions()

    async def _end_sessions(self) -> None:
        """Remove the rows of sessions that have ended."""
        for session in self._heard:
            self._heard[session] += 1
        rows = [
            Row(kind, id_, fields)
            for kind in _OF_SESSIONS
            for id_, fields in self.all(kind).items()
            if fields[SESSION] != self.session
        ]
        silent = [
            row for row in rows
            if row.fields and self._heard.setdefault(row.fields[SESSION], 0) > self._session_ticks
        ]  # fmt: skip
        known = {row.fields[SESSION] for row in rows if row.fields}
        self._heard = {each: ticks for each, ticks in self._heard.items() if each in known}
        if silent:
            _log.warning("sessions have ended", rows=[f"{row.kind}/{row.id}" for row in silent])
            gone = [row._replace(fields=None) for row in silent]
            with suppress(JournalConflictError):  # one of them is a member again
                await self._locked(partial(self._try_to_put, lambda: gone, silent))

    @override
    async def release(self) -> None:
        for each in self._tasks:
            each.cancel()
            with suppress(asyncio.CancelledError):
                await each
        if self.is_registrar:
            await super().release()
        self._ended, self._released = "this server stops", True
