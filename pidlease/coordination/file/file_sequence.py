"""The PID sequence in a file, for a server without ZooKeeper; the same block rule.

One line for each block after the header, appended and fsynced before the block is used:

    {"file":"blocks"} 0a1b2c3d
    {"count":100,"first":1,"owner":"...","taken_ms":1700000000000} 8d2f3a11

Each line ends with a CRC-32C of its JSON. The rest of a block is lost with a crash, on purpose.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog
from typing_extensions import override

from pidlease.coordination.pid_sequence import PidSequence, SequenceError
from pidlease.core.blocks import BlockAges, PidBlock, block_start
from pidlease.core.pid import BLOCK_SIZE
from pidlease.storage.checked_lines import (
    check_header,
    decode_line,
    encode_line,
    header_of,
    make_lines_file,
)
from pidlease.storage.errors import reason_for_clients
from pidlease.storage.files import Files, read_file, write_aside

#: Lines in the file at which the old ones are merged.
_LINES_MAX: Final = 10_000
#: The shortest possible line.
_LINE_BYTES_MIN: Final = 50

_log = structlog.get_logger(__name__)


class FileSequence(PidSequence):
    """Blocks of 100 PIDs from a file.

    Parameters:
        owner: the server's name, recorded with each block.
        clock_ms: the time, in ms since 1970.
        keep_ms: blocks older than this may be merged; at least the lease length.

    Raises:
        SequenceError: the file cannot be read, or its middle is damaged.
    """

    shared = False

    def __init__(
        self, files: Files, path: Path, owner: str, clock_ms: Callable[[], int], keep_ms: int
    ) -> None:
        self._files = files
        self._path = path
        self._owner = owner
        self._clock_ms = clock_ms
        self._keep_ms = keep_ms
        self._lock = threading.Lock()
        self._blocks: list[PidBlock] = []
        self._next = 1
        self._length = 0
        self._load()

    @property
    def end(self) -> int:
        """The number after all blocks taken so far."""
        return self._next

    @override
    def blocks(self, beyond: int = 0) -> list[PidBlock]:
        with self._lock:
            return [block for block in self._blocks if block.end > beyond]

    @override
    def take(self, at_least: int = 1) -> PidBlock:
        with self._lock:
            first = max(self._next, block_start(at_least))
            block = PidBlock(first, BLOCK_SIZE, self._clock_ms(), self._owner)
            try:
                if len(self._blocks) >= _LINES_MAX:
                    self._compact()
                self._append(_line(block))
            except OSError as error:
                reason = reason_for_clients(error)
                raise SequenceError(f"no block could be recorded: {reason}") from error
            self._next = block.end
            self._blocks.append(block)
            return block

    def _load(self) -> None:
        try:
            make_lines_file(self._files, self._path)
            content = read_file(self._files, self._path)
            self._length = check_header(self._path, content)
        except OSError as error:
            raise SequenceError(f"{self._path}: {error}") from error
        lines = content[self._length :].split(b"\n")
        for index, line in enumerate(lines[:-1]):
            block = parse_line(line)
            if block is None or block.first < self._next:
                if any(map(parse_line, lines[index + 1 :])):
                    raise SequenceError(
                        f"{self._path}: line {index + 2} is damaged; take the file from a backup"
                    )
                break
            self._blocks.append(block)
            self._next = block.end
            self._length += len(line) + 1
        if self._length < len(content):
            # The block of a torn line was never used, but those of damaged lines may have been:
            # skip as many blocks as lines fit there.
            skipped = (len(content) - self._length) // _LINE_BYTES_MIN + 1
            self._next += skipped * BLOCK_SIZE
            _log.warning("the end of the PID sequence is not intact; skipping blocks",
                         path=str(self._path), skipped=skipped, next=self._next)  # fmt: skip

    def _append(self, line: bytes) -> None:
        file = self._files.open(self._path)
        try:
            # Truncate first: the rest of a failed or torn append must not be read again.
            file.truncate(self._length)
            file.write_at([line], self._length)
            file.fsync()
        finally:
            file.close()
        self._length += len(line)

    def _compact(self) -> None:
        ages = BlockAges(self._blocks)
        ages.merge_older(self._clock_ms() - self._keep_ms)
        merged = ages.blocks()
        content = b"".join((header_of(self._path), *map(_line, merged)))
        write_aside(self._files, self._path, [content])
        self._blocks = merged
        self._length = len(content)


def _line(block: PidBlock) -> bytes:
    fields = {
        "first": block.first,
        "count": block.count,
        "taken_ms": block.taken_ms,
        "owner": block.owner,
    }
    return encode_line(fields)


def parse_line(line: bytes) -> PidBlock | None:
    """Parse a line of the file; None: it is damaged."""
    fields = decode_line(line)
    if fields is None:
        return None
    return PidBlock(fields["first"], fields["count"], fields["taken_ms"], fields["owner"])
