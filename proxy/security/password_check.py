"""Checks passwords against SCRAM credentials: for SASL PLAIN, and for HTTP's Basic."""

import asyncio
import hmac
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from weakref import WeakValueDictionary

from proxy.security.scram_credentials import (
    SHA_256,
    SHA_512,
    Credential,
    Credentials,
    StandIns,
    verifies,
)

#: Passwords that were right a moment ago: HTTP clients send theirs with each request.
_KEPT_MAX: Final = 10_000
#: Checks that wait or run at once. A check is refused if its address has as many as are free: so
#: one address fills half, and leaves room for others.
_WAITING_MAX: Final = 200


class TooManyLoginsError(Exception):
    """So many passwords are being checked that this one must wait for later."""


class PasswordCheck:
    """Checks passwords, in a thread. Client addresses take turns.

    A check of an unknown user takes as long as one of a known user. A password that was right is
    not hashed again while the user's credential stays the same.

    Parameters:
        credentials: returns the credentials in force.
    """

    def __init__(self, credentials: Callable[[], Credentials], stand_ins: StandIns) -> None:
        self._credentials: Final = credentials
        self._stand_ins: Final = stand_ins
        self._secret: Final = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, Credential] = OrderedDict()
        # One thread: a flood of passwords takes one core at most.
        self._threads: Final = ThreadPoolExecutor(1, thread_name_prefix="passwords")
        self._waiting: Counter[str] = Counter()
        #: The thread has one check of each address at most, so none waits for all of another's.
        self._turns: Final = WeakValueDictionary[str, asyncio.Lock]()
        #: A client that has just started sends one password on many connections.
        self._running: dict[tuple[bytes, Credential], asyncio.Task[bool]] = {}

    def close(self) -> None:
        """End the thread, and all checks."""
        for each in self._running.values():
            each.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def is_right(self, user: str, password: str, address: str) -> bool:
        """Whether a user exists and has this password.

        Parameters:
            address: of the client, without the port.

        Raises:
            TooManyLoginsError: too many passwords are being checked.
        """
        if self.was_right(user, password):
            return True
        credential = self._credential(user)
        check = self._key(user, password), credential
        running = self._running.get(check)
        if running is None:
            self._running[check] = running = self._start(credential, password, address)
            running.add_done_callback(lambda _: self._running.pop(check))
        right = await asyncio.shield(running)  # others may wait for it, too
        if not right or self._credential(user) != credential:
            return False
        self._right[self._key(user, password)] = credential
        if len(self._right) > _KEPT_MAX:
            self._right.popitem(last=False)
        return True

    def _start(self, credential: Credential, password: str, address: str) -> "asyncio.Task[bool]":
        waiting = self._waiting
        if waiting[address] >= _WAITING_MAX - waiting.total():
            raise TooManyLoginsError
        waiting[address] += 1

        def ended(_: "asyncio.Task[bool]") -> None:
            waiting[address] -= 1
            if not waiting[address]:
                del waiting[address]

        running = asyncio.create_task(self._check(credential, password, address))
        running.add_done_callback(ended)
        return running

    async def _check(self, credential: Credential, password: str, address: str) -> bool:
        async with self._turns.setdefault(address, asyncio.Lock()):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, verifies, credential, password)

    def was_right(self, user: str, password: str) -> bool:
        """Whether a password is known to be right, without a hash that takes long."""
        credential = self._credential(user)
        key = self._key(user, password)
        return self._right.get(key) == credential

    def _credential(self, user: str) -> Credential:
        found = self._credentials()
        known = found.get((user, SHA_512)) or found.get((user, SHA_256))
        return known or self._stand_ins.of(user, SHA_512)

    def _key(self, user: str, password: str) -> bytes:
        """Return a key from which the password cannot be guessed without this process's secret."""
        both = f"{len(user)}:{user}{password}".encode(errors="surrogatepass")
        return hmac.digest(self._secret, both, "sha256")
