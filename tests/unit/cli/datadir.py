"""A small data directory, written by the storage layer itself, to be damaged by hand."""

import atexit
import json
import shutil
import struct
import tempfile
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

from crc32c import crc32c
from typer.testing import CliRunner, Result

from pidlease.coordination.file.file_sequence import FileSequence
from pidlease.core.log_config import LogConfig
from pidlease.core.packed import pack
from pidlease.core.pid import Policy, make_pid
from pidlease.core.rules import KAFKA
from pidlease.core.state import ProducerState, fold
from pidlease.engine.batch_identity import batch_of
from pidlease.kafka.records.record_batch import read_header
from pidlease.log.ports import NewBatch
from pidlease.log.segments.embedded_log import EmbeddedPartitionLog
from pidlease.log.segments.log_topics import make_logs
from pidlease.storage.files import RealFiles, write_aside
from pidlease.storage.snapshots import LeaseRow, PartitionRows, SnapshotStore, TopicPartition
from pidlease.storage.topics.topic_store import Topic, TopicStore
from proxy.__main__ import cli

TIME_MS = 1_700_000_000_000
SEGMENT_BYTES = 14_000
PID = make_pid(Policy.KAFKA, 7)
OTHER = make_pid(Policy.KAFKA, 8)
NAME = TopicPartition("t", 0)

_BODY = struct.Struct(">hiqqqhii")


_GZIP = 1
_RECORDS_MAX = 100


def batch(
    first: int,
    *,
    pid: int = PID,
    generation: int = 0,
    records: int = 2,
    time_ms: int = TIME_MS,
    size: int = 900,
) -> bytearray:
    """A batch as a client sends it. Nobody looks at its records, and they are none."""
    codec = _GZIP if records > _RECORDS_MAX else 0  # uncompressed, they would need more bytes
    body = _BODY.pack(codec, records - 1, time_ms, time_ms, pid, generation, first, records)
    body += b"\x5a" * size
    return bytearray(struct.pack(">qiibI", 0, 9 + len(body), -1, 2, crc32c(body)) + body)


class Verified(NamedTuple):
    """What `pidlease verify` said."""

    code: int
    output: str
    answer: dict[str, Any]

    @property
    def findings(self) -> list[dict[str, Any]]:
        return list(self.answer["findings"])

    @property
    def kinds(self) -> list[str]:
        return sorted({finding["kind"] for finding in self.findings})

    @property
    def notes(self) -> str:
        return "\n".join(f"{note['file']}: {note['message']}" for note in self.answer["notes"])


class DataDir:
    """A data directory with one topic of one partition; made where it is not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = RealFiles()
        if not path.exists():
            self._make()
        self.topic = TopicStore(self.files, path / "topics").load()[0]

    def _make(self) -> None:
        for name in ("topics", "logs", "snapshots", "sequence"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        identity = json.dumps({"format": 1, "cluster_id": "0123456789abcdef012345", "files": []})
        (self.path / "meta.json").write_text(identity)
        self.files.lock(self.path / "lock", "process 1").release()
        topic = Topic.new("t", 1)
        TopicStore(self.files, self.path / "topics").save(topic)
        make_logs(self.files, self.path / "logs", topic, [0])
        self.sequence.take()

    @cached_property
    def sequence(self) -> FileSequence:
        path = self.path / "sequence" / "blocks"
        return FileSequence(self.files, path, "me", lambda: TIME_MS, keep_ms=1)

    @cached_property
    def log(self) -> EmbeddedPartitionLog:
        config = LogConfig(segment_bytes=SEGMENT_BYTES, retention_ms=-1)
        log = EmbeddedPartitionLog(self.files, self.folder, config, cast("Any", None))
        log.open(0, clean=False)
        return log

    @property
    def folder(self) -> Path:
        return self.path / "logs" / "t-0"

    @property
    def logs(self) -> list[Path]:
        return sorted(self.folder.glob("*.log"))

    def append(self, *batches: bytearray) -> None:
        for data in batches:
            self.log.append_blocking([NewBatch(data, read_header(data))])

    def fill(self, batches: int = 40, *, first: int = 0, pid: int = PID) -> None:
        """Dense batches of two records, the time rising."""
        for number in range(batches):
            sequence = first + 2 * number
            self.append(batch(sequence, pid=pid, time_ms=TIME_MS + sequence))

    def folded(self) -> dict[int, ProducerState]:
        """What a server would know now."""
        producers: dict[int, ProducerState] = {}
        for header, _ in self.log.read_batches(self.log.start_offset):
            if header.producer_id > 0:
                state = producers.get(header.producer_id)
                producers[header.producer_id] = fold(
                    KAFKA, state, batch_of(header), header.base_offset, 99
                )
        return producers

    def snapshot(
        self,
        producers: dict[int, ProducerState] | None = None,
        *,
        next_offset: int | None = None,
        leases: Sequence[LeaseRow] | None = None,
    ) -> Path:
        """A snapshot of now, or one that lies."""
        producers = self.folded() if producers is None else producers
        if leases is None:
            leases = [LeaseRow(pid, TIME_MS, TIME_MS + 1) for pid in self.folded()]
        at = self.log.end_offset if next_offset is None else next_offset
        packed = {pid: pack(KAFKA, state) for pid, state in producers.items()}
        rows = PartitionRows(NAME, self.topic.topic_id, at, -1, packed)
        manifest = SnapshotStore(self.files, self.path / "snapshots", keep=9).write(
            TIME_MS, [rows], leases
        )
        return self.path / "snapshots" / f"snapshot-{manifest.number:012d}"

    def close(self, *, clean: bool = True) -> None:
        """Stop, properly or by a crash."""
        if clean:
            self.log.close()
            write_aside(self.files, self.path / "clean-stop", [b""])

    def tree(self) -> dict[str, tuple[int, bytes]]:
        """Everything in it: the time of the last change, and the content."""
        return {
            str(each): (each.stat().st_mtime_ns, each.read_bytes() if each.is_file() else b"")
            for each in [self.path, *self.path.rglob("*")]
        }

    def verify(self) -> Verified:
        """Run the command, and see that it leaves no trace."""
        before = self.tree()
        result = run("verify", "--data-dir", str(self.path), "--json")
        assert self.tree() == before
        answer = json.loads(result.stdout) if result.exit_code < 2 else {}
        return Verified(result.exit_code, result.output, answer)

    def shown(self) -> str:
        """What people see; the exit code is that of `verify`."""
        before = self.tree()
        result = run("verify", "--data-dir", str(self.path))
        assert self.tree() == before
        assert result.exit_code == self.verify().code
        return result.output


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 0x04
    path.write_bytes(content)


def filled(path: Path, *, clean: bool = True) -> DataDir:
    """Three segments and two snapshots, all of them sound."""
    shutil.copytree(_filled(clean=clean), path)
    return DataDir(path)


@cache
def _filled(*, clean: bool) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="pidlease-"))
    atexit.register(shutil.rmtree, folder)
    data = DataDir(folder / "data")
    data.fill(20)
    data.append(batch(-1, pid=-1, generation=-1))
    data.snapshot()
    data.fill(10, first=40)
    data.fill(5, pid=OTHER)
    data.append(batch(0, generation=3), batch(2, generation=3))
    data.snapshot()
    data.close(clean=clean)
    return data.path
