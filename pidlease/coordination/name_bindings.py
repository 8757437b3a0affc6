"""Names of producers: which PID a name is bound to, and the last generation granted to it.

A named producer remembers nothing but its name. Its binding is durable before a lease by name is
answered, and changed by conditional writes only: of two that raise its generation at once, one
looks again.
"""

from typing import Final, NamedTuple, Protocol

#: The longest name, in bytes of UTF-8.
NAME_BYTES_MAX: Final = 256
#: Above every generation that a batch can have.
RELEASED: Final = 2**63


class Binding(NamedTuple):
    """What a name is bound to.

    Attributes:
        pid: the PID.
        generation: the last one that was granted; `RELEASED`: nobody may write under it any more.
        former: the PID before it, whose lease had not ended then; -1: none.
        granted_ms: when the PID was leased, in ms since 1970: where nothing else is known of its
            lease, because a crash came before the next snapshot, or another server granted it, this
            says how long it lasts.
    """

    pid: int
    generation: int
    former: int = -1
    granted_ms: int = -1


class NamesError(Exception):
    """Bindings cannot be read or changed now, and whether they were is not known; try again."""


class BindingConflictError(Exception):
    """A binding is not what it was taken for: somebody else has changed it. Look again."""


class NameBindings(Protocol):
    """The bindings of all names. All methods block, and are called in threads."""

    def get(self, name: str) -> Binding | None:
        """What a name is bound to.

        Raises:
            NamesError: it cannot be known.
        """

    def all(self) -> dict[str, Binding]:
        """What all names are bound to.

        Raises:
            NamesError: it cannot be known.
        """

    def change(self, name: str, expected: Binding | None, new: Binding | None) -> None:
        """Bind a name, raise its generation, or let go of it; durably before this returns.

        Parameters:
            name: the name.
            expected: what it is bound to now; None: it is free.
            new: what it is to be bound to; None: it is to be free.

        Raises:
            BindingConflictError: it is bound to something else; nothing was changed.
            NamesError: it may have been changed, or not.
        """


def check_name(name: str) -> None:
    """Check a producer's name.

    Raises:
        ValueError: it is empty, too long, or no text.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ValueError("a producer's name is text that UTF-8 can hold") from None
    if not 1 <= size <= NAME_BYTES_MAX:
        raise ValueError(f"a producer's name has 1 to {NAME_BYTES_MAX} bytes, not {size}")
