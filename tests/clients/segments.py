"""Kafka's own reader over the segments that clients' batches have become."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.servers.kafka import dump_log_segments

_KINDS = (".log", ".index", ".timeindex")


def files_of(data_dir: Path, topic: str) -> list[Path]:
    """All segments of a topic with their indexes."""
    folders = (data_dir / "logs").glob(f"{topic}-*")
    return [
        path for folder in sorted(folders) for path in sorted(folder.iterdir())
        if path.suffix in _KINDS
    ]  # fmt: skip


def check(files: Sequence[Path], records: int) -> set[str]:
    """Let Kafka read them, down to the records: nothing is wrong, and so many are there.

    Parameters:
        files: of a server that has stopped; of each segment the log and both indexes.
        records: how many there are to be.

    Returns:
        The codecs of the batches.

    Raises:
        AssertionError: it found something wrong, or understood less than there is.
    """
    assert {path.suffix for path in files} == set(_KINDS)
    dump = dump_log_segments(files)
    assert dump.problems == []
    assert dump.files.keys() == {path.resolve() for path in files}
    assert len(dump.records) == records
    assert any(file.index for file in dump.files.values())
    assert any(file.time_index for file in dump.files.values())
    for batch in dump.batches:
        assert batch.valid
        assert batch.count == len(batch.records) == batch.last_offset - batch.base_offset + 1
    return {batch.codec for batch in dump.batches}
