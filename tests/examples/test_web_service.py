"""examples/web_service.py: each order once, over kill -9 of it and of the server, and repeats."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.crash.readback import consume
from tests.crash.seeds import new_random
from tests.examples.programs import (
    EXAMPLES,
    SLOW,
    check_once,
    outcome,
    program,
    wait_for_records,
)
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S, until

_ORDERS = 120
_CLIENTS = 4


def _order(number: int) -> dict[str, object]:
    return {"drink": f"tea {number}", "table": number % 10}


def _command(port: int) -> list[str]:
    return [
        *(sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "web_service:app"),
        *("--port", str(port), "--log-level", "warning"),
    ]


def _variables(server: PidleaseServer, database: Path) -> dict[str, str]:
    return {
        "DATABASE": str(database),
        "PIDLEASE_SERVERS": server.bootstrap,
        "PIDLEASE_URL": server.http_url,
    }


def test_each_order_once_over_kill_9(tmp_path: Path) -> None:
    random = new_random("web-service")
    (port,) = free_ports(1)
    browser = httpx.Client(timeout=WAIT_S)
    url = f"http://{LOOPBACK}:{port}/orders"
    repeats = 0

    def put(number: int) -> None:
        """As a client does: the same request again until there is a response other than 5xx."""
        nonlocal repeats
        done = False

        def sent() -> bool:
            nonlocal done, repeats
            try:
                response = browser.put(f"{url}/{number}", json=_order(number))
            except httpx.TransportError:
                repeats += 1
                return False
            done = response.status_code < 500
            repeats += not done
            assert not done or response.status_code == 200, response.text
            return done

        until(sent, f"order {number}", poll_s=0.02)

    with PidleaseServer(tmp_path / "server", settings=SLOW) as server:
        service = _command(port)
        variables = _variables(server, tmp_path / "orders.db")
        with ThreadPoolExecutor(_CLIENTS) as clients:
            with program(*service, **variables) as first:
                results = [clients.submit(put, number) for number in range(_ORDERS)]
                wait_for_records(server, "orders", random.randint(1, _ORDERS // 2))
                server.kill9()
                first.kill()
                assert first.wait() == -9
            server.restart()
            with program(*service, **variables) as second:
                for each in results:
                    each.result(WAIT_S)
                # A client that never got its response asks again.
                again = browser.put(f"{url}/7", json=_order(7))
                assert again.status_code == 200
                other = browser.put(f"{url}/7", json=_order(8))
                assert other.status_code == 409
                second.terminate()
                second.wait(WAIT_S)
        assert repeats, "no request was repeated"
        stored = consume(server.bootstrap, "orders", 3)
    due = [json.dumps(_order(number), separators=(",", ":")).encode() for number in range(_ORDERS)]
    check_once([each.value for each in stored], due)


def test_a_database_that_lacks_numbers_is_refused(tmp_path: Path) -> None:
    """Once its new orders counted as duplicates: they got 200, and were not stored."""
    (port,) = free_ports(1)
    browser = httpx.Client(timeout=WAIT_S)

    def put(number: int) -> None:
        def sent() -> bool:
            with suppress(httpx.TransportError):
                url = f"http://{LOOPBACK}:{port}/orders/{number}"
                return browser.put(url, json=_order(number)).status_code == 200
            return False

        until(sent, f"order {number}", poll_s=0.02)

    with PidleaseServer(tmp_path / "server", settings={"fsync": "never"}) as server:
        variables = _variables(server, tmp_path / "orders.db")
        for numbers in ((1, 2), (3,)):  # with its own database it starts again
            with program(*_command(port), **variables) as service:
                for number in numbers:
                    put(number)
                service.terminate()
                service.wait(WAIT_S)
        variables["DATABASE"] = str(tmp_path / "new.db")
        with program(*_command(port), **variables) as service:
            code, _, errors = outcome(service)
            assert code > 0
            assert (
                "the server has orders of web-service up to number 3, the database up to 0"
                in errors
            )
        with program(*_command(port), **variables, NAME="web-service-2") as service:
            put(4)
        stored = consume(server.bootstrap, "orders", 1)
    due = [json.dumps(_order(number), separators=(",", ":")).encode() for number in (1, 2, 3, 4)]
    assert [each.value for each in stored] == due
