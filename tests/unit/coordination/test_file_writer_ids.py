"""The writers' ids in a file: an id that counts as stored is there after a power cut."""

import errno
from pathlib import Path

import pytest

from pidlease.coordination.file.file_writer_ids import FileWriterIds
from pidlease.coordination.writer_ids import WriterIdsError, WriterOf
from tests.sim.files import SimFiles

PATH = Path("/data/sequence/writers")
FIRST, SECOND = WriterOf("t", 0, 5), WriterOf("t", 1, 6)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("restarts", [False, True])
def test_an_id_that_is_found_after_a_failure_is_durable(seed: int, restarts: bool) -> None:
    """The rename was done, and only the fsync of the folder failed."""
    files = SimFiles(seed)
    ids = FileWriterIds(files, PATH)
    ids.add(1, FIRST)
    files.fail_next("fsync_folder", str(PATH.parent))
    with pytest.raises(WriterIdsError, match=str(errno.EIO)):
        ids.add(2, SECOND)
    if restarts:
        files = files.process_death()
        ids = FileWriterIds(files, PATH)
        assert ids.all() == {1: FIRST, 2: SECOND}
    else:
        ids.add(2, SECOND)
    assert FileWriterIds(files.power_loss(seed), PATH).all() == {1: FIRST, 2: SECOND}
