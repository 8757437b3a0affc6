"""Options as Spark hands them over: any names, all of them text."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

#: The name of the data source: `format("pidlease")`.
FORMAT: Final = "pidlease"
_KAFKA: Final = "kafka."
#: How alike two names are that may be meant for each other.
_ALIKE: Final = 0.6
_TRUTH: Final = {"true": True, "false": False}


class OptionError(ValueError):
    """An option that makes no sense; the text names it, and says what would."""


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """See that there are no options but those that are known; of which case does not matter.

    Parameters:
        given: names of options.
        known: those that there are.

    Raises:
        OptionError: one is not known; the text has the nearest that is.
    """
    names = {name.lower(): name for name in known}
    for name in given:
        lower = name.lower()
        if lower in names:
            continue
        near = get_close_matches(lower, names, 1, _ALIKE)
        meant = f"; is {names[near[0]]} meant?" if near else ""
        if lower.startswith(_KAFKA):
            settings = sorted(each for each in names.values() if each.startswith(_KAFKA))
            there = ", ".join(settings) or "none"
            text = f"option {name} is not supported; of Kafka's settings these are: {there}"
            raise OptionError(text + meant)
        there = meant or f"; there are {', '.join(sorted(names.values()))}"
        raise OptionError(f"there is no option {name}{there}")


def truth(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """An option that is true or false.

    Raises:
        OptionError: it is neither.
    """
    text = options.get(name)
    if text is None:
        return default
    if text.strip().lower() not in _TRUTH:
        raise OptionError(f"{name} is true or false, not {text!r}")
    return _TRUTH[text.strip().lower()]


def number(
    options: Mapping[str, str], name: str, *, least: int = 1, most: int = 2**63 - 1
) -> int | None:
    """An option that is a whole number; None: it is not given.

    Raises:
        OptionError: it is none, less than the least, or more than the most.
    """
    text = options.get(name)
    if text is None:
        return None
    try:
        found = int(text)
    except ValueError:
        raise OptionError(f"{name} is a whole number, not {text!r}") from None
    if found < least:
        raise OptionError(f"{name} is {least} or more, not {found}")
    if found > most:
        raise OptionError(f"{name} is {most} or less, not {found}")
    return found
