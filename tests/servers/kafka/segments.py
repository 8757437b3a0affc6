"""Reads segment files with Kafka's own tool, to check those of the embedded log.

`kafka.tools.DumpLogSegments` reads .log, .index and .timeindex files. It exits with 0 even if it
finds errors, so its output counts: `SegmentDump.problems` is empty only if every line was
understood and none reports damage.

Dump the indexes of a closed segment only: Kafka preallocates those of an open one with zeros, and
the tool takes the first zero for an entry.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.servers.kafka.install import java_command
from tests.servers.kafka.server import short_lived

_TIMEOUT_S = 300
_BATCH = re.compile(
    r"baseOffset: (?P<base_offset>-?\d+) lastOffset: (?P<last_offset>-?\d+) "
    r"count: (?P<count>\d+|null) baseSequence: (?P<base_sequence>-?\d+) "
    r"lastSequence: (?P<last_sequence>-?\d+) producerId: (?P<producer_id>-?\d+) "
    r"producerEpoch: (?P<producer_epoch>-?\d+) "
    r"partitionLeaderEpoch: (?P<partition_leader_epoch>-?\d+) "
    r"isTransactional: (?P<is_transactional>\w+) isControl: (?P<is_control>\w+) "
    r"deleteHorizonMs: \S+ position: (?P<position>\d+) "
    r"(?P<timestamp_type>\w+): (?P<max_timestamp_ms>-?\d+) size: (?P<size_bytes>\d+) "
    r"magic: (?P<magic>\d+) compresscodec: (?P<codec>\w+) crc: (?P<crc>\d+) isvalid: (?P<valid>\w+)"
)
_RECORD = re.compile(
    r"\| offset: (?P<offset>\d+) \w+: (?P<timestamp_ms>-?\d+) keySize: (?P<key_size>-?\d+) "
    r"valueSize: (?P<value_size>-?\d+) sequence: (?P<sequence>-?\d+) "
    r"headerKeys: \[(?P<header_keys>.*)\](?: \w.*)?"
)
_INDEX_ENTRY = re.compile(r"offset: (\d+) position: (\d+)")
_TIME_INDEX_ENTRY = re.compile(r"timestamp: (-?\d+) offset: (\d+)")
_DUMPING = re.compile(r"Dumping (.+)")
_NO_PROBLEM = re.compile(
    r"Log starting offset: \d+|Snapshot end offset: .*|KRaft bootstrap snapshot|.* is empty\."
    r"|WARNING: .*|OpenJDK .* warning: .*"  # the Java runtime about itself
)


@dataclass(frozen=True)
class DumpedRecord:
    """One record, without its content."""

    offset: int
    timestamp_ms: int
    key_size: int
    value_size: int
    sequence: int
    header_keys: tuple[str, ...]


@dataclass(frozen=True)
class DumpedBatch:
    """The header of one batch, whether its CRC is valid, and its records."""

    base_offset: int
    last_offset: int
    count: int | None
    base_sequence: int
    last_sequence: int
    producer_id: int
    producer_epoch: int
    partition_leader_epoch: int
    is_transactional: bool
    is_control: bool
    position: int
    max_timestamp_ms: int
    size_bytes: int
    magic: int
    codec: str
    crc: int
    valid: bool
    records: list[DumpedRecord] = field(default_factory=list)


@dataclass
class DumpedFile:
    """The tool's output for one file; only the lists of its kind are filled."""

    path: Path
    batches: list[DumpedBatch] = field(default_factory=list)
    index: list[tuple[int, int]] = field(default_factory=list)  # offset, position
    time_index: list[tuple[int, int]] = field(default_factory=list)  # timestamp_ms, offset


@dataclass
class SegmentDump:
    """All files of one run of the tool, and all problems that it found."""

    files: dict[Path, DumpedFile] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def batches(self) -> list[DumpedBatch]:
        """The batches of all .log files, in the order in which the files were given."""
        return [batch for file in self.files.values() for batch in file.batches]

    @property
    def records(self) -> list[DumpedRecord]:
        """The records of all .log files, in the order in which the files were given."""
        return [record for batch in self.batches for record in batch.records]


def _to_batch(found: re.Match[str]) -> DumpedBatch:
    number = {name: int(text) for name, text in found.groupdict().items() if _is_number(text)}
    return DumpedBatch(
        base_offset=number["base_offset"],
        last_offset=number["last_offset"],
        count=number.get("count"),
        base_sequence=number["base_sequence"],
        last_sequence=number["last_sequence"],
        producer_id=number["producer_id"],
        producer_epoch=number["producer_epoch"],
        partition_leader_epoch=number["partition_leader_epoch"],
        is_transactional=found["is_transactional"] == "true",
        is_control=found["is_control"] == "true",
        position=number["position"],
        max_timestamp_ms=number["max_timestamp_ms"],
        size_bytes=number["size_bytes"],
        magic=number["magic"],
        codec=found["codec"],
        crc=number["crc"],
        valid=found["valid"] == "true",
    )


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+", text) is not None


def _to_record(found: re.Match[str]) -> DumpedRecord:
    keys = found["header_keys"]
    return DumpedRecord(
        offset=int(found["offset"]),
        timestamp_ms=int(found["timestamp_ms"]),
        key_size=int(found["key_size"]),
        value_size=int(found["value_size"]),
        sequence=int(found["sequence"]),
        header_keys=tuple(keys.split(",")) if keys else (),
    )


def _read_line(line: str, dump: SegmentDump, file: DumpedFile) -> bool:
    """Parse one line about a file; return False if it is of no known kind."""
    if found := _BATCH.fullmatch(line):
        batch = _to_batch(found)
        file.batches.append(batch)
        if not batch.valid:
            dump.problems.append(f"{file.path}: batch at {batch.position} is not valid: {line}")
    elif (found := _RECORD.fullmatch(line)) and file.batches:
        file.batches[-1].records.append(_to_record(found))
    elif found := _INDEX_ENTRY.fullmatch(line):
        file.index.append((int(found[1]), int(found[2])))
    elif found := _TIME_INDEX_ENTRY.fullmatch(line):
        file.time_index.append((int(found[1]), int(found[2])))
    else:
        return False
    return True


def parse_dump(stdout: str, stderr: str, returncode: int) -> SegmentDump:
    """Parse the tool's output; each line that is not known to be harmless is a problem."""
    dump = SegmentDump()
    file = DumpedFile(Path())
    for line in stdout.splitlines():
        if found := _DUMPING.fullmatch(line):
            file = dump.files.setdefault(Path(found[1]), DumpedFile(Path(found[1])))
        elif not _read_line(line, dump, file) and not _NO_PROBLEM.fullmatch(line):
            dump.problems.append(f"{file.path}: {line}")
    dump.problems += [
        line for line in stderr.splitlines() if line.strip() and not _NO_PROBLEM.fullmatch(line)
    ]
    if returncode != 0:
        dump.problems.append(f"DumpLogSegments ended with {returncode}")
    return dump


def dump_log_segments(files: Iterable[Path]) -> SegmentDump:
    """Let Kafka read .log, .index and .timeindex files, with all records."""
    names = [str(path.resolve()) for path in files]
    if not names:
        raise ValueError("no segment files to dump")
    if separators := [name for name in names if "," in name]:
        raise ValueError(f"the tool separates files by commas; these hold one: {separators}")
    silent = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    command = java_command("kafka.tools.DumpLogSegments", "-Xmx256m", *short_lived(), silent)
    done = subprocess.run(
        [*command, "--deep-iteration", "--files", ",".join(names)],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    return parse_dump(done.stdout, done.stderr, done.returncode)
