"""Names of producers: which PID a name is bound to, and the last generation granted to it.

A named producer remembers nothing but its name. The binding is durable before a lease by name is
granted. It is changed by conditional writes only: of two servers that raise the generation at once,
one fails and reads it again.
"""

from typing import Final, NamedTuple, Protocol

#: The longest name, in bytes of UTF-8.
NAME_BYTES_MAX: Final = 256
#: Above every generation that a batch can have.
RELEASED: Final = 2**63


class Binding(NamedTuple):
    """What a name is bound to.

    Attributes:
        generation: the last granted generation; `RELEASED`: no producer may write under the name.
        former: the PID before it, if its lease had not ended at the grant; -1: none.
        granted_ms: when the PID was leased, in ms since 1970. A server that has no other record of
            the lease, after a crash or because another server granted it, computes its end from
            this.
    """

    pid: int
    generation: int
    former: int = -1
    granted_ms: int = -1


class NamesError(Exception):
    """Bindings cannot be read or changed now; a change may have been made or not. Try again."""


class BindingConflictError(Exception):
    """A binding has changed since it was read. Read it again."""


class NameBindings(Protocol):
    """The bindings of all names. All methods block and run in threads."""

    def get(self, name: str) -> Binding | None:
        """Return what a name is bound to.

        Raises:
            NamesError: the binding cannot be read.
        """

    def all(self) -> dict[str, Binding]:
        """Return what all names are bound to.

        Raises:
            NamesError: the bindings cannot be read.
        """

    def change(self, name: str, expected: Binding | None, new: Binding | None) -> None:
        """Change or remove a binding, durably before this returns.

        Parameters:
            expected: the current binding; None: the name is free.
            new: the new binding; None: unbind the name.

        Raises:
            BindingConflictError: the binding is not the expected one; nothing was changed.
            NamesError: the binding may have been changed, or not.
        """


def check_name(name: str) -> None:
    """Check a producer's name.

    Raises:
        ValueError: the name is empty, too long, or cannot be encoded as UTF-8.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ValueError("a producer's name must be valid UTF-8") from None
    if not 1 <= size <= NAME_BYTES_MAX:
        raise ValueError(f"a producer's name has 1 to {NAME_BYTES_MAX} bytes, not {size}")
