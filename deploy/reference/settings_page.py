"""docs/reference/settings.md: every setting of the server, from its model and its options."""

from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import annotated_types
import typer
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from deploy.reference.markdown_tables import NOTE, cell, code, sentence, table
from proxy.__main__ import cli
from proxy.configuration.settings import Settings

_INTRODUCTION: Final = """\
The settings of `pidlease serve`. Each can be given in three ways; the first of these that has it counts:

1. an option, `--snapshot-seconds 30`; a switch has two, `--insecure` and `--no-insecure`
2. an environment variable, `PIDLEASE_SNAPSHOT_SECONDS=30`; a switch is `true` or `false`
3. a line of the TOML file that `--config` names, `snapshot-seconds = 30`

[Install](../operate/install.md#settings) says which settings may change while the server runs. The settings of topics
are in [Topic policies](../operate/topic-policies.md).
"""
_UNITS: Final = {"BYTES": "bytes", "SECONDS": "s", "MS": "ms", "HOST:PORT": "HOST:PORT",
                 "NAME://HOST:PORT,...": "NAME://HOST:PORT,...",
                 "NAME:PROTOCOL,...": "NAME:PROTOCOL,..."}  # fmt: skip
_TYPES: Final = {"INTEGER": "integer", "NUMBER": "number", "PATH": "path", "TEXT": "text"}


def settings_page() -> str:
    """Return the page."""
    serve = typer.main.get_command(cli).commands["serve"]  # type: ignore[attr-defined] # a group
    options = {each.name: each for each in serve.params}
    groups: dict[str, list[tuple[str, ...]]] = {}
    for name, field in Settings.model_fields.items():
        option = options[name]
        groups.setdefault(option.rich_help_panel, []).append(
            (
                code(name.replace("_", "-")),
                _values(option.metavar, field),
                code(_default(name, field)) or "none",
                cell(sentence(field.description or "")),
            )
        )
    headings = ("setting", "values", "default", "meaning")
    parts = [f"# Settings\n\n{NOTE}\n\n{_INTRODUCTION}"]
    for title, rows in groups.items():
        parts.append(f"## {title}\n\n{table(headings, rows)}")
    return "\n".join(parts)


def _values(metavar: str | None, field: FieldInfo) -> str:
    if field.annotation is bool:
        return "`true`, `false`"
    if get_origin(field.annotation) is Literal:
        return ", ".join(code(each) for each in get_args(field.annotation))
    kind = _UNITS.get(metavar or "") or _TYPES[metavar or ""]
    return f"{kind}{_range(field)}"


def _range(field: FieldInfo) -> str:
    """Return the bounds of a number: `, 1 to 256`, `, above 0`."""
    low = high = ""
    for each in _constraints(field):
        if isinstance(each, annotated_types.Gt):
            low = f"above {each.gt:,}"
        elif isinstance(each, annotated_types.Ge):
            low = f"from {each.ge:,}"
        elif isinstance(each, annotated_types.Lt):
            high = f"below {each.lt:,}"
        elif isinstance(each, annotated_types.Le):
            high = f"up to {each.le:,}"
    return "".join(f", {each}" for each in (low, high) if each)


def _constraints(field: FieldInfo) -> list[Any]:
    """Return the constraints of the field and of its type; pydantic may group them."""
    found: list[Any] = []
    for each in field.metadata:
        found += each if isinstance(each, annotated_types.GroupedMetadata) else [each]
    return found


def _default(name: str, field: FieldInfo) -> str:
    if name == "data_dir":  # the home folder of whoever makes this page is not meant
        return "~/.local/share/pidlease"
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if value < 1e6 else str(int(value))
    shown = value.get_secret_value() if isinstance(value, SecretStr) else value
    return (
        ""
        if shown in (None, "")
        else Path(shown).as_posix()
        if isinstance(shown, Path)
        else str(shown)
    )
