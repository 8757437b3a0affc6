"""The writers' producer ids in ZooKeeper.

    writer-ids/0000000001   {"ids": [[producer id, topic, partition, given_ms], ...]}, up to 100
    writers/<producer id>   {"topic": ..., "partition": ..., "given_ms": ...}

Each id is in both. A start reads the nodes of many ids: with 10,000 partitions, 100 nodes instead
of 10,000. Servers of earlier versions read and write the nodes of one id. The next start that finds
such an id adds it to the nodes of many.

The last node of many grows by writes that name the version it was read at; when it is full, the
next node is created. So no server overwrites what another one recorded.
"""

import json
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

import structlog
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from typing_extensions import override

from pidlease.coordination.writer_ids import WriterIds, WriterIdsError, WriterOf
from pidlease.coordination.zookeeper.zookeeper_connection import ZooKeeper, ZooKeeperError

#: Ids in a node: each new one is written with all of them. With the longest names of topics, 30 kB.
_NODE_IDS: Final = 100
#: How long other servers may win before an attempt fails, in seconds.
_CONTENTION_SECONDS: Final = 10.0

_log = structlog.get_logger(__name__)

#: A producer id, and the partition it was given for.
_Row = tuple[int, str, int, int]


@dataclass(frozen=True, slots=True)
class _Tail:
    """The last node of many ids, as of the last read or write.

    Attributes:
        number: the node's number; 0: there is none yet.
        version: of its content.
        rows: the ids in it.
    """

    number: int
    version: int
    rows: tuple[_Row, ...]


class ZooKeeperWriterIds(WriterIds):
    """The writers' producer ids in ZooKeeper."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper: Final = zookeeper
        self._root: Final = zookeeper.path("writers")
        self._folder: Final = zookeeper.path("writer-ids")
        self._lock = threading.Lock()
        self._prepared = False
        self._tail: _Tail | None = None

    @override
    def all(self) -> dict[int, WriterOf]:
        try:
            numbers = self._numbers()
            found = {row[0]: WriterOf(*row[1:]) for each in self._read(numbers) for row in each[0]}
            others = self._singles(found)
        except (ZooKeeperError, KazooException, ValueError, KeyError, TypeError) as error:
            raise self._error(error) from error
        if others:
            self._pack(others)
        return found | others

    @override
    def add(self, pid: int, writer_of: WriterOf) -> None:
        try:
            with self._lock:
                self._prepare()
                fields = json.dumps(writer_of._asdict()).encode()
                self._zookeeper.make(f"{self._root}/{pid}", fields)
                self._append([(pid, *writer_of)])
        except (ZooKeeperError, KazooException, ValueError, KeyError, TypeError) as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> WriterIdsError:
        return WriterIdsError(f"ZooKeeper's {self._root}: {type(error).__name__} {error}")

    # ------------------------------------------------------------------ nodes of one id

    def _singles(self, known: dict[int, WriterOf]) -> dict[int, WriterOf]:
        """Read the ids that are only in nodes of one id."""
        names = [name for name in self._zookeeper.children(self._root) if int(name) not in known]
        nodes = self._zookeeper.nodes([f"{self._root}/{name}" for name in names])
        found = {}
        for name, node in zip(names, nodes, strict=True):
            if node is None:
                raise NoNodeError(f"{self._root}/{name}")
            fields = json.loads(node[0])
            found[int(name)] = WriterOf(*(fields[each] for each in WriterOf._fields))
        return found

    def _pack(self, ids: dict[int, WriterOf]) -> None:
        """Add ids to the nodes of many; if that fails, the next start reads them one by one."""
        try:
            with self._lock:
                self._prepare()
                self._append([(pid, *of) for pid, of in ids.items()])
        except (ZooKeeperError, KazooException, ValueError, KeyError, TypeError) as error:
            _log.warning("ids of writers could not be packed; the next start tries again",
                         ids=len(ids), error=f"{type(error).__name__} {error}")  # fmt: skip
        else:
            _log.info("ids of writers packed", ids=len(ids))

    # ------------------------------------------------------------------ nodes of many ids

    def _prepare(self) -> None:
        if self._prepared:
            return
        self._zookeeper.ensure(self._root)
        self._zookeeper.ensure(self._folder)
        self._prepared = True

    def _append(self, rows: list[_Row]) -> None:
        """Record ids in the last node, and in new ones as needed.

        Raises:
            ZooKeeperError: they may have been recorded or not, or other servers are always faster.
        """
        give_up = time.monotonic() + _CONTENTION_SECONDS
        while rows:
            tail, self._tail = self._tail or self._read_tail(), None
            there = {row[0] for row in tail.rows}  # by a write without a response
            rows = [row for row in rows if row[0] not in there]
            try:
                self._tail = self._write(tail, rows)
            except (BadVersionError, NodeExistsError, NoNodeError):
                if time.monotonic() > give_up:
                    raise ZooKeeperError("other servers were always faster") from None
                continue
            rows = rows[_room(tail) :]

    def _write(self, tail: _Tail, rows: list[_Row]) -> _Tail:
        some = tuple(rows[: _room(tail)])
        if not tail.number or len(tail.rows) >= _NODE_IDS:
            path, data = self._node(tail.number + 1), _encode(some)
            self._zookeeper.call(lambda client: client.create_async(path, data))
            return _Tail(tail.number + 1, 0, some)
        path, data = self._node(tail.number), _encode((*tail.rows, *some))
        stat = self._zookeeper.call(lambda client: client.set_async(path, data, tail.version))
        return _Tail(tail.number, stat.version, (*tail.rows, *some))

    def _read_tail(self) -> _Tail:
        numbers = self._numbers()[-1:]
        for rows, version in self._read(numbers):
            return _Tail(numbers[0], version, tuple(rows))
        return _Tail(0, -1, ())

    def _read(self, numbers: list[int]) -> list[tuple[list[_Row], int]]:
        """Read the ids in nodes, and the nodes' versions."""
        paths = [self._node(number) for number in numbers]
        read = []
        for path, node in zip(paths, self._zookeeper.nodes(paths), strict=True):
            if node is None:
                raise NoNodeError(path)
            rows = json.loads(node[0])["ids"]
            read.append(
                ([(int(pid), str(topic), int(number), int(given_ms))
                  for pid, topic, number, given_ms in rows], node[1].version)
            )  # fmt: skip
        return read

    def _numbers(self) -> list[int]:
        return sorted(map(int, self._zookeeper.children(self._folder)))

    def _node(self, number: int) -> str:
        return f"{self._folder}/{number:010d}"


def _room(tail: _Tail) -> int:
    """Return how many ids fit into the next node that is written."""
    return _NODE_IDS - len(tail.rows) % _NODE_IDS


def _encode(rows: tuple[_Row, ...]) -> bytes:
    fields: dict[str, Any] = {"ids": rows}
    return json.dumps(fields, separators=(",", ":")).encode()
