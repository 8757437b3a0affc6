"""The producer of clients/js, in Node and in Chromium, killed together with the server."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import unquote

import pytest
from typing_extensions import override

from pidlease.testing.loopback_ports import LOOPBACK
from tests.clients import install
from tests.clients.child import Child
from tests.clients.install import environment, node_missing
from tests.crash.lives import server_in
from tests.crash.seeds import SOAK, new_random
from tests.http_api.lives import make_topic, read_back
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S, until

_CLIENT: Final = Path(__file__).resolve().parents[2] / "clients" / "js"
_PROGRAM: Final = Path(__file__).parent / "node" / "till.js"
_FILES: Final = (
    *sorted((_CLIENT / "src").iterdir()), _CLIENT / "package.json", _CLIENT / "package-lock.json",
    _CLIENT / "tsconfig.json", _CLIENT / ".npmrc",
)  # fmt: skip
_PAGE: Final = _PROGRAM.with_name("till.html")
_FORGOTTEN: Final = _PROGRAM.with_name("forgotten.js")
_OWNERS: Final = _PROGRAM.with_name("owners.js")
_REFUSED: Final = _PROGRAM.with_name("refused.js")
_STRANGERS: Final = _PROGRAM.with_name("strangers.js")
_LOST_PLACE: Final = _PROGRAM.with_name("lost_place.js")
_CLOSED: Final = _PROGRAM.with_name("closed.js")
_UNFLUSHED: Final = _PROGRAM.with_name("unflushed.js")
_PROGRAMS: Final = (
    _PROGRAM, _PAGE, _FORGOTTEN, _OWNERS, _REFUSED, _STRANGERS, _LOST_PLACE, _CLOSED,
    _UNFLUSHED,
)  # fmt: skip
#: How often several processes open one file.
_ROUNDS: Final = 15
_KILLS: Final = 200 if SOAK else 5
#: Records that are kept between two kills.
_PART: Final = 12
_HANG_S: Final = WAIT_S


def _built() -> Path:
    """The folder with the compiled producer and the program."""

    def compile_into(target: Path) -> None:
        for file in _FILES:
            folder = target / "src" if file.suffix == ".ts" else target
            folder.mkdir(exist_ok=True)
            shutil.copy(file, folder)
        for file in _PROGRAMS:
            shutil.copy(file, target)
        install.run(["npm", "ci"], target)
        install.run(["npm", "run", "build"], target)

    return install.built("js-client", [*_FILES, *_PROGRAMS], compile_into)


@pytest.mark.timeout(7200 if SOAK else 300)
def test_kill_9_of_the_program_and_the_server(tmp_path: Path) -> None:
    if missing := node_missing():
        pytest.skip(missing)
    program, random = _built() / "till.js", new_random("js-client")
    count = (_KILLS + 1) * _PART
    with server_in(tmp_path / "server") as server:
        server.restart()
        make_topic(server)
        for kill in range(_KILLS + 1):
            command = ["node", str(program), server.http_url, str(tmp_path / "till"), str(count)]
            with Child.start(f"till-{kill}", command, tmp_path, environment({})) as child:
                if kill == _KILLS:
                    child.process.wait(_HANG_S)
                    break
                _progress(child, _PART)
                time.sleep(random.uniform(0, 0.02))
                _kill(server, child, random.choice(["program", "server", "both"]))
        said = child.out.with_suffix(".err").read_text()
        assert child.process.returncode == 0, said
        assert child.lines()[-1] == "stored", said
        assert read_back(server) == [str(number) for number in range(count)]


def _kill(server: PidleaseServer, child: Child, which: str) -> None:
    if which != "program":
        server.kill9()
    if which == "server":
        server.restart()
        _progress(child, 1)
    child.process.kill()
    child.process.wait()
    if which == "both":
        server.restart()


def _progress(child: Child, records: int) -> None:
    """Wait until the program has kept some more records, or has kept all."""
    wanted, deadline = child.line_count() + records, time.monotonic() + _HANG_S
    while child.line_count() < wanted and child.process.poll() is None:
        assert time.monotonic() < deadline, child.out.with_suffix(".err").read_text()
        time.sleep(0.005)


def test_a_producer_that_the_server_has_forgotten_goes_on(tmp_path: Path) -> None:
    if missing := node_missing():
        pytest.skip(missing)
    program = _built() / _FORGOTTEN.name
    with server_in(tmp_path / "server") as server:
        server.restart({"lease_seconds": "1"})
        make_topic(server)
        command = ["node", str(program), server.http_url, "1000"]
        with Child.start("forgotten", command, tmp_path) as child:
            child.process.wait(_HANG_S)
        said = ["stored", "stored", "in_doubt 3", "in_doubt 3", "stored", "in_doubt 5", "stored"]
        assert child.lines() == said, child.told()
        assert read_back(server) == ["1", "2", "3", "4", "5"]


def test_what_is_too_large_at_once_or_comes_during_a_hand_over_is_sent_again(
    tmp_path: Path,
) -> None:
    """Once both were final, and a producer id above U+00FF never left the program."""
    if missing := node_missing():
        pytest.skip(missing)
    command = ["node", str(_built() / _REFUSED.name)]
    with server_in(tmp_path / "server") as server:
        server.restart()
        make_topic(server)
        with Child.start("refused", [*command, server.http_url], tmp_path) as child:
            child.process.wait(_HANG_S)
        assert child.lines() == ["stored"], child.told()
        assert [each[0] for each in read_back(server)] == list("1234567")


def test_only_pidlease_can_acknowledge_records(tmp_path: Path) -> None:
    """Once a response acknowledged records if it was the page that a redirect led to."""
    lines, stored = _told(_STRANGERS, tmp_path)
    way = "PROXY/v1/topics/t/partitions/0/records"
    reads = f"{way} (redirected to SERVER/v1/topics/t/partitions/0/records)"
    found = (
        (f"{way} (redirected to PROXY/login)", 200), (reads, 200), (reads, 200),
        (way, 200), (way, 200), (way, 200), (way, 204), (way, 404), (way, 403),
    )  # fmt: skip
    assert lines == [
        *(f"NotPidleaseError: {where} returned {status}, and not as pidlease does: check `url`."
          " The records wait, and are sent again" for where, status in found),
        "waiting 1",
        "stored",
    ]  # fmt: skip
    assert stored == ["1"]


def test_an_empty_place_begins_above_all_former_epochs(tmp_path: Path) -> None:
    """Once its records counted as duplicates of the former ones."""
    lines, stored = _told(_LOST_PLACE, tmp_path)
    assert lines == [*["stored"] * 6, *["TakenOverError"] * 2, "stored"]
    assert stored == ["1", "2", "3", "4", "5", "6", "8", "9"]


def test_nothing_is_flushed_or_appended_after_the_close(tmp_path: Path) -> None:
    lines, stored = _told(_CLOSED, tmp_path)
    waits = "ClosedError: closed; records that wait in the place: 1"
    refused = "ClosedError: closed; nothing is appended any more"
    assert lines == [waits, waits, refused, "kept 1", "returned", "returned"]
    assert stored == ["1"]


def test_without_a_flush_the_console_says_why_records_wait(tmp_path: Path) -> None:
    lines, stored = _told(_UNFLUSHED, tmp_path)
    missing, closed, strange, error, again, kept = lines
    assert missing.startswith(
        "pidlease: t, till: records that wait in the place: 1; unknown_partition: "
    )
    assert closed == "pidlease: t, till: records that wait in the place: 2; closed"
    assert strange.startswith(
        "pidlease: t, till: records that wait in the place: 2; http://hotel/v1/topics/t/"
    )
    assert (error, kept) == ("NotPidleaseError", "kept 0")
    assert again == closed
    assert stored == ["1", "2"]


def _told(program: Path, tmp_path: Path) -> tuple[list[str], list[str]]:
    """Run a program with a server; return what it printed, and the records of the log."""
    if missing := node_missing():
        pytest.skip(missing)
    built = _built() / program.name
    with server_in(tmp_path / "server") as server:
        server.restart()
        make_topic(server)
        with Child.start(program.stem, ["node", str(built), server.http_url], tmp_path) as child:
            child.process.wait(_HANG_S)
        assert child.process.returncode == 0, child.told()
        return child.lines(), read_back(server)


def test_one_of_several_processes_gets_the_file(tmp_path: Path) -> None:
    if missing := node_missing():
        pytest.skip(missing)
    command = ["node", str(_built() / _OWNERS.name), str(tmp_path / "till"), str(_ROUNDS)]
    with Child.start("owners", command, tmp_path) as child:
        child.process.wait(_HANG_S)
    assert child.lines() == ["1"] * _ROUNDS, child.told()


# ---------------------------------------------------------------------- Chromium


class _Browser(Child):
    """A browser; all its processes are killed at the end."""

    @override
    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):  # they are the group of the first one
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class _Said(SimpleHTTPRequestHandler):
    """Serves the page, and notes what it says."""

    said: ClassVar[list[str]] = []

    @override
    def do_GET(self) -> None:
        if not self.path.startswith("/said?"):
            super().do_GET()
            return
        self.said.append(unquote(self.path.removeprefix("/said?")))
        self.send_response(204)
        self.end_headers()

    @override
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _page(folder: Path) -> Iterator[str]:
    """A server of the page; its address."""
    _Said.said.clear()
    handler = partial(_Said, directory=str(folder))
    with ThreadingHTTPServer((LOOPBACK, 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.timeout(600)
def test_a_page_in_chromium_is_killed_offline_and_opened_again(tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if missing := node_missing() or ("" if browser else "this needs Chromium"):
        pytest.skip(missing)
    with _page(_built()) as address, server_in(tmp_path / "server") as server:
        server.restart({"cors_origins": address})
        make_topic(server)

        def opened(count: int) -> _Browser:
            url = f"{address}/till.html?count={count}&url={server.http_url}"
            command = [
                str(browser), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                "--disable-dev-shm-usage",
                f"--user-data-dir={tmp_path / 'profile'}", url,
            ]  # fmt: skip
            return _Browser.start(f"chromium-{count}", command, tmp_path, environment({}))

        server.kill9()  # the first life of the page is offline
        with opened(15) as child:
            _until_said("kept 10", child)
        with opened(30) as child:
            _until_said("kept 30", child)
            server.restart()
            until(lambda: bool(read_back(server)), "the first records")
            server.kill9()
            _none_failed()
        server.restart()
        with opened(45) as child:
            _until_said("stored 45", child)
        opened_at = [each for each in _Said.said if each.startswith("opened")]
        assert opened_at[0] == "opened 0"
        assert "opened 0" not in opened_at[1:], "it goes on where it was"
        assert read_back(server) == [str(number) for number in range(45)]


def _none_failed() -> None:
    assert not any(each.startswith("failed") for each in _Said.said), _Said.said


def _until_said(what: str, child: Child) -> None:
    deadline = time.monotonic() + 2 * _HANG_S
    while what not in _Said.said:
        _none_failed()
        assert child.process.poll() is None, child.out.with_suffix(".err").read_text()
        assert time.monotonic() < deadline, (what, _Said.said[-3:])
        time.sleep(0.005)
