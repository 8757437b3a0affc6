"""The answer to a Fetch, by hand: it is the other half of all there is to do.

Source: FetchResponse.json of Kafka 4.1, versions 4 to 11. The tests hold every version against kio.
"""

import asyncio
import struct
from typing import Final

from pidlease.kafka.codec.primitives import INT32, write_array, write_string
from pidlease.kafka.codec.time_slices import TimeSlices
from proxy.kafka.fetch_poll import Poll, Wanted

#: Partition, code, high watermark, last stable offset; the first offset (from version 5 on); no
#: aborted transactions; no preferred replica (from version 11 on); the size of the records.
_ROW_V4: Final = struct.Struct(">ihqqii")
_ROW_V5: Final = struct.Struct(">ihqqqii")
_ROW_V11: Final = struct.Struct(">ihqqqiii")
_NONE: Final = -1


async def write_fetch(correlation_id: int, version: int, poll: Poll) -> list[bytes]:
    """The answer, from the response header on, in parts: records are not copied.

    Parameters:
        correlation_id: of the request.
        version: of the request.
        poll: what was found.
    """
    turns = TimeSlices()
    parts: list[bytes] = []
    heads = [INT32.pack(correlation_id), b"\0\0\0\0"]  # throttle time
    if version >= 7:
        heads.append(b"\0\0\0\0\0\0")  # no error, no session
    heads.append(write_array(len(poll.topics), flexible=False))
    for name, rows in poll.topics.items():
        heads.append(write_string(name, flexible=False))
        heads.append(write_array(len(rows), flexible=False))
        for row in rows:
            heads.append(_row(version, row))
            if row.data:
                parts += (b"".join(heads), row.data)
                heads.clear()
            if turns.due():
                await asyncio.sleep(0)
    parts.append(b"".join(heads))
    return parts


def _row(version: int, row: Wanted) -> bytes:
    """What stands in front of a partition's records."""
    partition = row.partition
    end = partition.known_end if partition is not None else -1
    size = len(row.data)
    if version < 5:
        return _ROW_V4.pack(row.index, row.code, end, end, _NONE, size)
    start = partition.log.start_offset if partition is not None else -1
    if version < 11:
        return _ROW_V5.pack(row.index, row.code, end, end, start, _NONE, size)
    return _ROW_V11.pack(row.index, row.code, end, end, start, _NONE, _NONE, size)
