"""The PID sequence in ZooKeeper, for many servers; each block is recorded before its use.

    pids/blocks/0000000001   fifty blocks: first, count, taken_ms, owner, token
    pids/blocks/0000000002   the last node grows; each write gives the version that was read
    pids/merged              the end of the older blocks, and when the newest of them was taken

Only the last node changes, and only until it is full; then the next node is created. So if two
servers try to take the same numbers, one write fails, and its server reads the node again.
"""

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from typing_extensions import override

from pidlease.coordination.pid_sequence import PidSequence, SequenceError
from pidlease.coordination.zookeeper.sequence_nodes import (
    Entry,
    decode_entries,
    decode_merged,
    encode_entries,
    encode_merged,
)
from pidlease.coordination.zookeeper.zookeeper_connection import ZooKeeper, ZooKeeperError
from pidlease.core.blocks import PidBlock, block_start
from pidlease.core.pid import BLOCK_SIZE
from pidlease.observability.repeated_lines import LINES, kind_of

#: Blocks in a node: each new one is written with all of them.
_NODE_BLOCKS: Final = 50
#: Nodes read at once, the newest first; then four times as many, and so on.
_NODES_AT_ONCE: Final = 2
#: Nodes of old blocks merged at once.
_MERGED_AT_ONCE: Final = 10
#: How long other servers may win before an attempt fails, in seconds.
_CONTENTION_SECONDS: Final = 10.0

#: The results of a transaction's parts if another server was faster.
_LOST_RACE: Final = (BadVersionError, NoNodeError, RolledBackError, RuntimeInconsistency)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Tail:
    """The last node, as of the last read or write.

    Attributes:
        number: the node's number; 0: there is none yet.
        version: of its content.
        entries: the blocks in it.
        end: the first number after all blocks.
    """

    number: int
    version: int
    entries: tuple[Entry, ...]
    end: int


class ZooKeeperSequence(PidSequence):
    """Blocks of 100 PIDs from ZooKeeper.

    Parameters:
        owner: the server's name, recorded with each block.
        clock_ms: the time, in ms since 1970.
        keep_ms: blocks older than this may be merged; at least the lease length.
        begin: the first number to take: where another sequence ended.
    """

    shared = True

    def __init__(
        self,
        zookeeper: ZooKeeper,
        owner: str,
        clock_ms: Callable[[], int],
        keep_ms: int,
        begin: int = 1,
    ) -> None:
        self._zookeeper = zookeeper
        self._owner = owner
        self._clock_ms = clock_ms
        self._keep_ms = keep_ms
        self._begin = begin
        self._folder = zookeeper.path("pids/blocks")
        self._merged = zookeeper.path("pids/merged")
        self._lock = threading.Lock()
        self._prepared = False
        self._tail: _Tail | None = None
        #: The token of an attempt with an unknown outcome; empty: there is none.
        self._token = ""

    @override
    def blocks(self, beyond: int = 0) -> list[PidBlock]:
        give_up = time.monotonic() + _CONTENTION_SECONDS
        try:
            self._prepare()
            while True:
                try:
                    return self._read_blocks(beyond)
                except NoNodeError:  # a node was merged meanwhile
                    if time.monotonic() > give_up:
                        raise
        except (ZooKeeperError, KazooException, ValueError) as error:
            raise SequenceError(f"the PID blocks cannot be read: {_text(error)}") from error

    @override
    def take(self, at_least: int = 1) -> PidBlock:
        with self._lock:
            give_up = time.monotonic() + _CONTENTION_SECONDS
            try:
                self._prepare()
                while True:
                    taken = self._try_to_take(max(at_least, self._begin))
                    if taken is not None:
                        break
                    if time.monotonic() > give_up:
                        raise SequenceError("no PID block: other servers were always faster")
            except (ZooKeeperError, KazooException, ValueError) as error:
                self._tail = None
                raise SequenceError(f"no PID block: {_text(error)}") from error
            return taken

    # ------------------------------------------------------------------ taking

    def _try_to_take(self, at_least: int) -> PidBlock | None:
        """Take a block; None: another server was faster."""
        tail = self._tail or self._read_tail()
        found = self._unresolved(tail)
        if found is not None:
            return found
        first = max(tail.end, block_start(at_least))
        token = uuid.uuid4().hex[:12]
        entry = Entry(PidBlock(first, BLOCK_SIZE, self._clock_ms(), self._owner), token)
        # From here on the block may be recorded, whatever the response.
        self._token, self._tail = token, None
        try:
            self._tail = self._write(tail, entry)
        except (BadVersionError, NodeExistsError, NoNodeError):
            self._token = ""
            return None
        self._token = ""
        return entry.block

    def _unresolved(self, tail: _Tail) -> PidBlock | None:
        """Return the block of an attempt that succeeded, but the response was lost.

        The block is unused. It may also be in the node before the last one: then it is lost, as
        after a crash.
        """
        token, self._token = self._token, ""
        if not token:
            return None
        # The block is recorded now, or never: a request that is still in flight names a version
        # that the write after this makes invalid.
        found = [each.block for each in tail.entries if each.token == token]
        if found:
            self._tail = tail
            _log.info("a PID block was taken although the response was lost", first=found[0].first)
        return found[0] if found else None

    def _write(self, tail: _Tail, entry: Entry) -> _Tail:
        end = entry.block.end
        if tail.number and len(tail.entries) < _NODE_BLOCKS:
            entries = (*tail.entries, entry)
            path, data = self._node(tail.number), encode_entries(entries)
            stat = self._zookeeper.call(lambda c: c.set_async(path, data, tail.version))
            return _Tail(tail.number, stat.version, entries, end)
        number, data = tail.number + 1, encode_entries([entry])
        self._zookeeper.call(lambda c: c.create_async(self._node(number), data))
        try:
            self._merge()
        except (ZooKeeperError, KazooException, ValueError) as error:
            LINES.write(_log, "warning", "old PID blocks could not be merged", kind_of(error),
                        error=_text(error))  # fmt: skip
        return _Tail(number, 0, (entry,), end)

    # ------------------------------------------------------------------ reading

    def _prepare(self) -> None:
        if self._prepared:
            return
        self._zookeeper.ensure(self._zookeeper.path("pids/blocks"))
        self._zookeeper.make(self._merged, encode_merged(None))
        self._prepared = True

    def _read_tail(self) -> _Tail:
        numbers = self._numbers()
        if not numbers:
            merged = self._read_merged()[0]
            return _Tail(0, -1, (), merged.end if merged else 1)
        entries, version = self._read_node(numbers[-1])
        return _Tail(numbers[-1], version, tuple(entries), entries[-1].block.end)

    def _read_blocks(self, beyond: int) -> list[PidBlock]:
        """Read the blocks, from the newest node back to the one that holds a number.

        Raises:
            NoNodeError: a node was merged meanwhile.
        """
        found: list[PidBlock] = []
        numbers, at_once = self._numbers(), _NODES_AT_ONCE
        while numbers:
            some, numbers = numbers[-at_once:], numbers[:-at_once]
            read = self._read_nodes(some)
            found[:0] = [each.block for entries, _ in read for each in entries]
            if found[0].first <= beyond:
                return found
            at_once *= 4
        merged = self._read_merged()[0]  # read last: blocks move from nodes to here
        if merged is None:
            return found
        return [merged, *(each for each in found if each.first >= merged.end)]

    def _numbers(self) -> list[int]:
        names = self._zookeeper.children(self._folder)
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal())

    def _read_node(self, number: int) -> tuple[list[Entry], int]:
        return self._read_nodes([number])[0]

    def _read_nodes(self, numbers: Sequence[int]) -> list[tuple[list[Entry], int]]:
        """Read the blocks in nodes, and the nodes' versions."""
        read = []
        paths = [self._node(number) for number in numbers]
        for path, node in zip(paths, self._zookeeper.nodes(paths), strict=True):
            if node is None:
                raise NoNodeError(path)
            entries = decode_entries(path, node[0])
            if not entries:
                raise ValueError(f"ZooKeeper's {path} holds no PID block")
            read.append((entries, node[1].version))
        return read

    def _read_merged(self) -> tuple[PidBlock | None, int]:
        node = self._zookeeper.node(self._merged)
        if node is None:
            raise NoNodeError(self._merged)
        return decode_merged(self._merged, node[0]), node[1].version

    def _node(self, number: int) -> str:
        return f"{self._folder}/{number:010d}"

    # ------------------------------------------------------------------ merging

    def _merge(self) -> None:
        """Merge the oldest nodes, if all blocks in them are old, into one end and time."""
        before_ms = self._clock_ms() - self._keep_ms
        for number in self._numbers()[:-1][:_MERGED_AT_ONCE]:
            entries, _ = self._read_node(number)
            newest_ms = max(each.block.taken_ms for each in entries)
            if newest_ms >= before_ms:
                return
            _, version = self._read_merged()
            end = entries[-1].block.end
            data = encode_merged(PidBlock(1, end - 1, newest_ms))
            if not self._replace(number, data, version):
                return  # another server does it

    def _replace(self, number: int, merged: bytes, version: int) -> bool:
        """Remove a node and write its merged rest in one step; False: another server did."""

        def ask(client: KazooClient) -> object:
            transaction = client.transaction()
            transaction.set_data(self._merged, merged, version)
            transaction.delete(self._node(number))
            return transaction.commit_async()

        failed = [each for each in self._zookeeper.call(ask) if isinstance(each, KazooException)]
        real = [each for each in failed if not isinstance(each, _LOST_RACE)]
        if real:
            raise real[0]
        return not failed


def _text(error: Exception) -> str:
    """Describe an error; those of kazoo often have a name only."""
    if isinstance(error, KazooException):
        return f"{type(error).__name__} {error}".strip()
    return str(error)
