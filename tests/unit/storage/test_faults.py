"""Faults on request, on the simulated file system; those that kill, in a process of their own."""

import errno
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pidlease.core.buffer import Buffer
from pidlease.storage import file_faults
from pidlease.storage.file_faults import Fault, FaultPlan, FaultyFiles
from pidlease.storage.files import OpenFile, make_durable_folder, read_file, write_aside
from tests.servers.waiting import WAIT_S
from tests.sim.files import SimFiles

ROOT = Path(__file__).parents[3]
FOLDER = Path("/data")
PATH = FOLDER / "a.log"

#: Appends five times, and says on stdout what was acknowledged.
VICTIM = """
import sys
from pathlib import Path
from pidlease.storage.file_faults import FaultPlan, FaultyFiles
from pidlease.storage.files import RealFiles

files = FaultyFiles(RealFiles(), FaultPlan(sys.argv[2]))
log = files.open(Path(sys.argv[1]) / "a.log", create=True)
for index in range(5):
    log.write_at([b"%d" % index * 3, b"%d" % index * 3], index * 6)
    log.fsync()
    print(index, flush=True)
"""


def run_victim(folder: Path, plan: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", VICTIM, str(folder), plan]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False
    )


def make(plan: str) -> tuple[SimFiles, FaultyFiles]:
    inner = SimFiles()
    make_durable_folder(inner, FOLDER)
    return inner, FaultyFiles(inner, FaultPlan(plan))


def test_parse() -> None:
    assert Fault.parse(" slow=0.2  before fsync *.log 1 ") == Fault(
        "slow", "0.2", "before", "fsync", "*.log", 1
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kill after fsync *.log", "is not 'ACTION WHEN"),
        ("kill after fsync *.log 1 2", "is not 'ACTION WHEN"),
        ("explode after fsync *.log 1", "ACTION is one of"),
        ("kill during fsync *.log 1", r"before\|after"),
        ("kill after read *.log 1", "OPERATION is one of"),
        ("kill after fsync *.log first", "first"),
    ],
)
def test_what_is_not_a_fault(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Fault.parse(text)
    with pytest.raises(ValueError, match=message):
        FaultPlan(f"fail before write * 1; {text}")


def test_an_empty_plan_does_nothing() -> None:
    inner, files = make(" ; ")
    write_aside(files, PATH, [b"content"])
    assert read_file(inner, PATH) == b"content"
    assert files.exists(PATH)
    assert files.list(FOLDER) == ["a.log"]
    files.lock(FOLDER / "lock", "me").release()


def test_fail_fails_once_and_before_the_operation() -> None:
    inner, files = make("fail before write *.log 2")
    log = files.open(PATH, create=True)
    log.write_at([b"1"], 0)
    with pytest.raises(OSError, match="No space left") as caught:
        log.write_at([b"2"], 1)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(PATH))
    assert read_file(inner, PATH) == b"1"
    log.write_at([b"3"], 1)
    assert (log.size(), log.read_at(2, 0)) == (2, b"13")


def test_fail_after_has_done_it() -> None:
    inner, files = make("fail=EIO after write *.log 1")
    with pytest.raises(OSError, match="Input/output error"):
        files.open(PATH, create=True).write_at([b"1"], 0)
    assert read_file(inner, PATH) == b"1"


def test_fail_from_goes_on_failing_but_only_where_the_pattern_says() -> None:
    _, files = make("fail-from=EDQUOT before fsync *.log 2")
    log, other = files.open(PATH, create=True), files.open(FOLDER / "b", create=True)
    log.fsync()
    for _ in range(3):
        with pytest.raises(OSError, match="quota"):
            log.fsync()
        other.fsync()


def test_slow_delays_and_later_faults_still_fire(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr(file_faults, "time", SimpleNamespace(sleep=naps.append))
    _, files = make("slow=0.25 before fsync * 2; fail before fsync * 4; slow after fsync * 4")
    log = files.open(PATH, create=True)
    for _ in range(3):
        log.fsync()
    with pytest.raises(OSError, match="No space left"):
        log.fsync()
    log.fsync()
    assert naps == [0.25, 0.25, 0.25, 0.25, 0.1]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "operation",
    ["open", "write", "truncate", "fsync", "rename", "remove", "fsync_folder", "make_folder"],
)
def test_every_operation_reports_before_and_after(operation: str, when: str) -> None:
    inner, files = make(f"fail {when} {operation} * 1")
    twin = SimFiles()
    make_durable_folder(twin, FOLDER)
    for each in (twin, files):
        try:
            each.make_folder(FOLDER / "sub")
            write_aside(each, PATH, [b"x"])
            each.remove(PATH)
        except OSError:
            assert each is files
    done = [step.operation for step in twin.trace[2:]]
    stopped = done.index(operation) + (when == "after")
    reached = [step.operation for step in inner.trace[2:]]
    # Behind the failure comes only the clean-up of the file that was being written aside.
    assert reached[:stopped] == done[:stopped]
    assert set(reached[stopped:]) <= {"remove"}


def test_opening_what_exists_is_no_step() -> None:
    _, files = make("fail-from before open * 2")
    files.open(PATH, create=True).close()
    files.open(PATH).close()
    files.open_readonly(PATH).close()
    with pytest.raises(OSError, match="No space left"):
        files.open(FOLDER / "b", create=True)


class Killed(BaseException):
    """Instead of a SIGKILL."""


@pytest.mark.parametrize(
    ("plan", "left"),
    [("tear before write * 1", b"123")],
)
def test_tear_writes_half(monkeypatch: pytest.MonkeyPatch, plan: str, left: bytes) -> None:
    def kill(process: int, number: int) -> None:
        assert number == signal.SIGKILL
        raise Killed

    monkeypatch.setattr("pidlease.storage.file_faults.os.kill", kill)
    inner, files = make(plan)
    log: OpenFile = files.open(PATH, create=True)
    buffers: list[Buffer] = [b"1", bytearray(b"234"), memoryview(b"56")]
    with pytest.raises(Killed):
        log.write_at(buffers, 0)
    assert read_file(inner, PATH) == left


@pytest.mark.parametrize(
    ("plan", "acknowledged", "size"),
    [
        ("kill before write *.log 3", 2, 12),
        ("kill after write *.log 3", 2, 18),
        ("kill before fsync *.log 3", 2, 18),
        ("kill after fsync *.log 3", 2, 18),
        ("tear before write *.log 3", 2, 15),
        ("kill after open *.log 1", 0, 0),
    ],
)
def test_a_kill_is_a_sigkill(tmp_path: Path, plan: str, acknowledged: int, size: int) -> None:
    ended = run_victim(tmp_path, plan)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert ended.stdout.split() == [str(index) for index in range(acknowledged)]
    expected = b"".join(b"%d" % index * 6 for index in range(5))[:size]
    assert (tmp_path / "a.log").read_bytes() == expected
    words = plan.split()
    assert ended.stderr.startswith(f"fault: {words[0]} {words[1]} {words[2]} {tmp_path}")


def test_a_plan_that_meets_nothing_kills_nobody(tmp_path: Path) -> None:
    ended = run_victim(tmp_path, "kill before fsync *.log 6; kill before write *.json 1")
    assert (ended.returncode, len(ended.stdout.split())) == (0, 5), ended.stderr
