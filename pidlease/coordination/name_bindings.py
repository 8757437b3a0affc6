"""Names of producers: which PID a name is bound to, and the last generation granted to it.

A named producer remembers nothing but its name. The binding is durable before a lease by name is
granted. It is changed by conditional writes only: of two servers that raise the generation at once,
one fails and reads it again.

Bindings are read and changed many at once, because each read and each write of a coordinator takes
about as long for a hundred names as for one. Each change has its own condition and its own outcome.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

#: The longest name, in bytes of UTF-8.
NAME_BYTES_MAX: Final = 256
#: Above every generation that a batch can have.
RELEASED: Final = 2**63
#: The most names that are read or changed at once. Their bindings fit into one request to
#: ZooKeeper, which has at most 1 MiB.
NAMES_AT_ONCE_MAX: Final = 100
#: The most other PIDs that a binding fences. A hundred such bindings fit into one request, too.
FENCED_MAX: Final = 250
#: `former` counts down from here for PIDs of released names. Versions of pidlease that do not know
#: them take a negative number for none.
_RELEASED_FROM: Final = -2
_OPTIONAL: Final = ("fenced", "continues")


class Binding(NamedTuple):
    """What a name is bound to.

    Attributes:
        generation: the last granted generation; `RELEASED`: no producer may write under the name.
        former: the PID before it, if its lease had not ended at the grant; -1: none. Below -1: its
            name was released before the grant, so its numbers do not continue (see `released`).
        granted_ms: when the PID was leased, in ms since 1970. A server that has no other record of
            the lease, after a crash or because another server granted it, computes its end from
            this.
        fenced: the name's PIDs before these, each with the time in ms since 1970 when its lease has
            ended for certain: they are fenced.
        continues: how many of these, from the first on, come one before the other before `former`:
            their numbers continue. A version of pidlease that does not know this keeps none.
    """

    pid: int
    generation: int
    former: int = -1
    granted_ms: int = -1
    fenced: tuple[tuple[int, int], ...] = ()
    continues: int = 0

    @staticmethod
    def of(fields: Mapping[str, Any]) -> "Binding":
        """Return the binding with these fields, as `fields` returns them.

        Raises:
            KeyError, TypeError, ValueError: they are no binding.
        """
        pid, generation, former, granted_ms = (int(fields[each]) for each in Binding._fields[:4])
        fenced = tuple((int(pid), int(until_ms)) for pid, until_ms in fields.get("fenced", ()))
        continues = int(fields.get("continues", 0))
        return Binding(pid, generation, former, granted_ms, fenced, continues)

    def fields(self) -> dict[str, Any]:
        """Return the binding as it is stored: by field, the last two only if they say something."""
        fields = self._asdict()
        return {name: value for name, value in fields.items() if value or name not in _OPTIONAL}

    @property
    def released(self) -> int:
        """The PID before it, if the name was released then; -1: it was not."""
        return _RELEASED_FROM - self.former if self.former <= _RELEASED_FROM else -1

    def pids(self) -> list[int]:
        """Return its PID and the one before it, if there is one."""
        return [pid for pid in (self.pid, self.former, self.released) if pid >= 0]

    @property
    def formers(self) -> list[int]:
        """The PIDs before it that its numbers continue, the last one first."""
        if self.former < 0:
            return []
        return [self.former, *(pid for pid, _ in self.fenced[: self.continues])]

    def all_pids(self) -> list[int]:
        """Return all PIDs that the binding names: those of `pids`, and all that it fences."""
        return [*self.pids(), *(pid for pid, _ in self.fenced)]

    def after_release_of(self, pid: int) -> "Binding":
        """Return this binding, as a grant after the release of a PID."""
        return self._replace(former=_RELEASED_FROM - pid)


class StoredBinding(NamedTuple):
    """A binding as it was read.

    Attributes:
        binding: the binding; None: the name is free.
        version: the number of the write that it is from; -1: none, or the coordinator has no
            versions.
    """

    binding: Binding | None
    version: int = -1


class BindingChange(NamedTuple):
    """A change of a binding, on condition that it is still as it was read.

    Attributes:
        expected: the binding as it was read.
        new: the new binding; None: unbind the name.
    """

    name: str
    expected: StoredBinding
    new: Binding | None


class NamesError(Exception):
    """Bindings cannot be read or changed now; a change may have been made or not. Try again."""


class BindingConflictError(Exception):
    """A binding has changed since it was read. Read it again."""


class NameBindings(Protocol):
    """The bindings of all names. All methods block and run in threads."""

    def all(self) -> dict[str, Binding]:
        """Return what all names are bound to.

        Raises:
            NamesError: the bindings cannot be read.
        """

    def get_many(self, names: Sequence[str]) -> Sequence[StoredBinding | NamesError]:
        """Return what names are bound to, in their order; an error where one cannot be read.

        Parameters:
            names: at most `NAMES_AT_ONCE_MAX`.

        Raises:
            NamesError: none of them can be read.
        """

    def change_many(
        self, changes: Sequence[BindingChange]
    ) -> Sequence[BindingConflictError | NamesError | None]:
        """Change or remove bindings, durably before this returns.

        Parameters:
            changes: at most `NAMES_AT_ONCE_MAX`.

        Returns:
            The outcome of each change, in their order. None: it was made. BindingConflictError:
            the binding is not the expected one, and was not changed; other changes are made all the
            same. NamesError: it may have been changed, or not.

        Raises:
            NamesError: each binding may have been changed, or not.
        """

    def get(self, name: str) -> Binding | None:
        """Return what a name is bound to.

        Raises:
            NamesError: the binding cannot be read.
        """
        return self._stored(name).binding

    def change(self, name: str, expected: Binding | None, new: Binding | None) -> None:
        """Change or remove a binding, durably before this returns.

        Parameters:
            expected: the current binding; None: the name is free.
            new: the new binding; None: unbind the name.

        Raises:
            BindingConflictError: the binding is not the expected one; nothing was changed.
            NamesError: the binding may have been changed, or not.
        """
        stored = self._stored(name)
        if stored.binding != expected:
            raise BindingConflictError(f"{name!r} is bound to {stored.binding}, not to {expected}")
        (error,) = self.change_many([BindingChange(name, stored, new)])
        if error is not None:
            raise error

    def _stored(self, name: str) -> StoredBinding:
        (found,) = self.get_many([name])
        if isinstance(found, NamesError):
            raise found
        return found


def decide_changes(
    changes: Sequence[BindingChange], bound: Callable[[str], Binding | None]
) -> tuple[list[BindingConflictError | NamesError | None], dict[str, Binding | None]]:
    """Decide which changes are made, by their conditions, one after the other.

    Parameters:
        bound: returns what a name is bound to; None: the name is free.

    Returns:
        The outcome of each change, if what is decided is then stored; and what to store: the new
        bindings by name, None for a name to unbind.
    """
    outcomes: list[BindingConflictError | NamesError | None] = []
    after: dict[str, Binding | None] = {}
    for name, (expected, _), new in changes:
        found = after[name] if name in after else bound(name)
        if found == expected:
            after[name] = new
            outcomes.append(None)
        else:
            text = f"{name!r} is bound to {found}, not to {expected}"
            outcomes.append(BindingConflictError(text))
    return outcomes, after


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
