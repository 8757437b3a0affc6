"""Reads the settings of named Kafka listeners: NAME://HOST:PORT,... and NAME:PROTOCOL,..."""

import re
from collections.abc import Iterable
from typing import Final

#: What a server binds, and each member's row holds, stays small.
LISTENERS_MAX: Final = 8
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_SHOWN: Final = 100


def listener_addresses(value: str) -> dict[str, str]:
    """Return the addresses of NAME://HOST:PORT,... by name; names are in capitals, as in Kafka.

    Raises:
        ValueError: the text is something else, or has a name twice, or too many.
    """
    return _by_name(value, "://", "NAME://HOST:PORT, for example INTERNAL://127.0.0.1:9092")


def listener_protocols(value: str) -> dict[str, str]:
    """Return the security protocols of NAME:PROTOCOL,... by name.

    Raises:
        ValueError: the text is something else, or has a name twice, or too many.
    """
    found = _by_name(value, ":", "NAME:PROTOCOL, for example EXTERNAL:SASL_SSL")
    for name, protocol in found.items():
        if protocol not in PROTOCOLS:
            raise ValueError(f"{protocol[:_SHOWN]!r} of {name} is none of {', '.join(PROTOCOLS)}")
    return found


def shown_listeners(listeners: Iterable[tuple[str, str]]) -> str:
    """Return names and addresses as NAME://HOST:PORT,...; an address alone has no name."""
    return ",".join(f"{name}://{address}" if name else address for name, address in listeners)


def _by_name(value: str, separator: str, form: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in value.split(",") if value else ():
        name, between, rest = each.strip().partition(separator)
        if not between or not rest or not _NAME.fullmatch(name):
            raise ValueError(f"{each[:_SHOWN]!r} is not {form}")
        if name.upper() in found:
            raise ValueError(f"{name.upper()} is there twice; give each listener a name of its own")
        found[name.upper()] = rest
        if len(found) > LISTENERS_MAX:
            raise ValueError(f"has more than {LISTENERS_MAX} listeners")
    return found
