"""Access control entries with Kafka's meaning (KIP-11, KIP-290), and decisions by them.

Source: AclOperation, ResourceType, PatternType and AclPermissionType of Kafka's Java client (the
numbers), and StandardAuthorizer (the rules).
"""

import enum
from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final, NamedTuple

from proxy.security.entry_file import EntryKind

#: A name, a principal's name or a host that stands for all.
ANY_NAME: Final = "*"
#: The one resource of kind CLUSTER.
CLUSTER_NAME: Final = "kafka-cluster"
ANY_USER: Final = "User:*"
#: Pairs of addresses of which is remembered whether they are the same.
_ADDRESSES_MAX: Final = 10_000
#: The longest principal, host or resource name of an entry.
_TEXT_MAX: Final = 1024


@enum.unique
class Operation(enum.IntEnum):
    """What is done to a resource, by Kafka's numbers."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


@enum.unique
class ResourceKind(enum.IntEnum):
    """The kind of a resource, by Kafka's numbers."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


@enum.unique
class Pattern(enum.IntEnum):
    """How an entry's name is compared, by Kafka's numbers."""

    LITERAL = 3
    PREFIXED = 4


@enum.unique
class Permission(enum.IntEnum):
    """Whether an entry denies or allows, by Kafka's numbers."""

    DENY = 2
    ALLOW = 3


#: The numbers of filters: everything; and for patterns, all that match a name.
FILTER_ANY: Final = 1
FILTER_MATCH: Final = 2

#: An allowed operation allows these as well (KIP-11).
_IMPLIED: Final[Mapping[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: frozenset(
        (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)
    ),
    Operation.DESCRIBE_CONFIGS: frozenset((Operation.ALTER_CONFIGS,)),
}
_NONE: Final[frozenset[Operation]] = frozenset()


class Acl(NamedTuple):
    """An access control entry.

    Attributes:
        principal: `User:NAME`; `User:*`: every one.
        host: the client's address; `*`: any.
        name: of the resource, or how it begins; `*`: any.
    """

    kind: ResourceKind
    pattern: Pattern
    name: str
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def concerns(self, principal: str, host: str) -> bool:
        """Whether the entry is about a principal at an address."""
        return self.principal in (principal, ANY_USER) and (
            self.host in (host, ANY_NAME) or _same_address(self.host, host)
        )

    def allows(self, operation: Operation) -> bool:
        """Whether an entry that allows its own operation allows this one."""
        own = self.operation
        return own in (operation, Operation.ALL) or own in _IMPLIED.get(operation, _NONE)

    def denies(self, operation: Operation) -> bool:
        """Whether an entry that denies its own operation denies this one."""
        return self.operation in (operation, Operation.ALL)


class AclError(ValueError):
    """An entry is invalid; the message says why."""


@lru_cache(_ADDRESSES_MAX)
def _same_address(one: str, other: str) -> bool:
    """Whether two texts are the same address: Java writes ::1 as 0:0:0:0:0:0:0:1."""
    try:
        return ip_address(one) == ip_address(other)
    except ValueError:
        return False


def checked(acl: Acl) -> Acl:
    """Return an entry if it is valid.

    Raises:
        AclError: it is not.
    """
    kind, name = acl.principal.partition(":")[::2]
    if kind != "User" or not name:
        raise AclError(f"principal {acl.principal!r} is not User:NAME")
    for what, text in (("name", acl.name), ("host", acl.host), ("principal", acl.principal)):
        if not text or len(text) > _TEXT_MAX or not text.isprintable():
            raise AclError(f"the {what} of an ACL has 1 to {_TEXT_MAX} printable characters")
    if acl.pattern is Pattern.PREFIXED and acl.name == ANY_NAME:
        raise AclError("a prefixed ACL for the name * would match only names that begin with *")
    if acl.kind is ResourceKind.CLUSTER and acl.name != CLUSTER_NAME:
        raise AclError(f"the only resource of kind CLUSTER is {CLUSTER_NAME}")
    return acl


def acl_of(kind: int, pattern: int, name: str, entry: Any) -> Acl:
    """Return the entry of a message of Kafka's protocol.

    Parameters:
        kind, pattern, name: of the resource.
        entry: the other fields, by the schema's names.

    Raises:
        AclError: a number is unknown.
    """
    try:
        return Acl(
            ResourceKind(kind), Pattern(pattern), name, entry.principal, entry.host,
            Operation(entry.operation), Permission(entry.permission_type),
        )  # fmt: skip
    except ValueError as error:
        raise AclError(str(error)) from None


def acl_from(fields: Mapping[str, Any]) -> Acl:
    """Return the entry of a line of the file.

    Raises:
        AclError: a field is missing, unknown or invalid.
    """
    unknown = fields.keys() - set(Acl._fields)
    if unknown:
        raise AclError(f"unknown field {min(unknown)!r}")
    values: dict[str, Any] = {"pattern": "LITERAL", "host": ANY_NAME, "permission": "ALLOW"}
    values |= fields
    kinds = {"kind": ResourceKind, "pattern": Pattern, "operation": Operation,
             "permission": Permission}  # fmt: skip
    for field in Acl._fields:
        value = values.get(field)
        if not isinstance(value, str):
            raise AclError(f"the field {field!r} is missing, or no text")
        if field in kinds:
            try:
                values[field] = kinds[field][value.upper()]
            except KeyError:
                names = ", ".join(each.name for each in kinds[field])
                raise AclError(f"{field} {value!r} is none of {names}") from None
    return checked(Acl(**values))


def fields_of(acl: Acl) -> dict[str, str]:
    """Return the line of an entry, as `acl_from` reads it."""
    return {
        "kind": acl.kind.name, "pattern": acl.pattern.name, "name": acl.name,
        "principal": acl.principal, "host": acl.host, "operation": acl.operation.name,
        "permission": acl.permission.name,
    }  # fmt: skip


class AclIndex:
    """The entries, by the resources that they are about."""

    def __init__(self, acls: Iterable[Acl]) -> None:
        self.acls: Final = frozenset(acls)
        self._literal: dict[tuple[ResourceKind, str], list[Acl]] = {}
        self._prefixed: dict[tuple[ResourceKind, str], list[Acl]] = {}
        #: The lengths of the prefixes of a kind: few, however many prefixes there are.
        self._lengths: dict[ResourceKind, set[int]] = {}
        self._of_principal: dict[tuple[ResourceKind, str], list[Acl]] = {}
        for acl in self.acls:
            self._of_principal.setdefault((acl.kind, acl.principal), []).append(acl)
            if acl.pattern is Pattern.LITERAL:
                self._literal.setdefault((acl.kind, acl.name), []).append(acl)
            else:
                self._prefixed.setdefault((acl.kind, acl.name), []).append(acl)
                self._lengths.setdefault(acl.kind, set()).add(len(acl.name))

    def matching(self, kind: ResourceKind, name: str) -> list[Acl]:
        """Return the entries about a resource."""
        found = [*self._literal.get((kind, name), ()), *self._literal.get((kind, ANY_NAME), ())]
        for length in self._lengths.get(kind, ()):
            if length <= len(name):
                found += self._prefixed.get((kind, name[:length]), ())
        return found

    def decide(
        self, principal: str, host: str, operation: Operation, kind: ResourceKind, name: str
    ) -> bool | None:
        """Whether an operation is allowed; None: there is no entry about the resource."""
        matching = self.matching(kind, name)
        if not matching:
            return None
        concerned = [acl for acl in matching if acl.concerns(principal, host)]
        if any(acl.permission is Permission.DENY and acl.denies(operation) for acl in concerned):
            return False
        return any(
            acl.permission is Permission.ALLOW and acl.allows(operation) for acl in concerned
        )

    def decide_any(
        self, principal: str, host: str, operation: Operation, kind: ResourceKind
    ) -> bool | None:
        """Whether an operation is allowed on any resource of a kind (KIP-679); None: undecided."""
        of_principal = (
            *self._of_principal.get((kind, principal), ()),
            *self._of_principal.get((kind, ANY_USER), ()),
        )
        concerned = [acl for acl in of_principal if acl.concerns(principal, host)]
        denied = [
            acl for acl in concerned if acl.permission is Permission.DENY and acl.denies(operation)
        ]
        if any(acl.name == ANY_NAME and acl.pattern is Pattern.LITERAL for acl in denied):
            return False
        allowed = (
            acl for acl in concerned if acl.permission is Permission.ALLOW and acl.allows(operation)
        )
        if any(not any(_covers(deny, acl) for deny in denied) for acl in allowed):
            return True
        return None


def _covers(deny: Acl, allow: Acl) -> bool:
    """Whether a denial applies to all resources of an allowance."""
    literal = allow.pattern is Pattern.LITERAL
    if deny.pattern is Pattern.PREFIXED:
        return allow.name.startswith(deny.name) and not (literal and allow.name == ANY_NAME)
    return deny.name == allow.name and literal


#: The file of the ACLs.
ACL_FILE: Final = EntryKind("acls", "ACLs", 20_000, acl_from, fields_of, key=lambda acl: acl)
