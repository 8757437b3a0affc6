"""The coordinator's rows in Kafka, for several active servers (--shared).

One of them is the registrar: the writer of the topic, as a server that serves the cluster alone.
The others read the topic, and send it what they want to put over HTTP. So what a put expects is
checked against all rows, and only what holds is in the log (ADR 38).

The registrar puts the row "owner" every half second, with its address. A server becomes the
registrar itself if nothing new comes for four seconds, for one if the registrar does not answer
pings either, or at once if nothing listens at the address. Kafka fences the former one, so a server
that is wrong about that costs a change of the registrar, never a row.

A session is kept by signs of life to the registrar, which removes the rows of those that are silent
(`SESSION`). It counts its own ticks: if it was suspended, no session has ended.
"""

import asyncio
import hmac
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import structlog
from typing_extensions import override

from pidlease.coordination.journal.journal import (
    OWNER,
    SESSION,
    Fields,
    JournalConflictError,
    JournalError,
    NotRegistrarError,
    Row,
)
from pidlease.coordination.journal.put_request import PutRequest
from pidlease.kafka.client.kafka_client import Upstream
from pidlease.kafka.client.transactions import SERVED_TOPIC
from pidlease.kafka.errors import UpstreamError
from pidlease.log.kafka.kafka_journal import (
    BACKOFF,
    SECONDS,
    SILENT_LOOKS,
    KafkaJournal,
)
from pidlease.observability.repeated_lines import LINES, kind_of

#: The name of all active servers together, for one that serves alone.
SEVERAL: Final = "several"
#: How often the registrar shows itself, and others show themselves to it.
TICK_SECONDS: Final = 0.5
#: After so many looks without anything new, another server takes over.
_SILENT_TICKS: Final = 8
#: The same if the registrar does not answer pings.
_UNANSWERED_TICKS: Final = 2
#: The same if it puts its row, and does not answer pings: other servers do not reach it.
_UNREACHED_TICKS: Final = 6
#: The longest wait for the first row of a new topic.
_CREATOR_TICKS: Final = 10
#: A second request must find that nothing listens at the registrar's address, so much later.
_REFUSED_SECONDS: Final = 0.05
#: Both within this time: it is more than the longest pause between two attempts.
_REFUSALS_SECONDS: Final = 5.0
#: A server that was replaced as the registrar replaces none that puts its row for so long: where
#: servers cannot reach one another, they would replace each other again and again.
_DISTRUST_SECONDS: Final = 600.0
#: Servers that find the registrar gone wait for a part of this, so that one of them is the first.
_SPREAD_SECONDS: Final = 0.1
#: The kinds with rows that end with a session.
_OF_SESSIONS: Final = ("member",)
#: The kinds that only the registrar itself puts.
_OF_REGISTRARS: Final = (OWNER, "format")

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

    Attributes:
        is_registrar: whether this server writes the rows, as far as it knows.
        is_silent: returns whether the server at an address does not answer pings.
        abstains: returns whether this server reaches so few others that it may be cut off itself.
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
        self.is_registrar = False
        self.is_silent: Callable[[str], bool] = lambda _: False
        self.abstains: Callable[[], bool] = lambda: False
        self._url: Final = url
        self._session_ticks: Final = session_seconds / TICK_SECONDS
        self._ask: Final = ask
        self._tasks: list[asyncio.Task[None]] = []
        #: The registrar that is silent, by its last row: with a newer one it is not.
        self._gone: Fields = {}
        #: The run of the registrar that cannot be reached, however often it puts its row.
        self._unreachable = ""
        #: For how many ticks the registrar has not answered pings.
        self._unanswered = 0
        #: The run of a registrar, and when nothing listened at its address first.
        self._refused: tuple[str, float] = ("", 0.0)
        #: Until when a registrar that puts its row is not taken for unreachable.
        self._distrusts_until = 0.0
        #: Ticks since a session has shown itself, if this server is the registrar.
        self._heard: dict[str, int] = {}

    # ------------------------------------------------------------------ the registrar's row

    @override
    def _owner_row(self, server: str) -> Row:
        row = super()._owner_row(SEVERAL)
        fields = {**(row.fields or {}), "name": server, "url": self._url}
        if not server:
            # It stops. Others go on, or a server without --shared may serve the cluster.
            others = any(each[SESSION] != self.session for each in self._of_sessions())
            fields |= {"run": "", "server": SEVERAL if others else ""}
        return row._replace(fields=fields)

    def _of_sessions(self) -> list[Fields]:
        return [fields for kind in _OF_SESSIONS for fields in self.all(kind).values()]

    @property
    def stranger(self) -> str:
        """The name of a server without --shared that serves the cluster; empty: none."""
        owner = self._owner()
        return str(owner["server"]) if self._serves_elsewhere(owner) else ""

    def _refuse_stranger(self) -> None:
        if self.stranger:
            raise JournalError(f"{self.stranger} serves this cluster without --shared")

    @override
    async def _claim(self) -> str:
        await self._make_topic()
        await self._look()
        await self._wait_for_creator()
        if self.stranger and self._silent_looks < SILENT_LOOKS:
            return self.stranger
        if self.stranger or not self._owner().get("server"):
            with suppress(NotRegistrarError):
                await self._become()
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._run_on(each))
                           for each in (self._watch_registrar, self._show)]  # fmt: skip
        return ""

    async def _wait_for_creator(self) -> None:
        """Let the server that has created the topic go first, if there is no row yet.

        It alone knows that no server has served the cluster before. It may have ended.
        """
        for _ in range(_CREATOR_TICKS):
            if self._rows or self._created:
                return
            await asyncio.sleep(TICK_SECONDS)
            await self._read_on()

    async def _become(self) -> None:
        """Become the registrar, unless another server is faster.

        Raises:
            NotRegistrarError: another server is.
            JournalError: it is unknown which server is.
            UpstreamError: Kafka does not answer now.
        """
        first = self._created and not self._rows
        former = self._owner()
        await self._take()
        now = self._owner()
        if now.get("run") != former.get("run"):
            # It was fenced just now. It notices, and goes on.
            self._writer = None
            raise NotRegistrarError(f"{now.get('name') or now.get('server')} was faster")
        try:
            await self._put_owner()
        except (JournalError, UpstreamError):
            self._writer, self._unsettled = None, False
            raise
        self.is_registrar = self._claimed = True
        self._unreachable, self._unanswered = "", 0  # or it replaced the former one for ever
        self.first_service = self.first_service or first
        self._heard.clear()
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
        if not self.is_registrar or owner.get("run") == self._run:
            return
        self.is_registrar, self._writer, self._unsettled = False, None, False
        self._distrusts_until = time.monotonic() + _DISTRUST_SECONDS
        name = owner.get("name") or owner.get("server") or "another server"
        _log.warning("another server keeps the rows now", server=name)
        raise NotRegistrarError(f"{name} keeps the rows now")

    @override
    async def _refresh(self) -> None:
        with suppress(NotRegistrarError):
            await super()._refresh()

    @override
    async def _settle(self) -> None:
        if not (self.is_registrar or self.ended):
            raise NotRegistrarError("another server keeps the rows now")
        await super()._settle()

    # ------------------------------------------------------------------ putting

    @override
    async def _put(self, rows: Sequence[Row], expected: Sequence[Row]) -> None:
        latest = time.monotonic() + SECONDS
        failures = 0
        while True:
            again = True
            try:
                registrar = await self._registrar()
                # If an attempt has put the rows, the next one finds other ones than expected.
                again = bool(expected)
                if registrar is not None:
                    await self._send(registrar, rows, expected)
                else:
                    await self._locked(partial(self._try_to_put, lambda: rows, expected))
            except (NotRegistrarError, RegistrarGoneError) as error:
                reason: Exception = error  # nothing was put
            except (JournalError, RegistrarAwayError) as error:
                if not again:
                    raise JournalError(str(error)) from error
                reason = error
            else:
                return
            if self.ended or time.monotonic() >= latest:
                raise JournalError(str(reason)) from reason
            failures += 1
            await asyncio.sleep(BACKOFF.seconds(failures))

    async def _registrar(self) -> Fields | None:
        """Return the registrar's row; None: it is this server, or it has just become it.

        Raises:
            NotRegistrarError: another server has just become it.
            JournalError: there is none now, or it is unknown.
        """
        if self.ended:
            raise JournalError(self.ended)
        if self.is_registrar:
            return None
        await self._translated(self._refresh)
        owner = self._owner()
        if not self._must_replace(owner):
            return owner
        await asyncio.sleep(random.random() * _SPREAD_SECONDS)  # noqa: S311 - no secret
        await self._translated(self._refresh)
        async with self._lock:
            if self.is_registrar:
                return None  # by another call
            if not self._must_replace(self._owner()):
                raise NotRegistrarError("another server has just taken over, or is back")
            await self._translated(self._become)
        return None

    def _must_replace(self, owner: Fields) -> bool:
        """Return whether the registrar has stopped, or is gone.

        Raises:
            JournalError: a server without --shared serves the cluster.
        """
        self._refuse_stranger()
        run = owner.get("run")
        return not run or run in {self._run, self._unreachable} or owner is self._gone

    async def _send(self, registrar: Fields, rows: Sequence[Row], expected: Sequence[Row]) -> None:
        """Have the registrar put rows.

        Raises:
            JournalConflictError: something else than expected is there.
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
                owner = self._owner()
                if owner is self._gone or owner.get("run") != run or run == self._unreachable:
                    raise RegistrarAwayError(f"{registrar['name']} does not answer")
            status, text = asked.result()
        except RegistrarGoneError:
            self._note_refusal(run)
            raise
        finally:
            asked.cancel()
        self._refused = ("", 0.0)
        if status == HTTPStatus.CONFLICT:
            raise JournalConflictError(text)
        if status == HTTPStatus.MISDIRECTED_REQUEST:
            raise NotRegistrarError(text)
        if status != HTTPStatus.NO_CONTENT:
            raise JournalError(f"{registrar['name']} keeps the rows, and answers {status}: {text}")

    def _note_refusal(self, run: str) -> None:
        """Note that nothing listens at the registrar's address; the second time it is gone."""
        now = time.monotonic()
        if self._owner().get("run") != run or now < self._distrusts_until:
            return
        refused, at = self._refused
        if refused != run or now - at > _REFUSALS_SECONDS:
            self._refused = (run, now)
        elif now - at >= _REFUSED_SECONDS:
            self._unreachable = run

    async def serve(self, request: PutRequest) -> None:
        """Put rows for another active server.

        Raises:
            NotRegistrarError: this server is not the registrar; nothing was put.
            JournalConflictError: something else than expected is there.
            JournalError: they may have been put or not.
        """
        if not (self.is_registrar and hmac.compare_digest(request.run, self._run)) or self.ended:
            raise NotRegistrarError("another server keeps the rows")
        self._heard[request.session] = 0
        if any(row.kind in _OF_REGISTRARS for row in request.rows):
            raise JournalError(f"only this server puts rows of {_OF_REGISTRARS}")
        if request.rows:
            await self._locked(partial(self._try_to_put, lambda: request.rows, request.expected))

    # ------------------------------------------------------------------ signs of life

    async def _run_on(self, tick: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                await tick()
            except NotRegistrarError as error:
                _log.info("another server keeps the rows", reason=str(error))
            except (JournalError, RegistrarGoneError, RegistrarAwayError) as error:
                LINES.write(_log, "warning", "the coordinator's rows cannot be kept now",
                            kind_of(error), error=str(error))  # fmt: skip
            except Exception as error:  # noqa: BLE001 - the next tick is needed all the same
                LINES.write(_log, "error", "the coordinator's rows cannot be kept now",
                            kind_of(error), error, error=repr(error))  # fmt: skip

    async def _watch_registrar(self) -> None:
        """Read on; take over if the registrar is silent, or reached by Kafka only."""
        await self._translated(self._look)
        if self.is_registrar or self.stranger:
            return
        owner = self._owner()
        if owner.get("run") != self._unreachable:
            self._unreachable = ""  # it was replaced, and may serve again later
        silent = self.is_silent(str(owner.get("url")))
        self._unanswered = self._unanswered + 1 if silent else 0
        if self._silent_looks >= (_UNANSWERED_TICKS if silent else _SILENT_TICKS):
            self._gone = owner
            await self._registrar()
        elif (
            self._unanswered >= _UNREACHED_TICKS
            and time.monotonic() >= self._distrusts_until
            and not self.abstains()
        ):
            self._unreachable = str(owner.get("run"))
            await self._registrar()

    async def _show(self) -> None:
        """Show this server to the others, if it is the registrar, or else to that."""
        registrar = await self._registrar()
        if registrar is not None:
            await self._send(registrar, (), ())
            return
        await self._check()
        await self._end_sessions()

    async def _end_sessions(self) -> None:
        """Remove the rows of sessions that have ended."""
        known = {each[SESSION] for each in self._of_sessions()} - {self.session}
        self._heard = {each: self._heard.get(each, 0) + 1 for each in known}
        silent = [
            Row(kind, id_, fields)
            for kind in _OF_SESSIONS
            for id_, fields in self.all(kind).items()
            if self._heard.get(fields[SESSION], 0) > self._session_ticks
        ]
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
        self.ended, self._released = "this server stops", True
