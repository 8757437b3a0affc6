"""PID blocks: how old the block of a PID is, and what merging old ones keeps."""

import pytest

from pidlease.core.blocks import BlockAges, PidBlock
from pidlease.core.judge import Age
from pidlease.core.pid import BLOCK_SIZE, Policy, make_pid

LEASE_MS = 1000


def block_start(index: int) -> int:
    """1, 101, 201, ..."""
    return index * BLOCK_SIZE + 1


def pid(n: int, policy: Policy = Policy.STRICT) -> int:
    return make_pid(policy, n)


def block(index: int, taken_ms: int, count: int = BLOCK_SIZE) -> PidBlock:
    return PidBlock(block_start(index), count, taken_ms, owner="a")


def age_at(ages: BlockAges, pid: int, now_ms: int, lease_ms: int = LEASE_MS) -> Age:
    """The age as an engine asks for it: young is what was taken within the last lease length."""
    return ages.age(pid, now_ms - lease_ms)


def ages_of(ages: BlockAges, numbers: range, now_ms: int) -> list[Age]:
    return [age_at(ages, pid(n), now_ms) for n in numbers]


def test_a_block_ends_where_the_next_begins() -> None:
    assert block(0, 0).end == block(1, 0).first == 101


def test_the_record_can_be_read_back() -> None:
    blocks = [block(0, 0), block(1, 7), block(3, 9)]
    ages = BlockAges(reversed(blocks))
    assert ages.blocks() == blocks
    ages.blocks().clear()
    assert ages.blocks() == blocks, "a copy: the record is changed by add and merge_older alone"


def test_nothing_on_record_was_ever_issued() -> None:
    ages = BlockAges()
    assert len(ages) == 0
    assert ages.end == 1
    assert age_at(ages, pid(1), 0) is Age.NEVER


@pytest.mark.parametrize("policy", Policy)
def test_young_until_the_lease_length_has_passed(policy: Policy) -> None:
    """The lease ends at taken + lease, so from that moment on its state may be gone."""
    ages = BlockAges([block(0, taken_ms=5000)])
    for n in (1, 50, 100):
        assert age_at(ages, pid(n, policy), 5000) is Age.YOUNG
        assert age_at(ages, pid(n, policy), 5999) is Age.YOUNG
        assert age_at(ages, pid(n, policy), 6000) is Age.OLD
        assert age_at(ages, pid(n, policy), 2**62) is Age.OLD


def test_a_partitions_incomplete_history_makes_blocks_old_as_well() -> None:
    """Where a log was cut, "never wrote here" can be said only of what was taken later."""
    ages = BlockAges([block(0, taken_ms=5000), block(1, taken_ms=5001)])
    assert [ages.age(pid(n), young_after_ms=5000) for n in (1, 101)] == [Age.OLD, Age.YOUNG]


def test_a_clock_that_went_back_leaves_a_block_young() -> None:
    assert age_at(BlockAges([block(0, taken_ms=5000)]), pid(1), 10) is Age.YOUNG


def test_edges_of_neighbouring_blocks() -> None:
    ages = BlockAges([block(0, taken_ms=0), block(1, taken_ms=9000)])
    assert ages_of(ages, range(100, 103), 9500) == [Age.OLD, Age.YOUNG, Age.YOUNG]
    assert ages_of(ages, range(200, 202), 9500) == [Age.YOUNG, Age.NEVER]


def test_a_skipped_block_was_never_issued() -> None:
    ages = BlockAges([block(0, taken_ms=0), block(2, taken_ms=0)])
    assert ages_of(ages, range(100, 102), 0) == [Age.YOUNG, Age.NEVER]
    assert ages_of(ages, range(200, 202), 0) == [Age.NEVER, Age.YOUNG]


def test_blocks_may_be_given_in_any_order_but_added_only_behind() -> None:
    ages = BlockAges([block(2, 2), block(0, 0)])
    assert (len(ages), ages.end) == (2, 301)
    for index in (0, 1, 2):
        with pytest.raises(ValueError, match="does not follow 301"):
            ages.add(block(index, 5))
    ages.add(block(3, 5))
    assert (len(ages), ages.end) == (3, 401)


def test_overlapping_blocks_are_refused() -> None:
    """Two owners of one number would be two producers under one PID."""
    with pytest.raises(ValueError, match="does not follow"):
        BlockAges([PidBlock(1, 100, 0), PidBlock(100, 100, 0)])


def test_merging_keeps_every_age() -> None:
    blocks = [block(i, taken_ms=1000 * i) for i in range(10) if i != 4]
    ages, merged = BlockAges(blocks), BlockAges(blocks)
    now_ms = 8500
    merged.merge_older(now_ms - LEASE_MS + 1)
    numbers = range(1, 1100)
    assert ages_of(merged, numbers, now_ms) == ages_of(ages, numbers, now_ms)
    assert ages_of(merged, numbers, now_ms + 5000) == ages_of(ages, numbers, now_ms + 5000)
    assert len(merged) == 2 + 2, "0..3 and 5..7, the hole between them, 8 and 9"
    assert merged.end == ages.end


def test_merging_again_and_again_stays_bounded() -> None:
    ages = BlockAges()
    for index in range(500):
        ages.add(block(index, taken_ms=index))
        ages.merge_older(index - 3)
        assert len(ages) <= 6
    assert age_at(ages, pid(1), 499, lease_ms=4) is Age.OLD
    assert age_at(ages, pid(block_start(499)), 499, lease_ms=4) is Age.YOUNG


def test_a_merged_record_still_takes_new_blocks() -> None:
    ages = BlockAges([block(0, 0), block(1, 0)])
    ages.merge_older(10)
    ages.add(block(2, 20))
    assert ages_of(ages, range(199, 203), 20) == [Age.YOUNG] * 4
    assert len(ages) == 2


def test_a_merged_block_fills_what_is_between_others() -> None:
    ages = BlockAges([PidBlock(101, 100, 1), PidBlock(301, 100, 3)])
    ages.note(PidBlock(1, 450, 2, "merged"))
    assert ages.blocks() == [
        PidBlock(1, 100, 2, "merged"), PidBlock(101, 100, 1), PidBlock(201, 100, 2, "merged"),
        PidBlock(301, 100, 3), PidBlock(401, 50, 2, "merged"),
    ]  # fmt: skip
    ages.note(PidBlock(1, 450, 9))
    assert len(ages) == 5, "all of it is on record"
