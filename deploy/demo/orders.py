"""The demo's fourth part: orders of web shops over HTTP, each with an Idempotency-Key.

The shops behave as a browser on a bad connection: some requests lose their response, some are sent
twice at once by an impatient click. Each is sent again, with the same key, until it is answered.
Meanwhile the server is killed. A shop remembers nothing but its orders and their keys.
"""

import http.client
import json
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from rich.console import Console
from rich.table import Table
from typing_extensions import override

from deploy.demo import DemoError
from deploy.demo.audit import Tally, compare, rows_by_partition
from deploy.demo.outcome import Verdict as PartVerdict
from deploy.demo.outcome import new_table
from deploy.demo.screen import Screen
from deploy.demo.story import SETTINGS
from tests.crash.readback import Stored, consume
from tests.servers.pidlease import PidleaseServer, not_started

_TOPIC: Final = "web-orders"
_PATH: Final = f"/v1/topics/{_TOPIC}/partitions/0/records"
_SHOPS: Final = 4
_ORDERS: Final = 300
_KILLS: Final = 3
#: Of a hundred requests: some lose their response, some are sent twice at once.
_LOST_PERCENT: Final = 10
_TWICE_PERCENT: Final = 5
_REQUEST_S: Final = 5.0
_PAUSE_S: Final = 0.05
_HANG_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class Verdict(PartVerdict):
    """The result.

    Attributes:
        orders: the values sent, each with its own key.
        stored: the records read back.
        requests: how many were sent, repeated ones included.
        duplicates: answers that said so.
        misplaced: orders at another offset than the answered one.
        kills: of the server, with requests in flight.
    """

    orders: Sequence[bytes]
    stored: Sequence[Stored]
    requests: int
    duplicates: int
    misplaced: int
    kills: int

    @property
    def tally(self) -> Tally:
        """The orders sent and stored; those of one shop may overtake those of another."""
        found = [value for _, value in rows_by_partition(self.stored)[_TOPIC, 0]]
        return compare(sorted((b"", each) for each in self.orders),
                       sorted((b"", each) for each in found))  # fmt: skip

    @override
    def checks(self) -> Iterator[tuple[str, bool]]:
        tally = self.tally
        figures = f"{tally.lost} lost, {tally.doubled + tally.foreign} doubled"
        yield figures, bool(tally.lost or tally.doubled or tally.foreign)
        yield f"{self.misplaced} not at the answered offset", self.misplaced > 0
        yield "no duplicate was caught: the kills proved nothing", self.duplicates == 0
        yield f"only {self.kills} kills", self.kills < _KILLS

    @override
    def tables(self) -> Mapping[str, Table]:
        names = "orders", "requests", "stored", "answered as duplicates", "lost", "doubled"
        table = new_table([], names)
        tally = self.tally
        table.add_row(
            f"{tally.sent}", f"{self.requests}", f"{tally.stored}", f"{self.duplicates}",
            f"{tally.lost}", f"{tally.doubled}",
        )  # fmt: skip
        return {"Orders over HTTP, each sent with one Idempotency-Key until it is answered": table}

    @override
    def summary(self) -> str:
        tally = self.tally
        return (
            f"demo, part four: orders {tally.sent} over HTTP by {self.requests} requests, stored"
            f" {tally.stored}, kills {self.kills}, answered as duplicates {self.duplicates}, lost"
            f" {tally.lost}, doubled {tally.doubled + tally.foreign}"
        )


def run_orders(console: Console, directory: Path) -> int:
    """Run the fourth part in an emptied directory; return the exit code."""
    shutil.rmtree(directory, ignore_errors=True)
    with Screen(console, {}) as screen, not_started(directory, **SETTINGS) as server:
        server.start()
        shops = [_Shop(server, number) for number in range(_SHOPS)]
        for shop in shops:
            shop.thread.start()
        try:
            for kill in range(1, _KILLS + 1):
                _until(shops, kill * _SHOPS * _ORDERS // (_KILLS + 1))
                server.kill9()
                answered = sum(len(shop.offsets) for shop in shops)
                screen.log(f"kill -9 of the server under the shops, {answered} orders are answered")
                server.start()
            _until(shops, _SHOPS * _ORDERS)
        finally:
            for shop in shops:
                shop.end()
        stored = consume(server.bootstrap, _TOPIC, 1)
        server.stop()
    places = {each.value: each.offset for each in stored}
    offsets = [each for shop in shops for each in shop.offsets.items()]
    return Verdict(
        orders=[order for shop in shops for order in shop.orders], stored=stored,
        requests=sum(shop.requests for shop in shops),
        duplicates=sum(shop.duplicates for shop in shops),
        misplaced=sum(places.get(order) != offset for order, offset in offsets), kills=_KILLS,
    ).conclude(console)  # fmt: skip


def _until(shops: Sequence["_Shop"], answered: int) -> None:
    """Wait until a number of orders is answered."""
    deadline = time.monotonic() + _HANG_S
    while sum(len(shop.offsets) for shop in shops) < answered:
        if problem := next((shop.problem for shop in shops if shop.problem), ""):
            raise DemoError(problem)
        if time.monotonic() > deadline:
            raise DemoError(f"the orders got no answer within {_HANG_S:g} s")
        time.sleep(_PAUSE_S / 10)


class _Shop:
    """One shop, with a thread of its own.

    Attributes:
        offsets: of the answered orders.
        problem: why it has ended early; empty: it has not.
    """

    def __init__(self, server: PidleaseServer, number: int) -> None:
        self.orders: Final = [b'{"shop":%d,"order":%d}' % (number, each) for each in range(_ORDERS)]
        self.requests = 0
        self.duplicates = 0
        self.offsets: Final[dict[bytes, int]] = {}
        self.problem = ""
        self.thread: Final = threading.Thread(target=self._run, daemon=True)
        self._server: Final = server
        self._number: Final = number
        self._random: Final = Random(number)  # noqa: S311 - no secret
        self._ended: Final = threading.Event()

    def end(self) -> None:
        """End the shop, if it still runs."""
        self._ended.set()
        self.thread.join()

    def _run(self) -> None:
        try:
            for number, order in enumerate(self.orders):
                self._send(f"shop-{self._number}-order-{number}", order)
                if self._ended.is_set():
                    return
        except DemoError as error:
            self.problem = str(error)

    def _send(self, key: str, order: bytes) -> None:
        """Send an order until it is answered."""
        while not self._ended.is_set():
            chance = self._random.randrange(100)
            if chance < _LOST_PERCENT + _TWICE_PERCENT:
                self._unanswered(key, order, waits=chance < _LOST_PERCENT)
            answer = self._answer(key, order)
            if answer is not None:
                self.offsets[order] = answer
                return
            time.sleep(_PAUSE_S)

    def _answer(self, key: str, order: bytes) -> int | None:
        """Send an order; return the offset in the response, or None: send it again."""
        connection = self._request(key, order)
        if connection is None:
            return None
        try:
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            return None  # killed meanwhile
        finally:
            connection.close()
        if response.status == 200:
            answer = json.loads(body)
            self.duplicates += answer["duplicate"]
            return int(answer["offset"])
        if response.status in (409, 503):
            return None
        raise DemoError(f"an order got {response.status}: {body.decode()}")

    def _unanswered(self, key: str, order: bytes, *, waits: bool) -> None:
        """Send an order, and lose the response.

        Parameters:
            waits: for the response, so that the next request finds the order stored.
        """
        connection = self._request(key, order)
        if connection is not None:
            try:
                if waits:
                    connection.getresponse()
            except (OSError, http.client.HTTPException):
                pass  # killed meanwhile: it is lost as well
            finally:
                connection.close()

    def _request(self, key: str, order: bytes) -> http.client.HTTPConnection | None:
        address = self._server.http_url.removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=_REQUEST_S)
        headers = {"Content-Type": "application/octet-stream", "Idempotency-Key": f'"{key}"'}
        try:
            connection.request("POST", _PATH, order, headers)
        except (OSError, http.client.HTTPException):
            connection.close()
            return None
        self.requests += 1
        return connection
