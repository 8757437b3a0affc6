"""Decides whether a principal may do something, and caches the decisions."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from proxy.security.acls import CLUSTER_NAME, Acl, AclIndex, Operation, ResourceKind
from proxy.security.audit_log import DENIED, AuditLog

#: Cached decisions; when there are more, all are dropped.
_DECISIONS_MAX: Final = 100_000
#: The longest name that is remembered, longer than any of a topic or a producer: names that are
#: only asked about, and refused, may be as long as a request.
NOTED_NAME_MAX: Final = 256
#: Transactional ids and names of producers that begin so are the server's own.
OWN_PREFIX: Final = "pidlease/"
#: The refusal of a batch. It does not show the name: readers of the log must not learn it by a PID.
NO_RIGHT_TO_NAME: Final = "its PID is that of a name to which the client has no right to write"


class Caller(NamedTuple):
    """The client that sent a request.

    Attributes:
        principal: `User:NAME`.
        host: the client's address, without the port.
    """

    principal: str
    host: str


class Right(NamedTuple):
    """What a request needs.

    Attributes:
        name: of the resource; empty: any resource of the kind (KIP-679).
    """

    operation: Operation
    kind: ResourceKind
    name: str = CLUSTER_NAME


class Authorizer:
    """Decides by ACLs: whoever has no entry that allows something may not do it.

    Before the first `replace`, only super users may do something.

    Parameters:
        super_users: principals that may do everything (but use the server's own ids).
        allow_if_none: whether all may use a resource that no entry is about.
        audit: gets the refusals.

    Attributes:
        version: another object after each change of the ACLs.
        on_change: called after each change.
    """

    def __init__(self, super_users: Iterable[str], *, allow_if_none: bool, audit: AuditLog) -> None:
        self._super_users: Final = frozenset(super_users)
        self._allow_if_none: Final = allow_if_none
        self._audit: Final = audit
        self._index: AclIndex | None = None
        self._decisions: dict[tuple[Caller, Right], bool] = {}
        self.version = object()
        self.on_change: Final[list[Callable[[], None]]] = []

    @property
    def acls(self) -> frozenset[Acl]:
        """The entries in force."""
        return frozenset() if self._index is None else self._index.acls

    def is_undecided(self, caller: Caller) -> bool:
        """Whether a caller may do nothing only because no ACLs were read yet."""
        return self._index is None and caller.principal not in self._super_users

    def replace(self, acls: Iterable[Acl] | AclIndex) -> None:
        """Put entries in force, in place of all others."""
        self._index = acls if isinstance(acls, AclIndex) else AclIndex(acls)
        self._decisions = {}
        self.version = object()
        for each in self.on_change:
            each()

    def allows(self, caller: Caller, right: Right) -> bool:
        """Whether a caller has a right. A refusal is not audited: for lists."""
        key = (caller, right)
        known = self._decisions.get(key)
        if known is None:
            if len(right.name) > NOTED_NAME_MAX:
                return self._decide(caller, right)
            if len(self._decisions) >= _DECISIONS_MAX:
                self._decisions.clear()
            known = self._decisions[key] = self._decide(caller, right)
        return known

    def permits(self, caller: Caller, *alternatives: Right) -> bool:
        """Whether a caller has one of several rights; a refusal is audited."""
        for right in alternatives:
            if self.allows(caller, right):
                return True
        right = alternatives[0]
        self._audit.write(
            "refused", caller.principal, caller.host, right.operation.name,
            f"{right.kind.name}:{right.name or '*'}", DENIED,
        )  # fmt: skip
        return False

    def _decide(self, caller: Caller, right: Right) -> bool:
        operation, kind, name = right
        if kind is ResourceKind.TRANSACTIONAL_ID and name.startswith(OWN_PREFIX):
            return False
        if caller.principal in self._super_users:
            return True
        if self._index is None:
            return False
        if name:
            decided = self._index.decide(*caller, operation, kind, name)
        else:
            decided = self._index.decide_any(*caller, operation, kind)
        return self._allow_if_none if decided is None else decided
