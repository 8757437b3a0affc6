"""What the destination has is compared with the checkpoint before a copy resumes."""

import pytest

from pidlease.copier.copy_checkpoint import CopyCheckpoint
from pidlease.copier.errors import CopyError
from pidlease.copier.resume_position import ResumeCheck
from pidlease.copier.settings import CopySettings
from pidlease.core.lease import Lease
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.offset_requests import LATEST

PLACE = TopicPartition("t", 0)
#: The copy went on under another PID at offset 1000; the destination ended there, too.
CARRIED = CopyCheckpoint(1000, 9, 5, -1, 1000, 1000, "t", "c", "me")
#: Offsets 1000 to 1499 were copied under it.
LATER = CARRIED._replace(offset=1500, sequence=1499, at=1500)
#: A copy of a whole topic, under its first PID.
FIRST = LATER._replace(first=0)


class Reader:
    """A cluster with one partition."""

    def __init__(self, end: int) -> None:
        self._end = end

    async def offset(self, place: TopicPartition, time_ms: int, isolation: int = 0) -> int:
        return self._end if time_ms == LATEST else 0


async def resumed(
    checkpoint: CopyCheckpoint, sequence_number: int, end: int, *, rewind: bool
) -> CopyCheckpoint:
    """Return where a copy resumes.

    Parameters:
        sequence_number: the next one of the PID, as the destination says.
        end: of the destination's log.
    """
    settings = CopySettings(
        source="a:1", destination="b:1", leases="http://b:2", group="g", topics=["t"], rewind=rewind
    )
    check = ResumeCheck(settings, Reader(5000), PLACE, Reader(end), PLACE, "c")  # type: ignore[arg-type]
    lease = Lease(
        topic="t", partition=0, pid=9, generation=77, sequence_number=sequence_number,
        resume_at=sequence_number, expire_ms=-1, ends_at=float("inf"), name=None,
    )  # fmt: skip
    return await check.within_destination(checkpoint, lease)


@pytest.mark.parametrize("rewind", [False, True])
@pytest.mark.parametrize(
    ("checkpoint", "end", "said"),
    [
        (CARRIED, 400, "t-0 of the destination ends at 400, and went up to 1000"),
        (LATER, 400, "t-0 of the destination ends at 400, and went up to 1500"),
        # Others have written since.
        (LATER, 1600, "t-0 of the destination has no record of PID 9 any more"),
    ],
)
async def test_a_loss_that_may_reach_below_the_last_pid(
    checkpoint: CopyCheckpoint, end: int, said: str, rewind: bool
) -> None:
    """Offsets 400 to 999 were skipped, or not copied again by a rewind."""
    with pytest.raises(CopyError) as refused:
        await resumed(checkpoint, 0, end, rewind=rewind)
    assert said in str(refused.value)
    assert "below offset 1000 as well, so it is unknown where to begin again" in str(refused.value)


@pytest.mark.parametrize(
    ("checkpoint", "sequence_number", "end", "offset"),
    [(LATER, 1200, 1200, 1200), (FIRST, 1200, 1200, 1200), (FIRST, 0, 0, 0)],
    ids=["of a later PID", "of the first PID", "all"],
)
async def test_a_loss_that_is_known_is_copied_again(
    checkpoint: CopyCheckpoint, sequence_number: int, end: int, offset: int
) -> None:
    with pytest.raises(CopyError, match=f"and has lost it from {offset} on; say --rewind"):
        await resumed(checkpoint, sequence_number, end, rewind=False)
    assert await resumed(checkpoint, sequence_number, end, rewind=True) == checkpoint._replace(
        offset=offset, sequence=sequence_number - 1, at=end
    )


@pytest.mark.parametrize(
    ("checkpoint", "sequence_number", "end"),
    [(CARRIED, 0, 1000), (CARRIED, 1010, 1010), (LATER, 1500, 1500), (LATER, 1510, 1510)],
    ids=["nothing sent", "nothing acknowledged", "all acknowledged", "more sent"],
)
async def test_nothing_is_lost(checkpoint: CopyCheckpoint, sequence_number: int, end: int) -> None:
    assert await resumed(checkpoint, sequence_number, end, rewind=False) == checkpoint


async def test_records_of_others_that_are_lost_are_not_the_copys() -> None:
    """A copy that began with --append, and has copied nothing yet."""
    began = CARRIED._replace(offset=0, first=0)
    assert await resumed(began, 0, 400, rewind=False) == began._replace(at=400)
