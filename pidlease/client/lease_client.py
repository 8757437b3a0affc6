"""Leases PIDs over HTTP (lease_pid)."""

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Sequence
from email.utils import parsedate_to_datetime
from functools import cache
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

import httpx
from typing_extensions import override

from pidlease.client.errors import LeaseRefusedError, LeaseUnavailableError
from pidlease.client.settings import ProducerSettings
from pidlease.core.lease import NO_PID, Lease, LeaseWanted
from pidlease.http_api.job_messages import JOBS_PATH, JobReport
from pidlease.http_api.lease_messages import LEASES_MAX
from pidlease.kafka.client.settings import TokenProvider

_TOO_MANY: Final = 429
_SERVER_ERRORS: Final = range(500, 600)
#: The client is not known, or has no right.
_LOGIN_REFUSED: Final = (401, 403)
#: Occurs in OpenSSL's text of an alert that the other side has sent.
_ALERT: Final = "_ALERT_"
#: What OpenSSL calls a response that is not TLS, by its version.
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
_UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
#: httpx passes on the error of an alert that comes after the handshake (TLS 1.3).
_FAILURES: Final = (httpx.HTTPError, ssl.SSLError)
#: How often a port may close the connection of `check`, before that counts as its answer.
_CHECKS: Final = 3
_CHECK_PAUSE_S: Final = 0.1
#: The Date of a response has whole seconds.
_DATE_STEP_S: Final = 1.0
_JSON: Final = {"Content-Type": "application/json"}
#: The most characters of an unexpected response that are shown.
_TEXT_MAX: Final = 200


#: Trusts no certificate. For http, where httpx would load all certificates for nothing.
_NO_CERTIFICATES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@cache
def _trusted() -> ssl.SSLContext:
    """Load the certificates that httpx trusts, once: each time takes 10 to 60 ms."""
    return httpx.create_ssl_context(trust_env=False)


class _Bearer(httpx.Auth):
    """Sends a token, a new one with each request."""

    def __init__(self, provider: TokenProvider) -> None:
        self._provider: Final = provider

    @override
    async def async_auth_flow(
        self, request: httpx.Request
    ) -> AsyncGenerator[httpx.Request, httpx.Response]:
        try:
            token = await self._provider.token()
        except Exception as error:
            # Its text may have a part of the token.
            raise LeaseUnavailableError(
                f"the provider of tokens failed: {type(error).__name__}"
            ) from error
        request.headers["Authorization"] = f"Bearer {token}"
        yield request


#: The result of a request for one lease.
Answer = Lease | LeaseRefusedError | LeaseUnavailableError
_A = TypeVar("_A", bound=Answer)


class LeaseClient:
    """Requests leases over HTTP.

    ```python
    import asyncio

    from pidlease.client import LeaseClient

    async def main() -> None:
        async with LeaseClient("http://127.0.0.1:8080") as client:
            lease = await client.lease_named("orders", 0, "import-9")
            print(lease.pid, lease.generation, lease.sequence_number)

    asyncio.run(main())
    ```

    Parameters:
        url: the server's HTTP port, `http://HOST:PORT`, or `https://HOST:PORT`.
        timeout_s: of a request.
        transport: for tests; None: the network.
        ssl_context: for https, with the client's own certificate if the server wants one; None:
            trusts the certificates that are known to httpx.
        login: user and password, for Basic (RFC 7617); or a provider of tokens, which has
            `async def token(self) -> str`, for Bearer (RFC 6750); None: none. Goes with https.

    Attributes:
        cluster_id: the cluster to which records go under the leases, by its id in Kafka's metadata;
            leases for another one are refused. Empty: for any.

    Raises:
        ValueError: a login would be sent over http, readable for everybody.
    """

    cluster_id: str = ""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 30,
        transport: httpx.AsyncBaseTransport | None = None,
        ssl_context: ssl.SSLContext | None = None,
        login: tuple[str, str] | TokenProvider | None = None,
    ) -> None:
        is_tls = url.lower().startswith("https:")
        if login is not None and not is_tls:
            raise ValueError("a login goes with https://, not http://")
        self._login_name = "no login was sent" if login is None else "the token"
        auth: httpx.Auth | None = None
        if isinstance(login, tuple):
            self._login_name = f"user {login[0]!r}"
            auth = httpx.BasicAuth(*login)
        elif login is not None:
            auth = _Bearer(login)
        self._http: Final = httpx.AsyncClient(
            base_url=url,
            timeout=timeout_s,
            transport=transport,
            trust_env=False,
            verify=(ssl_context or _trusted()) if is_tls else _NO_CERTIFICATES,
            auth=auth,
        )

    @classmethod
    def of(cls, settings: ProducerSettings, timeout_s: float = 30) -> Self:
        """Return a client with a producer's URL, TLS and login.

        Parameters:
            timeout_s: of a request.
        """
        return cls(
            settings.leases,
            timeout_s=timeout_s,
            ssl_context=settings.https_context,
            login=settings.http_login(settings.leases),
        )

    @property
    def url(self) -> str:
        """The server's URL, without a user and a password."""
        return str(self._http.base_url.copy_with(userinfo=b""))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def check(self) -> None:
        """Check that TLS fits the server; a server that is away is no error.

        Raises:
            LeaseRefusedError: the server's certificate is not trusted, it wants one of this
                client, or http and https do not fit.
        """
        for _ in range(_CHECKS):
            try:
                await self._http.get("/healthz", auth=None)
            except _FAILURES as error:
                text = str(error)
                is_tls = any(each in text for each in (_UNTRUSTED, _ALERT, *_NO_TLS))
                is_closed = isinstance(error, httpx.RemoteProtocolError | httpx.ReadError)
                wrong = f"no lease from {self.url}: {text or 'the connection was closed'}"
                if is_tls:
                    raise LeaseRefusedError(f"{wrong}{_hint(error)}", 0) from None
                if not is_closed:
                    return
                await asyncio.sleep(_CHECK_PAUSE_S)  # a server that has just ended is away now
            else:
                return
        hint = "is it the port of the Kafka listener, or https://?"
        if self.url.startswith("https:"):
            hint = "is it the HTTP port, and does it want a certificate of the client?"
        raise LeaseRefusedError(f"{wrong}; {hint}", 0)

    async def lease_pid(self, topic: str, partition: int, pid: int = NO_PID) -> Lease:
        """Lease a PID for a partition, or look up where a leased one continues.

        Parameters:
            topic: the topic to write to.
            partition: its partition.
            pid: a leased PID; -1: a new one.

        Raises:
            LeaseRefusedError: the lease is refused for good.
            LeaseUnavailableError: no lease can be had now; try again.
        """
        return await self._one(LeaseWanted(topic, partition, pid))

    async def lease_named(
        self,
        topic: str,
        partition: int,
        name: str,
        *,
        policy: str = "strict",
        renew: bool = False,
    ) -> Lease:
        """Lease a name's PID under its next generation: older ones are fenced from then on.

        Parameters:
            topic: the topic to write to.
            partition: its partition.
            name: the producer's name, 1 to 256 bytes.
            policy: strict or monotonic.
            renew: the lease is about to end, and nothing is in flight: lease a new PID.

        Raises:
            LeaseRefusedError: the lease is refused for good.
            LeaseUnavailableError: no lease can be had now; try again.
        """
        return await self._one(LeaseWanted(topic, partition, NO_PID, name, policy, renew))

    async def _one(self, wanted: LeaseWanted) -> Lease:
        (answer,) = await self.lease_pids([wanted])
        if isinstance(answer, Lease):
            return answer
        raise answer

    async def lease_pids(self, wanted: Sequence[LeaseWanted]) -> list[Answer]:
        """Request several leases at once; each is granted or refused for itself.

        Parameters:
            wanted: at most 1000. Those of one name get the same generation.

        Raises:
            LeaseRefusedError: the request as a whole is refused.
            LeaseUnavailableError: no lease can be had now; try again.
        """
        if not 1 <= len(wanted) <= LEASES_MAX:
            raise ValueError(f"{len(wanted)} leases at once; 1 to {LEASES_MAX}")
        bodies = [each.body() for each in wanted]
        single = len(wanted) == 1
        path, body = ("", bodies[0]) if single else ("/batch", {"leases": bodies})
        asked = _Moment(time.monotonic(), time.time())
        try:
            response = await self._http.post("/v1/leases" + path, json=body)
            rows = _rows(response, len(wanted))
            self._check_cluster(rows)
            server_ms = _server_ms(response, asked)
            return [self._explained(_lease(row, asked.monotonic, server_ms)) for row in rows]
        except LeaseRefusedError as error:
            if error.status not in _LOGIN_REFUSED:
                raise self._explained(error) from None
            text = f"no lease from {self.url}: {error.text}; {self._login_name}"
            raise LeaseRefusedError(text, error.status, error.field) from None
        except (*_FAILURES, ValueError, KeyError, TypeError, AttributeError) as error:
            # A reset connection has no text.
            text = str(error) or "the connection was closed"
            why = f"{type(error).__name__}: {text}{_hint(error)}"
            raise LeaseUnavailableError(f"no lease from {self.url}: {why}") from None

    def _check_cluster(self, rows: Sequence[dict[str, Any]]) -> None:
        """Refuse leases for another cluster: their sequence numbers are those of other logs.

        Raises:
            LeaseRefusedError: there is one.
        """
        for row in rows:
            of = "" if row.get("error") else row["cluster_id"]
            if of and self.cluster_id and of != self.cluster_id:
                raise LeaseRefusedError(
                    f"{self.url} leases for cluster {of}, but the bootstrap servers are of cluster"
                    f" {self.cluster_id}; give the HTTP port and the Kafka port of one pidlease",
                    0,
                )

    def _explained(self, answer: _A) -> _A | LeaseRefusedError:
        """Return an answer; if a topic is not found, with what may be wrong."""
        if not isinstance(answer, LeaseRefusedError) or not self.cluster_id:
            return answer
        if answer.status != httpx.codes.NOT_FOUND:
            return answer
        text = (
            f"{answer.text}; cluster {self.cluster_id} of the bootstrap servers has it: is"
            f" {self.url} the HTTP port of the same pidlease?"
        )
        return LeaseRefusedError(text, answer.status, answer.field)

    async def report_job(self, report: JobReport) -> str:
        """Report the progress of a job to the server; nothing depends on it.

        Returns:
            Why the report did not arrive, as far as it is known; empty: it arrived.
        """
        content = report.model_dump_json().encode()
        try:
            response = await self._http.post(JOBS_PATH, content=content, headers=_JSON)
        except (*_FAILURES, LeaseUnavailableError) as error:
            return f"{self.url}: {str(error) or type(error).__name__}"
        if response.is_success:
            return ""
        return f"{self.url}: HTTP {response.status_code} {response.text[:_TEXT_MAX]}"


class _Moment(NamedTuple):
    """A moment by the monotonic clock and by the wall clock, in seconds."""

    monotonic: float
    wall: float


def _hint(error: Exception) -> str:
    """Return what may be wrong with the URL, or with TLS."""
    if _UNTRUSTED in str(error):
        return "; trust the authority that signed the certificate of this address"
    if isinstance(error, httpx.ConnectError) and any(each in str(error) for each in _NO_TLS):
        return "; is it http://, and not https://?"
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        return "; is it the port of the Kafka listener, or https://?"
    if isinstance(error, ssl.SSLError):
        return "; does it want a certificate of the client, or not trust it?"
    if isinstance(error, httpx.HTTPError):
        return ""
    return "; is it the HTTP port of pidlease?"


def _rows(response: httpx.Response, count: int) -> list[dict[str, Any]]:
    """Parse a response.

    Parameters:
        response: the response.
        count: the number of requested leases.

    Raises:
        LeaseRefusedError, LeaseUnavailableError: of the request as a whole.
        ValueError, KeyError, TypeError, AttributeError: the response is invalid.
    """
    body = response.json()
    if response.status_code != httpx.codes.OK:
        # A server of the previous version has no `detail`.
        text = str(body.get("detail") or body["error"])
        raise _refusal(text, response.status_code, body.get("field"))
    rows: list[dict[str, Any]] = [body] if count == 1 else body["leases"]
    if len(rows) != count:
        raise ValueError(f"{len(rows)} answers where {count} are due")
    return rows


def _refusal(
    text: str, status: int, field: str | None = None
) -> LeaseRefusedError | LeaseUnavailableError:
    if status == _TOO_MANY or status in _SERVER_ERRORS:
        return LeaseUnavailableError(f"{text} (HTTP {status})")
    return LeaseRefusedError(text, status, field)


def _lease(row: dict[str, Any], asked: float, server_ms: float) -> Answer:
    """Return a lease or its refusal.

    Parameters:
        asked: when the request was sent. Times count from here: a response that comes late, or is
            read late, must not make a lease look longer than it is.
        server_ms: the server's time then.
    """
    if row.get("error"):
        return _refusal(row["error"], row["status"])
    expire_ms = row["expire_ms"]
    ends_at = asked + (expire_ms - server_ms) / 1000 if expire_ms >= 0 else float("inf")
    # A server of the previous version has no `next_sequence`.
    sequence = row["next_sequence"] if "next_sequence" in row else row["sequence_number"]
    return Lease(
        topic=row["topic"],
        partition=row["partition"],
        pid=row["pid"],
        generation=row["generation"],
        sequence_number=sequence,
        resume_at=row.get("resume_at", sequence),
        expire_ms=expire_ms,
        ends_at=ends_at,
        name=row.get("name") or None,
    )


def _server_ms(response: httpx.Response, asked: _Moment) -> float:
    """Return the server's time at the request, or a little later, in ms since 1970.

    Use this machine's clock if it agrees with the response's Date, which has whole seconds only;
    otherwise the end of the Date's second.
    """
    try:
        there = parsedate_to_datetime(response.headers["Date"]).timestamp()
    except (KeyError, ValueError):
        return asked.wall * 1000
    # The second may have begun while the response was sent.
    late = min(time.monotonic() - asked.monotonic, _DATE_STEP_S)
    if there - late <= asked.wall <= there + _DATE_STEP_S:
        return asked.wall * 1000
    return (there + _DATE_STEP_S) * 1000
