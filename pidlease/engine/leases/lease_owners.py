"""Bounds how many PIDs the clients of one user lease at once.

A name holds a PID, so this bounds names as well. Leases from before the start have no user, and
count for none.
"""

from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

#: The user of the present request; empty: there is none.
USER: Final[ContextVar[str]] = ContextVar("user", default="")


class LeaseOwners:
    """The users of leases.

    Parameters:
        limit: returns how many PIDs a user may lease at once; None: any number.
    """

    def __init__(self, limit: Callable[[str], int | None]) -> None:
        self._limit: Final = limit
        #: Those of users with a limit at the time of the lease.
        self._users: Final[dict[int, str]] = {}
        self._counts: Final[Counter[str]] = Counter()

    def refusal(self) -> str:
        """Return why the present request may lease no PID; empty: it may."""
        user = USER.get()
        most = self._limit(user) if user else None
        if most is None or self._counts[user] < most:
            return ""
        return f"user {user} leases {self._counts[user]} PIDs; at most {most} at once are allowed"

    def leased(self, pid: int) -> None:
        """Count a lease for the user of the present request."""
        user = USER.get()
        if user and pid not in self._users and self._limit(user) is not None:
            self._users[pid] = user
            self._counts[user] += 1

    def ended(self, pid: int) -> None:
        """Count a lease no more."""
        user = self._users.pop(pid, None)
        if user is not None:
            self._counts[user] -= 1
            if not self._counts[user]:
                del self._counts[user]
