"""The contents of the PID sequence's nodes in ZooKeeper."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pidlease.core.blocks import PidBlock


@dataclass(frozen=True, slots=True)
class Entry:
    """A recorded block.

    Attributes:
        token: of the attempt to take the block: a server that missed the response finds it by this.
    """

    block: PidBlock
    token: str


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """Encode a node with blocks."""
    rows = [
        [each.block.first, each.block.count, each.block.taken_ms, each.block.owner, each.token]
        for each in entries
    ]
    return json.dumps({"blocks": rows}, separators=(",", ":")).encode()


def decode_entries(path: str, data: bytes) -> list[Entry]:
    """Decode a node with blocks.

    Raises:
        ValueError: the node holds something else.
    """
    try:
        rows = json.loads(data)["blocks"]
        return [
            Entry(PidBlock(int(first), int(count), int(taken_ms), str(owner)), str(token))
            for first, count, taken_ms, owner, token in rows
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"ZooKeeper's {path} is no list of PID blocks ({error})") from error


def encode_merged(block: PidBlock | None) -> bytes:
    """Encode the node with the merged old blocks."""
    fields = {"end": block.end if block else 1, "taken_ms": block.taken_ms if block else -1}
    return json.dumps(fields).encode()


def decode_merged(path: str, data: bytes) -> PidBlock | None:
    """Decode the node with the merged old blocks; None: there are none yet.

    Raises:
        ValueError: the node holds something else.
    """
    try:
        fields = json.loads(data)
        end, taken_ms = int(fields["end"]), int(fields["taken_ms"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"ZooKeeper's {path} is no merged PID blocks ({error})") from error
    return PidBlock(1, end - 1, taken_ms) if end > 1 else None
