"""What is wrong with a setting, and how much of it is told."""

from typing import Final

#: How much of a name or a value is told back.
_SHOWN: Final = 50


class SettingError(ValueError):
    """A setting that is not known, or whose value makes no sense; the message names it.

    Attributes:
        setting: its name.
    """

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(message)
        self.setting: Final = setting


def short(value: str) -> str:
    """A value as it is told: quoted, and only its beginning where it is long."""
    return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}..."


def short_name(name: str) -> str:
    """A name as it is told."""
    return name[:_SHOWN]
