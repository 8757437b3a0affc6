"""The client of the present HTTP request, for routes with rights that depend on the body."""

from contextvars import ContextVar
from typing import Final, NamedTuple

from proxy.security.acls import Operation, ResourceKind
from proxy.security.authorizer import Authorizer, Caller, Right


class NotAuthorizedError(Exception):
    """The client has no right to what it asks for."""


class HttpCaller(NamedTuple):
    """A client, and what decides about its rights."""

    caller: Caller
    authorizer: Authorizer


#: None: all is allowed.
CALLER: Final[ContextVar[HttpCaller | None]] = ContextVar("caller", default=None)


def require(*alternatives: Right) -> None:
    """Check that the client has one of several rights.

    Raises:
        NotAuthorizedError: it has none of them.
    """
    current = CALLER.get()
    if current is not None and not current.authorizer.permits(current.caller, *alternatives):
        raise NotAuthorizedError(no_right_to(alternatives[0]))


def no_right_to(right: Right) -> str:
    """Return the reason for a refusal."""
    operation, kind, name = right
    what = f"{kind.name.lower()} {name}" if name else f"any {kind.name.lower()}"
    return f"the client has no right to {operation.name.lower()} {what}"


def may_see(topic: str) -> bool:
    """Whether the client may see a topic in a list."""
    current = CALLER.get()
    return current is None or current.authorizer.allows(
        current.caller, Right(Operation.DESCRIBE, ResourceKind.TOPIC, topic)
    )


def require_lease(name: str | None, topic: str) -> None:
    """Check that the client may lease a PID (KIP-679 without a name).

    Raises:
        NotAuthorizedError: it may not.
    """
    if CALLER.get() is None:
        return
    require(Right(Operation.DESCRIBE, ResourceKind.TOPIC, topic))
    if name:
        require(Right(Operation.WRITE, ResourceKind.TRANSACTIONAL_ID, name))
    else:
        require(
            Right(Operation.IDEMPOTENT_WRITE, ResourceKind.CLUSTER),
            Right(Operation.WRITE, ResourceKind.TOPIC, ""),
        )


def require_create(topic: str) -> None:
    """Check that the client may create a topic.

    Raises:
        NotAuthorizedError: it may not.
    """
    require(
        Right(Operation.CREATE, ResourceKind.TOPIC, topic),
        Right(Operation.CREATE, ResourceKind.CLUSTER),
    )
