"""Updates of producers' states as bytes: a snapshot's rows in Arrow.

The updates of many partitions are one Arrow stream; what is not a row is in its schema's metadata.
Its CRC-32C comes first.
"""

import json
from typing import Final

import pyarrow as pa
from crc32c import crc32c

from pidlease.core.producer_names import ProducerNames
from pidlease.core.topic_partition import TopicPartition
from pidlease.storage.snapshot_rows import PartitionOffset, SnapshotError
from pidlease.storage.snapshot_tables import PRODUCERS_SCHEMA, producer_batches, read_producers
from pidlease.storage.snapshots import FORMAT_VERSION
from pidlease.storage.state_updates import StateUpdate, StateUpdates

_METADATA: Final = b"pidlease"
_CRC_BYTES: Final = 4


def encode_updates(updates: StateUpdates, names: ProducerNames) -> bytes:
    """Encode updates. Blocks for long ones.

    Parameters:
        names: the producer ids of policy epoch.
    """
    offsets: dict[TopicPartition, PartitionOffset] = {}
    batches = list(producer_batches((each.rows for each in updates.updates), offsets, names))
    head = {
        "format": FORMAT_VERSION,
        "more": updates.more,
        "partitions": [
            [*each.rows.partition, each.rows.entry, each.begins, each.ends, each.owned]
            for each in updates.updates
        ],
    }
    schema = PRODUCERS_SCHEMA.with_metadata({_METADATA: json.dumps(head).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return crc32c(content).to_bytes(_CRC_BYTES) + content


def decode_updates(content: bytes, names: ProducerNames) -> StateUpdates:
    """Decode updates. Blocks for long ones.

    Parameters:
        names: gets the producer ids of policy epoch.

    Raises:
        SnapshotError: they are damaged, or of a newer format.
    """
    if crc32c(content[_CRC_BYTES:]) != int.from_bytes(content[:_CRC_BYTES]):
        raise SnapshotError("states that are damaged, or not complete: their checksum differs")
    try:
        stream = pa.ipc.open_stream(memoryview(content)[_CRC_BYTES:])
        head = json.loads((stream.schema.metadata or {})[_METADATA])
        if head["format"] > FORMAT_VERSION:
            raise SnapshotError(
                f"states of format {head['format']} come from a server of a newer version; this one"
                f" reads up to {FORMAT_VERSION}"
            )
        if not stream.schema.equals(PRODUCERS_SCHEMA):
            raise SnapshotError("states with other columns than this server's")
        table = stream.read_all()
        entries = [(TopicPartition(topic, number), *rest)
                   for topic, number, *rest in head["partitions"]]  # fmt: skip
        states = read_producers([table], [name for name, *_ in entries], names)
        updates = [
            StateUpdate(PartitionOffset(*entry).rows(name, states[name]), begins, ends, owned)
            for name, entry, begins, ends, owned in entries
        ]
        return StateUpdates(updates, bool(head["more"]))
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        raise SnapshotError(f"states that cannot be read: {error!r}") from error
