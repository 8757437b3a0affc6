"""What was seen to work: one small JSON file for each fact, in build/compatibility."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[2] / "build" / "compatibility"


@dataclass(frozen=True, order=True)
class Produced:
    """Records of a client's idempotent producers were stored exactly once, through kills.

    Attributes:
        client: its name.
        version: as its program gave it.
        codecs: those of the batches in the log.
    """

    client: str
    version: str
    codecs: tuple[str, ...]


@dataclass(frozen=True, order=True)
class Consumed:
    """A client's group consumer read all of another client's records, and committed.

    Attributes:
        client: its name.
        version: as its program gave it.
        of: the client that had written.
    """

    client: str
    version: str
    of: str


@dataclass(frozen=True, order=True)
class Used:
    """One of Kafka's own tools did what was asked of it.

    Attributes:
        tool: the script's name.
        operation: its first argument, or some words.
    """

    tool: str
    operation: str


Fact = Produced | Consumed | Used
_KINDS: Final[dict[str, type[Fact]]] = {each.__name__: each for each in (Produced, Consumed, Used)}


def record(fact: Fact) -> None:
    """Write a fact down; the same one of an earlier run is overwritten."""
    kind, fields = type(fact).__name__, dataclasses.asdict(fact)
    FOLDER.mkdir(parents=True, exist_ok=True)
    # Two workers may know different things of one client, never the same.
    subject = "-".join(str(fields[name]) for name in fields if name not in ("version", "codecs"))
    path = FOLDER / re.sub(r"[^\w.-]+", "-", f"{kind}-{subject}.json")
    aside = path.with_suffix(f".{os.getpid()}")
    aside.write_text(json.dumps({"kind": kind, **fields}, indent=2) + "\n")
    aside.replace(path)


def recorded() -> Iterator[Fact]:
    """All that was written down."""
    for path in sorted(FOLDER.glob("*.json")):
        fields = json.loads(path.read_text())
        kind = _KINDS[fields.pop("kind")]
        if "codecs" in fields:
            fields["codecs"] = tuple(fields["codecs"])
        yield kind(**fields)
