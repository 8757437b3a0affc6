"""docs/reference/command-line.md: every command and option, from the program itself."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import typer

from deploy.reference.markdown_tables import NOTE, cell, code, table
from proxy.__main__ import cli

_INTRODUCTION: Final = """\
`pidlease COMMAND --help`, or `-h`, lists the options of a command. `python -m pidlease` is the same program.
`pidlease --install-completion` lets the shell complete commands and options.

Results go to stdout; errors, progress and logs go to stderr. An error is one line that says what is wrong and what to
do. Exit codes mean the same everywhere:

| exit code | meaning |
| --- | --- |
| 0 | the command succeeded |
| 1 | the command found something wrong, or a server refused the request |
| 2 | the command could not run: a wrong option, or a server that cannot be reached or started |
| 3 | another producer, copier or run has taken over; `serve`: a stop did not end within `stop-seconds` |
"""
#: Options that are many have a page of their own.
_SERVE_OPTIONS: Final = """\
Every [setting](settings.md) is an option: `--data-dir DIR`, `--kafka-listen HOST:PORT`, and so on. In addition:
"""
_EXIT_CODES: Final = re.compile(r"\s*Exit codes?:? (?=\d)")
_KINDS: Final = {str: "TEXT", int: "INTEGER", float: "NUMBER", Path: "PATH"}

_Command = Any  # typer's classes have no public names


def command_line_page() -> str:
    """Return the page."""
    parts = [f"# Command line\n\n{NOTE}\n\n{_INTRODUCTION}"]
    parts += [_section(path, command) for path, command in _commands("pidlease", _root())]
    return "\n".join(parts)


def _root() -> _Command:
    root = typer.main.get_command(cli)
    root.name = "pidlease"
    return root


def _commands(path: str, command: _Command) -> Iterator[tuple[str, _Command]]:
    for name, each in sorted(command.commands.items()):
        if not each.hidden:
            yield f"{path} {name}", each
            if hasattr(each, "commands"):
                yield from _commands(f"{path} {name}", each)


def _section(path: str, command: _Command) -> str:
    level = "#" * path.count(" ") + "#"
    first, *paragraphs = (command.help or "").split("\n\n")
    text, *codes = _EXIT_CODES.split(first)
    parts = [f"{level} {path}\n", f"{_text(text)}\n"]
    if hasattr(command, "commands"):
        names = (f"[{name}](#{_anchor(f'{path} {name}')})" for name, each in sorted(command.commands.items())
                 if not each.hidden)  # fmt: skip
        parts.append(f"Its commands: {', '.join(names)}.\n")
        if not command.invoke_without_command:
            return "\n".join(parts)
    own = [each for each in command.params if not getattr(each, "hidden", False)]
    arguments = [each for each in own if not each.opts[0].startswith("-")]
    parts.append(f"```text\n{_usage(path, arguments, own)}\n```\n")
    parts += [f"{_SERVE_OPTIONS}"] if path == "pidlease serve" else []
    if path == "pidlease serve":
        own = [each for each in own if each.name == "config"]
    rows = [
        (code(_name(each)), _values(each), _default(each), _text(each.help or ""))
        for each in own if each.name != "help"
    ]  # fmt: skip
    parts.append(table(("option", "values", "default", "meaning"), rows))
    for listed in codes:
        found = re.findall(r"(\d): (.+?)(?:; (?=\d:)|\.?$)", listed)
        parts.append(table(("exit code", "meaning"), ((n, _text(what)) for n, what in found)))
    parts += [f"{_text(each)}\n" for each in paragraphs]
    return "\n".join(part for part in parts if part)


def _text(text: str) -> str:
    return cell(text.replace("\\[", "["))


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def _usage(path: str, arguments: list[Any], all_of_them: list[Any]) -> str:
    needed = [f"{each.opts[0]} {_metavar(each)}" for each in all_of_them
              if each.required and each not in arguments]  # fmt: skip
    words = [shown if each.required or shown.startswith("[") else f"[{shown}]"
             for each in arguments for shown in (_metavar(each),)]  # fmt: skip
    options = "[OPTIONS]" if len(all_of_them) > len(arguments) + len(needed) else ""
    return " ".join(filter(None, [path, *needed, options, *words]))


def _name(parameter: Any) -> str:  # noqa: ANN401 - typer's
    if not parameter.opts[0].startswith("-"):
        return _metavar(parameter)
    return ", ".join([*parameter.opts, *parameter.secondary_opts])


def _metavar(parameter: Any) -> str:  # noqa: ANN401 - typer's
    if parameter.metavar:
        return str(parameter.metavar)
    if not parameter.opts[0].startswith("-"):
        return str(parameter.name).upper()
    return _KINDS.get(_kind(parameter), "TEXT")


def _kind(parameter: Any) -> Any:  # noqa: ANN401 - typer's
    """Return the type of one value."""
    found = parameter.type_descriptor.annotation
    if get_origin(found) is list:
        (found,) = get_args(found)
    return found


def _values(parameter: Any) -> str:  # noqa: ANN401 - typer's
    kind = _kind(parameter)
    if not parameter.opts[0].startswith("-"):
        return "required" if parameter.required else "optional"
    if get_origin(kind) is Literal:
        shown = ", ".join(code(each) for each in get_args(kind))
    elif getattr(parameter, "is_flag", False):
        shown = "switch"
    else:
        shown = code(parameter.metavar or _KINDS.get(kind, "TEXT"))
        shown += "" if parameter.min is None else f", from {parameter.min:,}"
        shown += "" if parameter.max is None else f", up to {parameter.max:,}"
    return shown + (", may be repeated" if parameter.multiple else "")


def _default(parameter: Any) -> str:  # noqa: ANN401 - typer's
    if not parameter.opts[0].startswith("-"):
        return ""
    variable = f"`{parameter.envvar}`" if parameter.envvar else ""
    plain = parameter.default
    shown = "" if plain in (None, False, "", 0) or callable(plain) else code(str(plain))
    return ", or ".join(filter(None, [variable, "required" if parameter.required else shown]))
