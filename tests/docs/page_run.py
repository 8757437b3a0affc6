"""Runs the blocks of a page as pasted: in one shell and one Python, against a real server."""

import configparser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Self

import yaml

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from proxy.configuration.settings import Settings
from tests.docs.snippets import PARSED, PYTHON, SHELL, SHOWN, Block
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S, happens

_ROOT: Final = Path(__file__).resolve().parents[2]

_ADDRESS: Final = re.compile(r"\b(?:127\.0\.0\.1|localhost):(\d{4,5})\b")
#: Brokers of a cluster that the reader has.
_KAFKA: Final = re.compile(r"\bkafka1:9092(?:,kafka\d:9092)*")
_STARTS_A_SERVER: Final = re.compile(
    r"^[^#\n]*\bpidlease serve\b|PidleaseServer\(|\bsystemctl\b", re.MULTILINE
)
_NEEDS_A_SERVER: Final = re.compile(
    r"\b(?:127\.0\.0\.1|localhost):(?:9092|8080)\b|\bpidlease (?!serve|version|verify)\w+"
)
#: Folders that a page names; here they are in the page's own folder.
_FOLDERS: Final = ("/var/lib/", "/backup/", "/etc/pidlease/")
_PROGRAMS: Final = re.compile(r"/opt/pidlease/bin/")
#: Lines that pages do not show: the shell's about killed jobs, and those of Spark's start.
_NOISE: Final = re.compile(
    r"^(?:.*: line \d+: +\d+ (?:Killed|Terminated) .*|(?:\d\d/){2}\d\d [\d:]+ WARN .*"
    r"|WARNING: Using incubator modules.*|Using Spark's default log4j.*"
    r"|Setting default log level.*|To adjust logging level.*)\n",
    re.MULTILINE,
)
_KAFKA_PORT: Final = "9092"
_HTTP_PORT: Final = "8080"
#: Stands for a supervisor: `systemctl start|stop|restart pidlease`.
_SUPERVISOR: Final = """
systemctl() {
  if [ "$1" != start ]; then
    kill "$(cat .unit.pid)"
    while kill -0 "$(cat .unit.pid)" 2> .unit.err; do sleep 0.05; done
  fi
  if [ "$1" != stop ]; then
    pidlease serve --data-dir %(data)s >> .unit.log 2>&1 & echo $! > .unit.pid
    until pidlease status > .unit.status 2>&1; do sleep 0.05; done
  fi
}
"""


#: A reader has none of the plugins of this project's own tests.
NO_FOREIGN_PLUGINS: Final = "-p no:schemathesis -p no:hypothesispytest"


class PageRun:
    """The processes of one page.

    Parameters:
        blocks: those of the page, in order.
        folder: an empty one.
        kafka: returns the address of a real Kafka, which is started on first use.
        env: further environment variables.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        folder: Path,
        kafka: Callable[[], str],
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._blocks: Final = blocks
        self._folder: Final = folder
        self._kafka: Final = kafka
        self._ports: dict[str, str] = {}
        self._stack = ExitStack()
        self._given: Final = env or {}
        #: Files of settings with listeners of their own.
        self._with_listeners: Final[set[str]] = set()
        self._shell: subprocess.Popen[str] | None = None
        self._python: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        shell = "".join(each.text for each in self._running())
        kafka_port, http_port = (str(each) for each in free_ports(2))
        if _NEEDS_A_SERVER.search(shell) and not _STARTS_A_SERVER.search(shell):
            server = PidleaseServer(
                self._folder / ".server",
                settings={"log_level": "warning"},
                data_dir=self._folder / "var/lib/pidlease",
            )
            self._stack.enter_context(server)
            kafka_port, http_port = str(server.kafka_port), str(server.http_port)
        self._ports = {_KAFKA_PORT: kafka_port, _HTTP_PORT: http_port}
        for name in ("examples", "deploy"):
            (self._folder / name).symlink_to(_ROOT / name)
        for folder in _FOLDERS:
            (self._folder / folder.strip("/")).mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self._shell, self._python):
            if process is not None:
                # With everything that the page has started in the background; if that is left.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()
        self._stack.close()

    def run(self) -> None:
        """Run all blocks; an assertion names the first one that fails."""
        waiting: dict[str, Block] = {}
        for number, block in enumerate(self._blocks):
            if block.reason or (block.language in SHOWN and not block.file):
                continue
            text = self._here(block.text)
            if block.file:
                path = self._folder / block.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                if re.search(r"^listeners = ", text, re.MULTILINE):
                    self._with_listeners.add(path.name)
                waiting[path.name] = block
            elif block.language in PARSED:
                _parse(block)
            else:
                assert block.language in SHELL or block.language == PYTHON, (
                    f"{block.where}: nothing runs {block.language or 'a block without a language'};"
                    " say above it why: <!-- not run: ... -->"
                )
                waiting = {
                    name: each for name, each in waiting.items()
                    if name not in text and "pytest" not in text
                }  # fmt: skip
                code, output = self._execute(block, number, text)
                assert code == block.exit_code, f"{block.where}: exit code {code}\n{output}"
                assert "Traceback" not in output, f"{block.where}\n{output}"
                if block.output is not None:
                    pattern = _pattern(self._here(block.output))
                    assert re.fullmatch(pattern, output, re.DOTALL), f"{block.where}\n{output}"
        assert not waiting, f"no block uses the files of {[e.where for e in waiting.values()]}"

    def _running(self) -> list[Block]:
        programs = SHELL | {PYTHON}
        return [each for each in self._blocks if not each.reason and each.language in programs]

    def _here(self, text: str) -> str:
        """Put this test's addresses and folders in place of the documented ones."""

        def address(match: re.Match[str]) -> str:
            port = match[1]
            if port not in self._ports:
                (free,) = free_ports(1)
                self._ports[port] = str(free)
            return f"{LOOPBACK}:{self._ports[port]}"

        text = _ADDRESS.sub(address, text)
        text = _KAFKA.sub(lambda _: self._kafka(), text)
        text = _PROGRAMS.sub("", text)
        for folder in _FOLDERS:
            text = re.sub(rf"(?<![\w.]){folder}", f"{self._folder}{folder}", text)
        return text

    def _env(self) -> dict[str, str]:
        own = {name: text for name, text in os.environ.items() if not name.startswith("PIDLEASE_")}
        kafka, http = (f"{LOOPBACK}:{self._ports[port]}" for port in (_KAFKA_PORT, _HTTP_PORT))
        return own | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self._folder),
            # Pages use the default addresses; here they come by variables.
            "PIDLEASE_KAFKA_LISTEN": kafka,
            "PIDLEASE_HTTP_LISTEN": http,
            "PIDLEASE_SERVERS": kafka,
            "PIDLEASE_URL": f"http://{http}",
            "PYTHONWARNINGS": "ignore",
            "PYTEST_ADDOPTS": NO_FOREIGN_PLUGINS,
            **self._given,
        }

    def _execute(self, block: Block, number: int, text: str) -> tuple[int, str]:
        place = self._folder / f".block-{number}"
        place.write_text(text)
        output, done = place.with_suffix(".out"), place.with_suffix(".done")
        if block.language == PYTHON:
            process = self._python = self._python or self._start(
                [sys.executable, str(Path(__file__).with_name("python_session.py"))]
            )
            request = {
                "file": str(place),
                "scope": block.scope,
                "output": str(output),
                "done": str(done),
            }
            line = json.dumps(request)
        else:
            if self._shell is None or self._shell.poll() is not None:
                self._shell = self._start(["bash", "--norc"])
                data = self._folder / "var/lib/pidlease"
                self._send(self._shell, _SUPERVISOR % {"data": data} + "set -eo pipefail")
                if any("systemctl" in each.text for each in self._running()):
                    self._send(self._shell, "systemctl start pidlease")
            process = self._shell
            line = f". {place} > {output} 2>&1 < /dev/null; echo 0 > {done}"
            if any(name in text for name in self._with_listeners):
                kept = "PIDLEASE_KAFKA_LISTEN"  # which is refused beside them
                line = f"kept=${kept}; unset {kept}; {line}; export {kept}=$kept"
        self._send(process, line)
        assert happens(lambda: done.exists() or process.poll() is not None, WAIT_S, 0.02), (
            f"{block.where}: still runs\n{output.read_text()}"
        )
        code = int(done.read_text() or 0) if done.exists() else process.wait()
        printed = output.read_text(errors="replace") if output.exists() else ""
        return code, _NOISE.sub("", printed)

    def _start(self, command: Sequence[str]) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            command, cwd=self._folder, env=self._env(), stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip

    @staticmethod
    def _send(process: "subprocess.Popen[str]", line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()


def _pattern(output: str) -> str:
    """Return what an output matches: white space of any kind, and "..." for anything."""
    words = (re.escape(word).replace(re.escape("..."), ".*") for word in output.split())
    return r"\s*" + r"\s*".join(words) + r"\s*"


def _parse(block: Block) -> None:
    """Read a file's text by the parser of its language; TOML has to be settings of a server."""
    try:
        if block.language == "toml":
            names = {name.replace("-", "_") for name in tomllib.loads(block.text)}
            assert names <= Settings.model_fields.keys(), f"{block.where}: {names}"
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "yaml":
            list(yaml.safe_load_all(block.text))
        else:
            found = configparser.ConfigParser(strict=False, interpolation=None)
            found.read_string(block.text)
            assert found.sections()
    except (ValueError, yaml.YAMLError, configparser.Error) as error:
        raise AssertionError(f"{block.where}: {error}") from error


def curl_missing() -> bool:
    """Whether blocks that use curl cannot run here."""
    return shutil.which("curl") is None
