"""A client over HTTP as one of the real producers that go on whatever happens to the server."""

import http.client
import json
import time
from random import Random
from typing import Any, Final

from pidlease.testing.loopback_ports import LOOPBACK
from tests.client.loads import Addresses
from tests.client.loads import loads_for as leased_loads_for
from tests.crash.clients import _PAUSE_S, ClientThread, Load
from tests.crash.ledger import Ledger
from tests.crash.lives import loads_for
from tests.http_api.appending import RAW, path_of, producer

TIMEOUT_S: Final = 20.0
_RETRY_S: Final = 0.05
#: Not stored, or not known to be: the same request comes again.
_RETRIABLE: Final = (404, 421, 503)


class HttpLoad(ClientThread[Ledger]):
    """One request behind the other for each partition, under policy epoch."""

    def __init__(self, server: Addresses, topic: str, partitions: int, random: Random) -> None:
        super().__init__(Ledger("http"))
        self._server = server
        self._topic = topic
        self._partitions = partitions
        self._random = random
        self._connection: http.client.HTTPConnection | None = None
        self.login: dict[str, str] = {}
        self.duplicates = 0

    def work(self) -> None:
        """See `ClientThread`."""
        seqs = [0] * self._partitions
        while not self.ending.is_set():
            partition = self._random.randrange(self._partitions)
            value = self.ledger.next(partition, self._random)
            while not self._append(partition, seqs[partition], value):
                time.sleep(_RETRY_S)
            seqs[partition] += 1
            time.sleep(_PAUSE_S * self._random.random())

    def connected(self) -> http.client.HTTPConnection:
        """A new connection."""
        return http.client.HTTPConnection(LOOPBACK, self._server.http_port, timeout=TIMEOUT_S)

    def _append(self, partition: int, seq: int, value: bytes) -> bool:
        headers: dict[str, Any] = {**RAW, **self.login, **producer("http-load", 0, seq)}
        path = path_of(self._topic, partition)
        try:
            if self._connection is None:
                self._connection = self.connected()
            self._connection.request("POST", path, value, headers)
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            return False
        if answer.status in _RETRIABLE:
            return False
        if answer.status != 200:
            raise AssertionError(f"{answer.status} {content!r} to {seq} of partition {partition}")
        told = json.loads(content)
        self.duplicates += told["duplicate"]
        self.ledger.delivered(value, -1 if told["offset"] is None else told["offset"])
        return True


def all_loads(
    bootstrap: str, leasing: Addresses, by_http: Addresses, topic: str, partitions: int,
    random: Random,
) -> list[Load]:  # fmt: skip
    """Start a load of each kind.

    Parameters:
        leasing: the server that leases PIDs and names.
        by_http: the server that gets HTTP requests.
    """
    loads: list[Load] = [
        *loads_for(bootstrap, topic, partitions, random),
        *leased_loads_for(leasing, bootstrap, topic, partitions, random),
        HttpLoad(by_http, topic, partitions, Random(random.random())),
    ]
    for load in loads:
        load.start()
    return loads
