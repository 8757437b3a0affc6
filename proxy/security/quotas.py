"""The quotas in force, and what clients have used of them, in bounded memory.

What a client uses is counted here for all its connections, by either listener. Servers do not add
their counts up; Kafka's brokers do not, either.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from time import monotonic
from typing import Final, NamedTuple

from proxy.security.quota_rules import (
    ABSENT,
    FETCHED_BYTES,
    LEASES,
    NAME_LENGTH_MAX,
    PRODUCED_BYTES,
    REQUESTS,
    Entity,
    Rules,
    effective,
)
from proxy.security.token_bucket import TokenBucket

#: Buckets of their own. More clients with one quota share one.
_BUCKETS_MAX: Final = 10_000
#: Clients with buckets that are found at once; when there are more, all are looked for again.
_CLIENTS_MAX: Final = 10_000
#: How often full buckets are looked for, if there are too many.
_SWEEP_SECONDS: Final = 1.0
#: A longer client id counts as its beginning: no quota is of it.
_CLIENT_ID_MAX: Final = NAME_LENGTH_MAX + 1


class Buckets(NamedTuple):
    """The buckets of a client; None: it has no such quota.

    Attributes:
        produced: bytes of Produce requests, and of appends over HTTP.
        fetched: bytes of Fetch responses, and of reads over HTTP.
    """

    produced: TokenBucket | None
    fetched: TokenBucket | None
    requests: TokenBucket | None


_NO_BUCKETS: Final = Buckets(None, None, None)
_KEYS: Final = (PRODUCED_BYTES, FETCHED_BYTES, REQUESTS)


class Quotas:
    """The quotas in force.

    Parameters:
        window_seconds: how many seconds' use a client that was idle has at once.
        throttle_seconds_max: how long a client of too many requests is throttled for each of them.

    Attributes:
        active: whether there are quotas at all.
        on_change: called after each change.
        throttled: seconds for which clients were throttled, by quota and listener.
        throttles: how often clients were throttled, by quota and listener.
    """

    def __init__(self, window_seconds: float, throttle_seconds_max: float) -> None:
        self.window_seconds: Final = window_seconds
        self.throttle_seconds_max: Final = throttle_seconds_max
        self.rules: Rules = {}
        self.active = False
        self.on_change: Final[list[Callable[[], None]]] = []
        self.throttled: Final[defaultdict[tuple[str, str], float]] = defaultdict(float)
        self.throttles: Final[Counter[tuple[str, str]]] = Counter()
        self._buckets: dict[tuple[str, str, str], TokenBucket] = {}
        self._shared: dict[tuple[str, Entity], TokenBucket] = {}
        self._clients: dict[tuple[str, str], Buckets | None] = {}
        self._swept = 0.0

    def replace(self, rules: Rules) -> None:
        """Put quotas in force, in place of all others."""
        if rules == self.rules:
            return
        self.rules = rules
        self.active = bool(rules)
        self._clients = {}
        before = [*self._buckets.values(), *self._shared.values()]
        if not rules:
            self._buckets, self._shared = {}, {}
        for bucket in before:
            bucket.release()
        for each in self.on_change:
            each()

    def buckets(self, user: str, client_id: str) -> Buckets | None:
        """Return what a client's use is counted in; None: it has no quota.

        Look for them again after each wait: they may be others then.

        Parameters:
            client_id: empty: the client gives none, or uses HTTP.
        """
        key = user, client_id[:_CLIENT_ID_MAX]
        try:
            return self._clients[key]
        except KeyError:
            return self._find(key)

    def leases_max(self, user: str) -> int | None:
        """Return how many PIDs a user may lease at once; None: any number."""
        found = effective(self.rules, LEASES, user, ABSENT) if self.active else None
        return None if found is None else int(found[1])

    def count(self, quota: str, listener: str, seconds: float) -> None:
        """Count that a client is throttled."""
        self.throttled[quota, listener] += seconds
        self.throttles[quota, listener] += 1

    def _find(self, client: tuple[str, str]) -> Buckets | None:
        # Before the first bucket is found: it may be full, and must not be removed again.
        room = len(self._buckets) + len(_KEYS) <= _BUCKETS_MAX or self._sweep()
        if len(self._clients) >= _CLIENTS_MAX:
            self._clients.clear()
        found = Buckets(*(self._bucket(key, *client, room=room) for key in _KEYS))
        known = None if found == _NO_BUCKETS else found
        self._clients[client] = known
        return known

    def _bucket(self, key: str, user: str, client_id: str, *, room: bool) -> TokenBucket | None:
        """Return a client's bucket; a quota of a user counts for all its client ids together."""
        decided = effective(self.rules, key, user, client_id)
        if decided is None:
            return None
        entity, rate = decided
        place = (
            key,
            ABSENT if entity.user == ABSENT else user,
            ABSENT if entity.client_id == ABSENT else client_id,
        )
        bucket = self._buckets.get(place)
        if bucket is None and not room:
            bucket = self._shared.get((key, entity))
            if bucket is None:
                bucket = self._shared[key, entity] = TokenBucket(rate, self.window_seconds)
        elif bucket is None:
            bucket = self._buckets[place] = TokenBucket(rate, self.window_seconds)
        if bucket.rate != rate:
            bucket.change_rate(rate)
        return bucket

    def _sweep(self) -> bool:
        """Remove full buckets, which are as new ones; return whether there is room now."""
        now = monotonic()
        if now - self._swept >= _SWEEP_SECONDS:
            self._swept = now
            self._buckets = {
                place: each for place, each in self._buckets.items() if not each.is_full(now)
            }
            self._clients = {}
        return len(self._buckets) + len(_KEYS) <= _BUCKETS_MAX
