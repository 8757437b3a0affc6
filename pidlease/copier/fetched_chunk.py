"""What a fetch of a partition brings."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from pidlease.core.buffer import Buffer
from pidlease.kafka.records.record_batch import HEADER_BYTES, BatchHeader, read_header


class Chunk(NamedTuple):
    """See the module's text.

    Attributes:
        data: batches; the first may begin before what was asked for, the last may be cut off.
        aborted: transactions that were aborted: (producer id, first offset), in any order.
        end_offset: where reading goes up to now.
    """

    data: Buffer
    aborted: list[tuple[int, int]]
    end_offset: int

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The whole batches; nothing of them is checked."""
        view = memoryview(self.data)
        at = 0
        while len(view) - at >= HEADER_BYTES:
            header = read_header(view, at)
            if at + header.size > len(view):
                return
            if header.size < HEADER_BYTES:  # of an old format, or none: for who checks it
                yield header, view[at:]
                return
            yield header, view[at : at + header.size]
            at += header.size

    @property
    def behind(self) -> int:
        """The first offset behind its last whole batch; -1: it has none."""
        last = -1
        for header, _ in self.batches():
            last = header.last_offset
        return last + 1 if last >= 0 else -1


def chunk_of(part: tuple[Any, ...], *, committed: bool) -> Chunk:
    """What stands in aiokafka's Fetch answer of version 4 or newer.

    Parameters:
        part: the partition's part of it.
        committed: only what is committed was asked for: that ends at the last stable offset.
    """
    _, _, end, stable, *rest = part
    # More comes between the last stable offset and the records from version to version.
    aborted = next((each for each in rest if isinstance(each, list)), [])
    return Chunk(rest[-1] or b"", [(each[0], each[1]) for each in aborted],
                 stable if committed else end)  # fmt: skip
