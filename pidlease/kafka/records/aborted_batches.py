"""Recognizes the batches of aborted transactions among fetched ones, as Kafka's consumer does."""

from collections.abc import Sequence
from typing import Final

from pidlease.core.buffer import Buffer
from pidlease.kafka.records.record_batch import (
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    read_header,
    write_empty_batch,
)


class AbortedBatches:
    """The batches of aborted transactions, among batches that are shown in the log's order.

    As Kafka's consumer (CompletedFetch): a producer's batches are aborted from the first offset of
    its aborted transaction to its next marker.

    Parameters:
        aborted: of each transaction its producer id and its first offset, in any order; as a
            response to Fetch has them.
    """

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        self._later: Final = sorted(aborted, key=lambda each: each[1], reverse=True)
        self._producers: Final[set[int]] = set()

    def has(self, header: BatchHeader) -> bool:
        """Return whether the next batch is part of an aborted transaction; a marker is not."""
        while self._later and self._later[-1][1] <= header.last_offset:
            self._producers.add(self._later.pop()[0])
        if header.is_control:
            self._producers.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._producers


def without_aborted(data: bytes, aborted: Sequence[tuple[int, int]]) -> bytes:
    """Return batches without the records of aborted transactions.

    In the place of a batch of these is one without records, as Kafka's log cleaner leaves it: so no
    offset is missing.

    Parameters:
        data: batches of format 2; the last one may be cut off, and stays so.
        aborted: as for `AbortedBatches`.
    """
    if not aborted:
        return data
    known, view = AbortedBatches(aborted), memoryview(data)
    parts: list[Buffer] = []
    begin = at = 0
    while at + HEADER_BYTES <= len(data):
        header = read_header(data, at)
        after = at + header.size
        if after > len(data) or header.size < HEADER_BYTES or header.magic != MAGIC:
            break  # its reader says what is wrong with it
        if known.has(header):
            parts += (view[begin:at], write_empty_batch(header))
            begin = after
        at = after
    parts.append(view[begin:])
    return b"".join(parts)
