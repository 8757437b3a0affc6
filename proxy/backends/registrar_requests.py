"""Sends requests to the active server that keeps the coordinator's rows."""

import ssl
from typing import TYPE_CHECKING, Final

from pidlease.coordination.journal.put_request import PUT_PATH
from pidlease.log.kafka.kafka_shared_journal import RegistrarAwayError, RegistrarGoneError
from proxy.http.forwarding_headers import marked_headers
from proxy.http.owner_requests import member_client

if TYPE_CHECKING:
    import httpx

#: How long the registrar may take. It puts rows in milliseconds, if Kafka takes no longer.
_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 1.5
_TEXT_MAX: Final = 500


class RegistrarRequests:
    """Asks the registrar.

    Parameters:
        tls: of connections to other servers; None: they have no TLS.
    """

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls: Final = tls
        self._client: httpx.AsyncClient | None = None

    async def ask(self, url: str, body: bytes) -> tuple[int, str]:
        """Send a request; return the status and the text of the response.

        Raises:
            RegistrarGoneError: nothing listens there.
            RegistrarAwayError: there is no response.
        """
        import httpx  # noqa: PLC0415 - only several active servers need it

        if url.startswith("https:") != (self._tls is not None):
            raise RegistrarAwayError(
                f"{url} is the server that keeps the rows, and this one has"
                f" {'TLS' if self._tls is not None else 'no TLS'}: all active servers need the same"
                " --http-security-protocol"
            )
        client = self._client
        if client is None:
            client = self._client = member_client(self._tls, _SECONDS, _CONNECT_SECONDS)
        headers = {**marked_headers(), "content-type": "application/json"}
        try:
            found = await client.post(f"{url}{PUT_PATH}", content=body, headers=headers)
        except (httpx.HTTPError, OSError) as error:
            if _is_refusal(error):
                raise RegistrarGoneError(f"nothing listens at {url}") from error
            raise RegistrarAwayError(f"{url} does not answer ({type(error).__name__})") from error
        return found.status_code, found.text[:_TEXT_MAX]

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()


def _is_refusal(error: BaseException | None) -> bool:
    """Return whether a connection was refused: no process listens."""
    while error is not None:
        if isinstance(error, ConnectionRefusedError):
            return True
        error = error.__cause__ or error.__context__
    return False
