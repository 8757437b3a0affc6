"""A group of commands that are imported when one runs, or for the help of the group."""

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any, ClassVar, Final

import typer
from typer.core import TyperGroup
from typing_extensions import override


class LazyCommands(TyperGroup):
    """Commands of which a process needs one: a server needs no copier, and no HTTP client."""

    #: Name -> ``module:attribute``, in the order of the help: a function, or a `typer.Typer`.
    #: Empty: the command is added in the usual way.
    modules: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **arguments: Any) -> None:  # noqa: ANN401 - those of the base class
        super().__init__(**arguments)
        self.commands = _Commands(self.modules, self.commands)

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)


class _Commands(MutableMapping[str, Any]):
    """Commands by name, each imported when it is looked up."""

    def __init__(self, modules: Mapping[str, str], added: Mapping[str, Any]) -> None:
        self._modules: Final = modules
        self._commands: Final = dict(added)

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - typer does not export the type
        if name not in self._commands and self._modules.get(name):
            self._commands[name] = _command(name, self._modules[name])
        return self._commands[name]

    def __setitem__(self, name: str, command: Any) -> None:  # noqa: ANN401 - as above
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._modules, **self._commands})

    def __len__(self) -> int:
        return len({**self._modules, **self._commands})


def _command(name: str, place: str) -> Any:  # noqa: ANN401 - typer does not export the type
    module, attribute = place.split(":")
    found = getattr(import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(add_completion=False)
        found.command(name)(function)
    command = typer.main.get_command(found)
    command.name = name
    return command
