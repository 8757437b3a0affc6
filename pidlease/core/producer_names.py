"""Producer ids of policy epoch: strings, each with a number that stands for it in this process.

All that is kept of producers is kept by numbers. These ones lie in the upper half of the PIDs of
policy epoch, which no sequence reaches, mean nothing outside of the process, and are never used
for another string.
"""

from itertools import count
from typing import Final

from pidlease.core.pid import POLICY_SHIFT, Policy

_FIRST: Final = Policy.EPOCH << POLICY_SHIFT | 1 << (POLICY_SHIFT - 1)
_END: Final = (Policy.EPOCH + 1) << POLICY_SHIFT


def is_stand_in(pid: int) -> bool:
    """Whether a PID stands for a producer id of policy epoch."""
    return _FIRST <= pid < _END


class ProducerNames:
    """The producer ids that are known.

    A replay takes them in several threads: each step is one that the interpreter does as a whole.
    """

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._numbers = count(_FIRST)

    def __len__(self) -> int:
        return len(self._names)

    def find(self, name: str) -> int | None:
        """The number that stands for a producer id; None: it is not known."""
        return self._pids.get(name)

    def take(self, name: str) -> int:
        """The number that stands for a producer id, which is known from now on."""
        pid = self._pids.get(name)
        if pid is None:
            # Two that come at once agree on the first one's number; the other's is never used.
            pid = self._pids.setdefault(name, next(self._numbers))
            self._names[pid] = name
        return pid

    def name(self, pid: int) -> str:
        """The producer id that a number stands for; empty: for none, or for none any more."""
        return self._names.get(pid, "")

    def drop(self, pid: int) -> None:
        """Forget a producer id."""
        name = self._names.pop(pid, None)
        if name is not None:
            del self._pids[name]
