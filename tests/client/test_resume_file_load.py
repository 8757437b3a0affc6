"""examples/resume_file_load.py over kill -9 of itself and of the server: each line once, in order.

TESTS_SOAK=1 runs it with 50 seeds.
"""

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiokafka.partitioner import murmur2

from tests.crash.lives import HANG_S, SETTINGS, server_in
from tests.crash.readback import check_directory, consume
from tests.crash.seeds import SOAK, new_random
from tests.servers.pidlease import PidleaseServer

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = _ROOT / "examples" / "resume_file_load.py"
TOPIC = "lines"
PARTITIONS = 3
RECORD_BYTES_MAX = 2_000
REPORT_EVERY = 100
LINES = 6_000


class Loader:
    """The example as a process; what it says is read while it runs."""

    def __init__(self, server: PidleaseServer, file: Path, *options: str) -> None:
        command = [
            *(sys.executable, str(_PROGRAM), "--file", str(file), "--topic", TOPIC),
            *("--servers", server.bootstrap, "--leases", server.http_url, "--name", "a load"),
            *("--max-record-bytes", str(RECORD_BYTES_MAX), "--report-every", str(REPORT_EVERY)),
            *options,
        ]
        self.process = subprocess.Popen(
            command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.output: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.output.extend(iter(self.process.stdout.readline, ""))

    @property
    def ended(self) -> bool:
        """Whether it has come to its end by itself."""
        return self.process.poll() is not None

    def wait_for(self, reports: int) -> None:
        """Wait until it has reported so often, or has ended."""
        give_up = time.monotonic() + 2 * HANG_S
        while len(self.output) < reports and not self.ended:
            assert time.monotonic() < give_up, self.output
            time.sleep(0.001)

    def kill9(self) -> bool:
        """Kill it; whether it was still at it."""
        self.process.kill()
        code = self.process.wait(HANG_S)
        self._reader.join(HANG_S)
        return code == -9

    def wait(self) -> int:
        """Its exit code."""
        code = self.process.wait(HANG_S)
        self._reader.join(HANG_S)
        return code


def make_lines(random: Random, *, keys: bool) -> tuple[list[bytes], set[int]]:
    """Lines, and the numbers of those that are to be refused; the last one is."""
    lines: list[bytes] = []
    refused: set[int] = set()
    burst = 0
    for number in range(1, LINES + 1):
        text = b"%d,key %d,%s" % (number, random.randrange(50), b"." * random.randrange(60))
        if not burst and random.random() < 0.004:
            burst = random.choice((1, 1, 1, 30))
        if burst or number == LINES:
            burst = max(burst - 1, 0)
            refused.add(number)
            no_key = keys and random.random() < 0.5
            text = b"no key %d" % number if no_key else text + b"x" * RECORD_BYTES_MAX
        lines.append(text)
    return lines, refused


def place_of(line: bytes, number: int, *, keys: bool) -> int:
    """The partition that a line belongs to."""
    if not keys:
        return number % PARTITIONS
    return int(murmur2(line.split(b",")[1]) & 0x7FFFFFFF) % PARTITIONS


def check_log(server: PidleaseServer, due: Sequence[Sequence[bytes]]) -> None:
    """Each line that was not refused stands in its partition once, in the file's order."""
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for stored in consume(server.bootstrap, TOPIC, PARTITIONS):
        found[stored.partition].append(stored.value)
    counts = Counter(line for partition in found for line in partition)
    every = [line for partition in due for line in partition]
    lost = [line for line in every if not counts[line]]
    doubled = [line for line, count in counts.items() if count > 1]
    alien = list(counts.keys() - set(every))
    print(f"{len(every)} lines due, {len(lost)} lost, {len(doubled)} doubled, {len(alien)} alien")
    assert (lost[:5], doubled[:5], alien[:5]) == ([], [], [])
    for number, (stored_lines, due_lines) in enumerate(zip(found, due, strict=True)):
        pairs = enumerate(zip(stored_lines, due_lines, strict=True))
        wrong = next((each for each in pairs if each[1][0] != each[1][1]), None)
        assert wrong is None, f"partition {number}: another line than is due at {wrong}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("run", range(50 if SOAK else 3))
def test_every_line_once_over_kill_9(tmp_path: Path, run: int) -> None:
    random = new_random(f"resume-file-load-{run}")
    policy = ("strict", "monotonic")[run % 2]
    keys = random.random() < 0.7
    lines, refused = make_lines(random, keys=keys)
    file = tmp_path / "lines.csv"
    file.write_bytes(b"\n".join(lines) + b"\n")
    options = ["--policy", policy, *(("--key-column", "2") if keys else ())]
    slow = {"faults": f"slow={random.choice((0.002, 0.006))} before fsync *.log 1"}
    settings = {**SETTINGS, "default_partitions": str(PARTITIONS), **slow}
    due = [[], [], []]  # type: list[list[bytes]]
    for number, line in enumerate(lines, 1):
        if number not in refused:
            due[place_of(line, number, keys=keys)].append(line)
    killed: Counter[str] = Counter()
    with server_in(tmp_path / "server") as server:
        server.restart(settings)
        loader = Loader(server, file, *options)
        try:
            for _ in range(random.randint(2, 4)):
                loader.wait_for(len(loader.output) + random.randint(1, LINES // REPORT_EVERY // 3))
                time.sleep(random.random() * 0.01)
                what = random.choice(("loader", "server", "both"))
                if what != "loader":
                    server.kill9()
                    killed["server"] += not loader.ended
                if what != "server":
                    killed["loader"] += loader.kill9()
                if what != "loader":
                    server.restart(settings)
                if loader.ended:
                    loader = Loader(server, file, *options)
            if not killed["loader"]:
                killed["loader"] += loader.kill9()
                loader = Loader(server, file, *options)
            assert loader.wait() == 3, loader.output
        finally:
            loader.process.kill()
        print(f"{policy}, keys {keys}, {len(refused)} refused, kills {dict(killed)}:"
              f" {loader.output[-2].strip()}")  # fmt: skip
        check_log(server, due)
        assert server.stop() == 0
        check_directory(server.data_dir)
    assert killed["loader"], "nothing was killed at work"
    rows = (tmp_path / "lines.csv.rejected").read_bytes().splitlines()
    told = [row.split(b"\t", 3) for row in rows]
    assert [int(row[0]) for row in told] == sorted(refused)
    whole = file.read_bytes()
    for row in told:
        assert row[3] == lines[int(row[0]) - 1]
        assert whole[int(row[1]) :].startswith(row[3] + b"\n")


# ---------------------------------------------------------------------- what it refuses


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    settings = {"fsync": "never", "default_partitions": "3", "log_level": "warning"}
    with PidleaseServer(tmp_path_factory.mktemp("load"), settings=settings) as running:
        yield running


def load(server: PidleaseServer, file: Path, *options: str) -> tuple[int, str]:
    """A whole run, under a name of the file's own: its exit code and what it says."""
    loader = Loader(server, file, "--name", file.parent.name, "--topic", file.parent.name, *options)
    return loader.wait(), "".join(loader.output)


def test_a_second_run_stores_nothing(server: PidleaseServer, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a\r\n\nc")
    assert load(server, file) == (0, (f"{file}: 3 lines: 3 stored, 0 were in the log before,"
                                     " 0 refused\n"))  # fmt: skip
    assert load(server, file) == (0, (f"{file}: 3 lines: 0 stored, 3 were in the log before,"
                                     " 0 refused\n"))  # fmt: skip
    stored = consume(server.bootstrap, tmp_path.name, 3)
    assert sorted(each.value for each in stored) == [b"", b"a", b"c"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["lines", "lines.load.json"]


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (["--key-column", "2"], "key_column was None"),
        (["--max-record-bytes", "5000"], "max_record_bytes was 2000"),
        (["--policy", "monotonic"], "policy was 'strict'"),
    ],
)
def test_what_must_not_change(
    server: PidleaseServer, tmp_path: Path, option: list[str], text: str
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a\n")
    assert load(server, file)[0] == 0
    code, output = load(server, file, *option)
    assert code == 2
    assert text in output


def test_a_file_that_has_changed(server: PidleaseServer, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a\nb")
    assert load(server, file)[0] == 0
    file.write_bytes(b"a\nb and more")
    code, output = load(server, file)
    assert code == 2
    assert "has changed" in output


def test_a_name_that_another_load_has_used(server: PidleaseServer, tmp_path: Path) -> None:
    file, other = tmp_path / "lines", tmp_path / "others"
    file.write_bytes(b"a\n")
    other.write_bytes(b"b\nc\n")
    assert load(server, file)[0] == 0
    for _ in range(2):
        code, output = load(server, other)
        assert code == 2
        assert "another load has used this --name" in output


def test_a_name_that_the_server_has_forgotten(server: PidleaseServer, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a\n")
    assert load(server, file)[0] == 0
    # To the server, a name that it has forgotten is one that it has never known.
    code, output = load(server, file, "--topic", tmp_path.name + "-new")
    assert code == 2
    assert "topic was" in output
    plan = tmp_path / "lines.load.json"
    plan.write_text(plan.read_text().replace(tmp_path.name, tmp_path.name + "-new"))
    code, output = load(server, file, "--name", "-new".join((tmp_path.name, "")),
                        "--topic", tmp_path.name + "-new")  # fmt: skip
    assert code == 2
    assert "knows nothing any more" in output


def test_a_server_that_is_away(server: PidleaseServer, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a\n")
    code, output = load(server, file, "--topic", "not legal")
    assert (code, "topic name" in output) == (2, True)
    code, output = load(server, tmp_path / "none")
    assert (code, "run the same command again" in output) == (1, True)
