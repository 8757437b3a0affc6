"""The fence log in ZooKeeper: the grants of names, in their order.

    fences/0000000001   {"fences": [[name, pid, generation, former, granted_ms], ...]}, up to 50

The last node grows by writes that name the version it was read at; when it is full, the next one is
created. Entries and the binding of their name are written in one transaction. Names do not belong
to a Kafka cluster, and neither do fences.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

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

from pidlease.coordination.fence_log import (
    FENCES_PER_NODE,
    Fence,
    FenceLog,
    FenceLogError,
    FencePosition,
)
from pidlease.coordination.name_bindings import Binding
from pidlease.coordination.zookeeper.zookeeper_connection import Write, ZooKeeper, ZooKeeperError
from pidlease.observability.loggers import Logger

#: How long other servers may win before an attempt fails, in seconds.
_CONTENTION_SECONDS: Final = 10.0
#: The fields of a binding in an entry.
_FIELDS: Final = ("pid", "generation", "former", "granted_ms")
#: Nodes removed at once.
_REMOVED_MAX: Final = 20
#: What a transaction's other parts get if one of them failed.
_FOLLOWED: Final = (RolledBackError, RuntimeInconsistency)
_LOST_RACE: Final = (BadVersionError, NodeExistsError, NoNodeError)

_log = Logger(__name__)


@dataclass(frozen=True, slots=True)
class _Tail:
    """The last node, as of the last read or write.

    Attributes:
        number: of the node; 0: there is none.
        version: of its content.
        fences: its entries.
    """

    number: int
    version: int
    fences: tuple[Fence, ...]


class _Node(NamedTuple):
    """A node as it was read.

    Attributes:
        version: of its content.
        written_ms: when the last entry was appended, in ms since 1970, by ZooKeeper's clock.
    """

    fences: list[Fence]
    version: int
    written_ms: int


class ZooKeeperFences(FenceLog):
    """The fence log in ZooKeeper.

    Parameters:
        clock_ms: the time, in ms since 1970.
        keep_ms: nodes with older entries only may be removed.
    """

    def __init__(self, zookeeper: ZooKeeper, clock_ms: Callable[[], int], keep_ms: int) -> None:
        self._zookeeper: Final = zookeeper
        self._folder: Final = zookeeper.path("fences")
        self._clock_ms: Final = clock_ms
        self._keep_ms: Final = keep_ms
        self._lock: Final = threading.Lock()
        self._tail: _Tail | None = None
        self._prepared = False

    # ------------------------------------------------------------------ reading

    @override
    def end(self) -> FencePosition:
        try:
            tail = self._read_tail()
        except (ZooKeeperError, KazooException, ValueError, KeyError, TypeError) as error:
            raise self._error(error) from error
        return FencePosition(tail.number, len(tail.fences))

    @override
    def read(self, position: FencePosition) -> tuple[Sequence[Fence], FencePosition | None]:
        try:
            numbers = [each for each in self._numbers() if each >= position.node]
            if position.node and (not numbers or numbers[0] != position.node):
                return (), None
            if not numbers:
                return (), position
            if not position.node and numbers[0] != 1:
                return (), None
            if numbers != list(range(numbers[0], numbers[-1] + 1)):
                return (), None
            nodes = [self._read(number) for number in numbers]
        except NoNodeError:
            return (), None  # removed just now
        except (ZooKeeperError, KazooException, ValueError, KeyError, TypeError) as error:
            raise self._error(error) from error
        skipped = position.entry if numbers[0] == position.node else 0
        found = [each for node in nodes for each in node.fences][skipped:]
        return found, FencePosition(numbers[-1], len(nodes[-1].fences))

    def _numbers(self) -> list[int]:
        return sorted(map(int, self._zookeeper.children(self._folder)))

    def _read(self, number: int) -> _Node:
        node = self._zookeeper.node(self._node(number))
        if node is None:
            raise NoNodeError(self._node(number))
        rows = json.loads(node[0])["fences"]
        fences = [Fence(str(name), Binding.of(dict(zip(_FIELDS, rest, strict=True))))
                  for name, *rest in rows]  # fmt: skip
        return _Node(fences, node[1].version, node[1].mtime)

    def _read_tail(self) -> _Tail:
        numbers = self._numbers()
        if not numbers:
            return _Tail(0, -1, ())
        node = self._read(numbers[-1])
        return _Tail(numbers[-1], node.version, tuple(node.fences))

    def _node(self, number: int) -> str:
        return f"{self._folder}/{number:010d}"

    def _error(self, error: Exception) -> FenceLogError:
        return FenceLogError(f"ZooKeeper's {self._folder}: {type(error).__name__} {error}")

    # ------------------------------------------------------------------ appending

    def write_with(
        self, writes: Sequence[Write], fences: Sequence[Fence]
    ) -> list[KazooException | None]:
        """Write bindings, each in one transaction with its entry in the log. Blocks.

        Parameters:
            writes: the writes of the bindings.
            fences: the entry of each write.

        Returns:
            The error of each write, in their order; None: it was done.

        Raises:
            ZooKeeperError: no response, or other servers are always faster; each may have been
                written, or not.
            KazooException: ZooKeeper refused the log.
        """
        with self._lock:
            self._prepare()
            if len(writes) > 1:
                found = self._write(writes, fences)
                if not any(found):
                    return found
            return [self._write([each], [fence])[0]
                    for each, fence in zip(writes, fences, strict=True)]  # fmt: skip

    def _write(
        self, writes: Sequence[Write], fences: Sequence[Fence]
    ) -> list[KazooException | None]:
        """Write bindings and entries in one transaction; return the errors of the bindings."""
        give_up = time.monotonic() + _CONTENTION_SECONDS
        while True:
            tail = self._tail or self._read_tail()
            self._tail = None
            log, after = self._appended(tail, fences)
            results = self._zookeeper.call(partial(_commit, (*log, *writes)))
            failed = [each for each in results if isinstance(each, KazooException)]
            if not failed:
                self._tail = after
                if after.number != tail.number:
                    self._try_to_remove_old()
                return [None] * len(writes)
            own = results[: len(log)]
            if any(isinstance(each, _LOST_RACE) for each in own):
                if time.monotonic() > give_up:
                    raise ZooKeeperError("other servers were always faster")
                continue
            causes = [each for each in failed if not isinstance(each, _FOLLOWED)]
            if any(each in causes for each in own):
                raise causes[0]
            # The entries before the failed binding are rolled back with it.
            return [
                each if isinstance(each, KazooException) else None for each in results[len(log) :]
            ]

    def _appended(self, tail: _Tail, fences: Sequence[Fence]) -> tuple[list[Write], _Tail]:
        """Return the writes that append entries, and the tail after them."""
        writes, rest = [], list(fences)
        room = FENCES_PER_NODE - len(tail.fences) if tail.number else 0
        if room > 0:
            some, rest = rest[:room], rest[room:]
            tail = _Tail(tail.number, tail.version + 1, (*tail.fences, *some))
            writes.append(Write(self._node(tail.number), _encode(tail.fences), tail.version - 1))
        while rest:
            some, rest = rest[:FENCES_PER_NODE], rest[FENCES_PER_NODE:]
            tail = _Tail(tail.number + 1, 0, tuple(some))
            writes.append(Write(self._node(tail.number), _encode(tail.fences), -1))
        return writes, tail

    def _prepare(self) -> None:
        if not self._prepared:
            self._zookeeper.ensure(self._folder)
            self._prepared = True

    def _try_to_remove_old(self) -> None:
        try:
            self._remove_old()
        except (ZooKeeperError, KazooException, ValueError) as error:
            # The grant is stored. The next removal tries again.
            _log.warning("old fences of names could not be removed", error=str(self._error(error)))

    def _remove_old(self) -> None:
        """Remove the oldest nodes with old entries only; never the last one.

        A release, or a takeover of a name in use, is a new entry with the time of an old grant.
        """
        before_ms = self._clock_ms() - self._keep_ms
        for number in self._numbers()[:-1][:_REMOVED_MAX]:
            node = self._read(number)
            if node.written_ms >= before_ms:
                return
            path = self._node(number)
            try:
                self._zookeeper.call(Write(path, None, node.version).send)
            except _LOST_RACE:
                return


def _commit(writes: Sequence[Write], client: KazooClient) -> object:
    transaction = client.transaction()
    for each in writes:
        each.add_to(transaction)
    return transaction.commit_async()


def _encode(fences: Sequence[Fence]) -> bytes:
    rows = [[name, *(getattr(binding, each) for each in _FIELDS)] for name, binding in fences]
    return json.dumps({"fences": rows}, separators=(",", ":")).encode()
