"""Validation of options as Spark passes them: any names, all values text."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from pidlease.spark.errors import OptionError

#: The name of the data source: `format("pidlease")`.
FORMAT: Final = "pidlease"
_KAFKA: Final = "kafka."
#: Similarity from which a known name is suggested for an unknown one.
_ALIKE: Final = 0.6
_TRUTH: Final = {"true": True, "false": False}


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Check that all options are known; case does not matter.

    Raises:
        OptionError: one is unknown; the text has the most similar known name.
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
    """Return an option that is true or false.

    Raises:
        OptionError: the option is neither.
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
    """Return an option that is a whole number; None if it is not given.

    Raises:
        OptionError: the option is not a whole number, or out of range.
    """
    text = options.get(name)
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        raise OptionError(f"{name} is a whole number, not {text!r}") from None
    if value < least:
        raise OptionError(f"{name} is {least} or more, not {value}")
    if value > most:
        raise OptionError(f"{name} is {most} or less, not {value}")
    return value
