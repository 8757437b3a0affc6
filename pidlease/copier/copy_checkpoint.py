"""The checkpoint of a partition's copy, in the metadata of its offset commit.

    {"pidlease": 1, "pid": ..., "generation": ..., "sequence": ..., "first": ..., "at": ...,
     "topic": ..., "cluster": ..., "who": ..., "source": ..., "starting": true, "crc": ...}

The group's offset and the checkpoint are one durable write, and only the partition's owner makes
it: Kafka refuses commits of members that were replaced.
"""

import json
from typing import Annotated, Any, Final, NamedTuple

from crc32c import crc32c
from pydantic import Field, TypeAdapter, ValidationError

from pidlease.copier.errors import CheckpointError

_VERSION: Final = 1
#: Kafka refuses longer metadata (offset.metadata.max.bytes), unless it is set otherwise.
METADATA_BYTES_MAX: Final = 4096


_Number = Annotated[int, Field(ge=0, strict=True)]


class CopyCheckpoint(NamedTuple):
    """The progress of a partition's copy.

    Attributes:
        offset: of the source's next record.
        pid: the PID of this partition's batches.
        generation: that of the last accepted append; before the first, that of the lease.
        sequence: the last source offset that is at the destination under this PID; -1: none.
        first: the source offset that this PID began with.
        at: records of this PID above `sequence` are at this offset of the destination or after.
        topic: the destination's topic.
        cluster: the destination's cluster id.
        who: the id of the copier, for messages of other copiers.
        source: the id of the source's topic; empty: unknown, or an earlier version wrote this.
        starting: whether the group's copy has not begun: partitions without a checkpoint are not
            new. Left out in the metadata if it is false.
    """

    offset: _Number
    pid: _Number
    generation: _Number
    sequence: Annotated[int, Field(ge=-1, strict=True)]
    first: _Number
    at: _Number
    topic: str
    cluster: str
    who: str
    source: str = ""
    starting: Annotated[bool, Field(strict=True)] = False

    def metadata(self) -> str:
        """Encode all but the offset.

        Raises:
            CheckpointError: it is too long for Kafka.
        """
        fields = {"pidlease": _VERSION, **self._asdict()}
        del fields["offset"]
        if not self.starting:  # earlier versions do not know it
            del fields["starting"]
        text = json.dumps({**fields, "crc": _crc(self.offset, fields)}, separators=(",", ":"))
        if len(text) > METADATA_BYTES_MAX:
            raise CheckpointError(f"a checkpoint of {len(text)} bytes; Kafka takes no longer ones"
                                  f" than {METADATA_BYTES_MAX}: choose a shorter name")  # fmt: skip
        return text


_SHAPE: Final = TypeAdapter(CopyCheckpoint)


def read_checkpoint(offset: int, metadata: str) -> CopyCheckpoint:
    """Decode a checkpoint.

    Parameters:
        offset: of the commit.
        metadata: of the commit.

    Raises:
        CheckpointError: no copier wrote it, or it is damaged or invalid.
    """
    try:
        fields = json.loads(metadata)
        version = fields.pop("pidlease")
    except (ValueError, KeyError, AttributeError, TypeError):
        said = f"its metadata is {metadata[:80]!r}" if metadata else "it has no metadata"
        raise CheckpointError(f"offset {offset} was not committed by a copier: {said}") from None
    if version != _VERSION:
        raise CheckpointError(f"a checkpoint of version {version}; only {_VERSION} is known here")
    crc = fields.pop("crc", None)
    if crc != _crc(offset, {"pidlease": version, **fields}):
        raise CheckpointError(f"the checkpoint at offset {offset} is damaged: {metadata[:200]!r}")
    try:
        return _SHAPE.validate_python({"offset": offset, **fields})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        text = f"the checkpoint at offset {offset} is invalid: {where}: {first['msg']}"
        raise CheckpointError(text) from None


def _crc(offset: int, fields: dict[str, Any]) -> int:
    said = json.dumps([offset, fields], separators=(",", ":"), sort_keys=True)
    return int(crc32c(said.encode()))
