"""Numbers for the producer ids of policy epoch, which are strings.

A producer's state is kept by its PID, a number. A producer id of policy epoch gets a stand-in PID
from the upper half of the policy's PIDs, which no sequence reaches. A stand-in PID has no meaning
outside of this process, and is never used for a second producer id. Idempotency keys have a half of
these PIDs for themselves, so that a PID says which lease table it belongs to.
"""

from itertools import count
from typing import Final

from pidlease.core.idempotency_keys import FIRST_OF_KEYS, is_key_name
from pidlease.core.pid import POLICY_SHIFT, Policy

_FIRST: Final = Policy.EPOCH << POLICY_SHIFT | 1 << (POLICY_SHIFT - 1)
_END: Final = (Policy.EPOCH + 1) << POLICY_SHIFT


def is_stand_in(pid: int) -> bool:
    """Return whether a PID is the stand-in of a producer id of policy epoch."""
    return _FIRST <= pid < _END


class ProducerNames:
    """Maps producer ids of policy epoch to stand-in PIDs, and back.

    Several threads replay at once: each step here is one atomic operation of the interpreter.
    """

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._numbers = count(_FIRST)
        self._key_numbers = count(FIRST_OF_KEYS)

    def __len__(self) -> int:
        return len(self._names)

    def find(self, name: str) -> int | None:
        """Return the stand-in PID of a producer id; None: it has none."""
        return self._pids.get(name)

    def take(self, name: str) -> int:
        """Return the stand-in PID of a producer id; make one if it has none."""
        pid = self._pids.get(name)
        if pid is None:
            # Two threads at once agree on the first one's PID; the second number is never used.
            numbers = self._key_numbers if is_key_name(name) else self._numbers
            pid = self._pids.setdefault(name, next(numbers))
            self._names[pid] = name
        return pid

    def name(self, pid: int) -> str:
        """Return the producer id of a stand-in PID; empty: it has none, or was dropped."""
        return self._names.get(pid, "")

    def drop(self, pid: int) -> None:
        """Forget a producer id."""
        name = self._names.pop(pid, None)
        if name is not None:
            del self._pids[name]
