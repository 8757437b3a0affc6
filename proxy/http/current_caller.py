"""The client of the present HTTP request, for routes with rights that depend on the body."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, NamedTuple

from proxy.security.acls import Operation, ResourceKind
from proxy.security.authorizer import NO_RIGHT_TO_NAME, Authorizer, Caller, Right


class NotAuthorizedError(Exception):
    """The client has no right to what it asks for."""


class QuotaExceededError(Exception):
    """The client owes more than its quota allows.

    Parameters:
        quota: the key.
        seconds: in how many the client owes nothing.
    """

    def __init__(self, quota: str, seconds: float) -> None:
        super().__init__(f"the client has used more than its quota {quota}")
        self.seconds: Final = seconds


class HttpCaller(NamedTuple):
    """A client, and what decides about its rights.

    Attributes:
        authorizer: None: all is allowed.
        count_produced: counts bytes for the client's quota; it raises an error if there are too
            many.
        note: writes a change into the audit log: operation, and resource.
    """

    caller: Caller
    authorizer: Authorizer | None
    count_produced: Callable[[int], None]
    note: Callable[[str, str], None]


#: None: all is allowed, and nothing is counted.
CALLER: Final[ContextVar[HttpCaller | None]] = ContextVar("caller", default=None)


def require(*alternatives: Right) -> None:
    """Check that the client has one of several rights.

    Raises:
        NotAuthorizedError: it has none of them.
    """
    current = CALLER.get()
    if current is None or current.authorizer is None:
        return
    if not current.authorizer.permits(current.caller, *alternatives):
        raise NotAuthorizedError(no_right_to(alternatives[0]))


def no_right_to(right: Right) -> str:
    """Return the reason for a refusal."""
    operation, kind, name = right
    what = f"{kind.name.lower()} {name}" if name else f"any {kind.name.lower()}"
    return f"the client has no right to {operation.name.lower()} {what}"


def may_see(topic: str) -> bool:
    """Whether the client may see a topic in a list."""
    current = CALLER.get()
    if current is None or current.authorizer is None:
        return True
    right = Right(Operation.DESCRIBE, ResourceKind.TOPIC, topic)
    return current.authorizer.allows(current.caller, right)


def count_batch(body_bytes: int, batch_bytes: int) -> None:
    """Count for the client's quota by how much a batch is larger than the body that it is made of.

    The body is counted already. It may be compressed, and the batch is not.

    Raises:
        QuotaExceededError: the client owes more than it may.
    """
    current = CALLER.get()
    if current is not None and batch_bytes > body_bytes:
        current.count_produced(batch_bytes - body_bytes)


def require_lease(name: str | None, topic: str) -> None:
    """Check that the client may lease a PID (KIP-679 without a name).

    Raises:
        NotAuthorizedError: it may not.
    """
    if CALLER.get() is None:
        return
    require(Right(Operation.DESCRIBE, ResourceKind.TOPIC, topic))
    if name:
        require(name_right(name))
    else:
        require_leases()


def require_leases() -> None:
    """Check that the client may lease PIDs without a name (KIP-679).

    Raises:
        NotAuthorizedError: it may not.
    """
    require(
        Right(Operation.IDEMPOTENT_WRITE, ResourceKind.CLUSTER),
        Right(Operation.WRITE, ResourceKind.TOPIC, ""),
    )


def require_name(name: str | None) -> None:
    """Check that the client may write under the PID of a producer's name.

    Every consumer sees PIDs and generations in the log, so they prove nothing.

    Parameters:
        name: None: the PID has no name, and nothing is checked.

    Raises:
        NotAuthorizedError: it may not.
    """
    current = CALLER.get()
    if name is None or current is None or current.authorizer is None:
        return
    if not current.authorizer.permits(current.caller, name_right(name)):
        raise NotAuthorizedError(NO_RIGHT_TO_NAME)


def name_right(name: str) -> Right:
    """Return the right to lease a producer's name, and to write under its PID."""
    return Right(Operation.WRITE, ResourceKind.TRANSACTIONAL_ID, name)


def shown_name(name: str | None) -> str:
    """Return a producer's name if the client may learn which PID has it; otherwise nothing."""
    current = CALLER.get()
    if not name or current is None or current.authorizer is None:
        return name or ""
    rights = (
        name_right(name),
        Right(Operation.DESCRIBE, ResourceKind.TRANSACTIONAL_ID, name),
        Right(Operation.DESCRIBE, ResourceKind.CLUSTER),
    )
    known = any(current.authorizer.allows(current.caller, each) for each in rights)
    return name if known else ""


def require_create(topic: str) -> None:
    """Check that the client may create a topic.

    Raises:
        NotAuthorizedError: it may not.
    """
    require(
        Right(Operation.CREATE, ResourceKind.TOPIC, topic),
        Right(Operation.CREATE, ResourceKind.CLUSTER),
    )


def note_change(operation: str, resource: str) -> None:
    """Write a change that the client has made into the audit log.

    Parameters:
        operation: what was done, as in `CREATE_TOPIC`.
        resource: its kind and name, as in `TOPIC:orders`.
    """
    current = CALLER.get()
    if current is not None:
        current.note(operation, resource)
