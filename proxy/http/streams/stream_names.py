"""Maps the paths of streams to the names of topics, and back.

A topic's name has ASCII letters and digits, `.`, `_` and `-` only. A path's `/` becomes `__`, and
any other byte that a name cannot have becomes `_` and two hex digits. A `_` stays if nothing after
it could be read as such an escape; otherwise it becomes `_5F`.
"""

import re
from functools import lru_cache
from typing import Final

from pidlease.storage.topics.topic_store import illegal_name

#: What `_` begins: a slash, or any other byte.
_ESCAPE: Final = re.compile(r"__|_([0-9A-F]{2})")
_PLAIN: Final = re.compile(rb"[A-Za-z0-9.-]")
#: The text after a `_` that stays.
_HARMLESS: Final = re.compile(r"(?![0-9A-F]{2})(?!_).*", re.DOTALL)
#: No longer path has a topic.
_BYTES_MAX: Final = 249


class StreamNameError(ValueError):
    """The path can be no stream's, or the topic's name comes from no path."""


@lru_cache(maxsize=4096)
def topic_for(path: str) -> str:
    """Return the name of a stream's topic.

    Parameters:
        path: after the prefix, without the slash at its beginning, decoded.

    Raises:
        StreamNameError: no stream has the path.
    """
    content = path.encode()
    if len(content) > _BYTES_MAX:
        raise StreamNameError(f"a stream's path has {_BYTES_MAX} bytes at most")
    name = ""
    for byte in reversed(content):  # from the end, to see what follows a `_`
        one = bytes((byte,))
        if _PLAIN.match(one):
            name = one.decode() + name
        elif one == b"_" and _HARMLESS.fullmatch(name):
            name = "_" + name
        else:
            name = ("__" if one == b"/" else f"_{byte:02X}") + name
    if reason := illegal_name(name):
        raise StreamNameError(f"the stream's topic would be {name[:300]!r}: {reason}")
    return name


def path_for(topic: str) -> str:
    """Return the path of a topic's stream.

    Raises:
        StreamNameError: no path has this topic.
    """
    content = bytearray()
    at = 0
    for found in _ESCAPE.finditer(topic):
        content += topic[at : found.start()].encode()
        content += b"/" if found[1] is None else bytes.fromhex(found[1])
        at = found.end()
    content += topic[at:].encode()
    try:
        path = content.decode()
    except UnicodeDecodeError:
        path = ""
    if topic_for(path) != topic:
        raise StreamNameError(f"topic {topic} is the topic of no path")
    return path
