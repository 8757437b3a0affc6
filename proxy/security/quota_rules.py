"""Quotas of users and clients with Kafka's meaning, and which of them counts for a client.

Source: DefaultQuotaCallback in Kafka's ClientQuotaManager (the precedence), and its
ClientQuotaControlManager (what is valid).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from proxy.security.entry_file import EntryKind

#: Kafka's names of the parts of an entity.
USER: Final = "user"
CLIENT_ID: Final = "client-id"
#: The part of an entity that it does not have. No user and no client has this name.
ABSENT: Final = ""
NAME_LENGTH_MAX: Final = 249
#: A limit is finite also for all of a window.
_LIMIT_MAX: Final = 1e300

PRODUCED_BYTES: Final = "producer_byte_rate"
FETCHED_BYTES: Final = "consumer_byte_rate"
#: Requests a second; Kafka has a share of its threads' time instead.
REQUESTS: Final = "request_rate"
#: PIDs leased at once, of users alone.
LEASES: Final = "leases_max"
#: The keys, and whether their values are whole numbers.
KEYS: Final[Mapping[str, bool]] = {
    PRODUCED_BYTES: True, FETCHED_BYTES: True, REQUESTS: False, LEASES: True,
}  # fmt: skip
#: Kafka's keys that are not served, and why.
_OTHERS: Final[Mapping[str, str]] = {
    "request_percentage": "a share of the threads' time is not measured here; set request_rate",
    "controller_mutation_rate": "changes of topics count as requests; set request_rate",
    "connection_creation_rate": "connections have no quota; see connections-max",
}


class QuotaError(ValueError):
    """A quota is invalid; the message says why."""


class Entity(NamedTuple):
    """What a quota is of.

    Attributes:
        user: None: all users without a quota of their own; `ABSENT`: the quota is of a client.
        client_id: the same for client ids.
    """

    user: str | None = ABSENT
    client_id: str | None = ABSENT

    def __str__(self) -> str:
        """Return the entity as the audit log shows it."""
        parts = ((USER, self.user), (CLIENT_ID, self.client_id))
        return ",".join(
            f"{name}={'<default>' if value is None else value}"
            for name, value in parts
            if value != ABSENT
        )


class Quota(NamedTuple):
    """The quotas of an entity.

    Attributes:
        limits: key and value; sorted by the key.
    """

    entity: Entity
    limits: tuple[tuple[str, float], ...]


#: The quotas of all entities, by key.
Rules = Mapping[Entity, Mapping[str, float]]


def checked_limit(key: str, value: float) -> float:
    """Return a limit if it is valid.

    Raises:
        QuotaError: it is not.
    """
    if key not in KEYS:
        why = _OTHERS.get(key, f"the keys are {', '.join(KEYS)}")
        raise QuotaError(f"quota {key[:NAME_LENGTH_MAX]} is not served: {why}")
    if not 0 < value <= _LIMIT_MAX:
        raise QuotaError(f"quota {key} must be greater than 0, and at most {_LIMIT_MAX}")
    if KEYS[key] and value != int(value):
        raise QuotaError(f"quota {key} must be a whole number")
    return value


def checked_limits(entity: Entity, keys: Iterable[str]) -> Entity:
    """Return an entity if it may have limits of these keys.

    Raises:
        QuotaError: a lease belongs to no client id.
    """
    if LEASES in keys and entity.client_id != ABSENT:
        raise QuotaError(f"quota {LEASES} is of a {USER}, without a {CLIENT_ID}")
    return entity


def checked_entity(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Return the entity of some parts.

    Parameters:
        parts: name of the part, and its value; None: the default.

    Raises:
        QuotaError: a part is unknown, empty, too long, or given twice; or there is none.
    """
    found: dict[str, str | None] = {}
    for kind, name in parts:
        if kind not in (USER, CLIENT_ID):
            raise QuotaError(f"a quota is of {USER} and {CLIENT_ID}, not of {kind[:20]!r}")
        if kind in found:
            raise QuotaError(f"{kind} is given twice")
        if name is not None and not 0 < len(name) <= NAME_LENGTH_MAX:
            raise QuotaError(f"a {kind} with a quota has 1 to {NAME_LENGTH_MAX} characters")
        found[kind] = name
    if not found:
        raise QuotaError(f"a quota needs {USER} or {CLIENT_ID}, or both")
    return Entity(found.get(USER, ABSENT), found.get(CLIENT_ID, ABSENT))


def quota_from(fields: Mapping[str, Any]) -> Quota:
    """Return the quotas of a line of the file.

    Raises:
        QuotaError: a field is missing, unknown or invalid.
    """
    rest = dict(fields)
    parts = [(name, rest.pop(name)) for name in (USER, CLIENT_ID) if name in rest]
    for name, value in parts:
        if not isinstance(value, str | None):
            raise QuotaError(f"{name} is a string, or null for the default")
    for key, value in rest.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise QuotaError(f"{key[:20]} is a number")
    if not rest:
        raise QuotaError(f"no quota; the keys are {', '.join(KEYS)}")
    limits = sorted((key, checked_limit(key, value)) for key, value in rest.items())
    return Quota(checked_limits(checked_entity(parts), rest), tuple(limits))


def fields_of(quota: Quota) -> dict[str, Any]:
    """Return the fields of a line of the file."""
    entity = zip((USER, CLIENT_ID), quota.entity, strict=True)
    return {name: value for name, value in entity if value != ABSENT} | dict(quota.limits)


def rules_of(quotas: Iterable[Quota]) -> Rules:
    """Return quotas by entity."""
    return {entity: dict(limits) for entity, limits in quotas}


#: The file of the quotas.
QUOTA_FILE: Final = EntryKind(
    "quotas", "quotas", 10_000, quota_from, fields_of, key=lambda quota: quota.entity
)


def effective(rules: Rules, key: str, user: str, client_id: str) -> tuple[Entity, float] | None:
    """Return the entity with the quota of a key that counts for a client, and the quota.

    A quota that names the user comes first, then the default of users, then those of client ids.
    """
    for entity in (
        Entity(user, client_id), Entity(user, None), Entity(user),
        Entity(None, client_id), Entity(None, None), Entity(None),
        Entity(client_id=client_id), Entity(client_id=None),
    ):  # fmt: skip
        limit = rules.get(entity, {}).get(key)
        if limit is not None:
            return entity, limit
    return None
