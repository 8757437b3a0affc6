"""The states of a group, step by step, as Kafka's GroupMetadataManager has them."""

from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from proxy.kafka.groups.group import NEW_MEMBER_JOIN_MS, Group, State
from proxy.kafka.groups.group_members import NEVER
from proxy.kafka.groups.group_steps import MemberIdentity
from tests.unit.groups.driver import LIMITS, RANGE, REBALANCE_MS, SESSION_MS, Driver


def test_the_first_member_waits_for_others_and_leads() -> None:
    driver = Driver()
    first = driver.join_with_id("a")
    second = driver.join_with_id("b")
    driver.wait(LIMITS.initial_rebalance_ms - 1)
    assert "a" not in driver.answers
    driver.wait(LIMITS.initial_rebalance_ms + 1)
    assert driver.group.protocol_name == "range"
    a, b = driver.join_answer("a"), driver.join_answer("b")
    assert (a.error, a.generation, a.protocol_type, a.protocol_name) == (0, 1, "consumer", "range")
    assert [each.member_id for each in a.members] == [first, second]
    assert [each.metadata for each in a.members] == [b"r", b"r"]
    assert (b.members, b.leader, b.member_id) == ((), first, second)
    assert driver.group.state is State.COMPLETING


def test_an_empty_group_waits_longer_while_members_come_but_not_for_ever() -> None:
    driver = Driver()
    driver.join_with_id("0", rebalance_ms=10_000)
    for number in range(1, 4):
        driver.wait(LIMITS.initial_rebalance_ms - 100)
        driver.join_with_id(str(number), rebalance_ms=10_000)
        driver.wait(100)
    driver.wait(10_000 - 3 * LIMITS.initial_rebalance_ms - 1)
    assert "0" not in driver.answers
    driver.wait(1)
    assert len(driver.join_answer("0").members) == 4


def test_without_a_delay_it_goes_on_at_once() -> None:
    driver = Driver(replace(LIMITS, initial_rebalance_ms=0))
    driver.join_with_id("a")
    driver.wait(1)
    assert driver.join_answer("a").generation == 1


def test_assignments_are_told_when_the_leader_has_brought_them_and_they_are_stored() -> None:
    driver = Driver(stores_at_once=False)
    a, b = driver.join_with_id("a"), driver.join_with_id("b")
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, a, b)
    assert driver.sync("sync b", b) is None
    assert driver.sync("sync a", a, assignments={a: b"A", b: b"B", "stranger": b"S"}) is None
    assert driver.stores == [1]
    driver.stored()
    assert driver.group.state is State.STABLE
    assert [driver.sync_answer(each).assignment for each in ("sync a", "sync b")] == [b"A", b"B"]
    assert driver.sync_answer("sync b").protocol_name == "range"
    # Who missed the answer asks again.
    again = driver.sync("again", b)
    assert again is not None
    assert again.assignment == b"B"


def test_who_is_not_mentioned_by_the_leader_reads_nothing() -> None:
    driver = Driver()
    a, b = driver.stable()
    driver.leave(a)
    driver.join("b again", b)
    driver.sync("sync", b, assignments={})
    assert driver.sync_answer("sync").assignment == b""
    assert driver.sync_answer("sync").error == 0


def test_an_assignment_that_cannot_be_stored_begins_anew() -> None:
    driver = Driver(stores_at_once=False)
    a, b = driver.join_with_id("a"), driver.join_with_id("b")
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, a, b)
    driver.sync("sync b", b)
    driver.sync("sync a", a, assignments={a: b"A"})
    driver.stored(failed=True)
    assert driver.error("sync a") == driver.error("sync b") == ErrorCode.coordinator_not_available
    assert driver.group.state is State.PREPARING


def test_what_was_stored_for_an_older_generation_says_nothing() -> None:
    driver = Driver(stores_at_once=False)
    a, b = driver.join_with_id("a"), driver.join_with_id("b")
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, a, b)
    driver.sync("sync a", a, assignments={a: b"A", b: b"B"})
    driver.leave(b)
    assert driver.error("sync a") == ErrorCode.rebalance_in_progress
    driver.stored()
    assert driver.group.state is State.PREPARING
    driver.join("a again", a)
    assert driver.join_answer("a again").generation == 2
    driver.sync("sync again", a, assignments={a: b"second"})
    driver.stored()
    assert driver.sync_answer("sync again").assignment == b"second"


def test_what_was_stored_of_the_generation_before_does_not_complete_this_one() -> None:
    driver = Driver(stores_at_once=False)
    a, b = driver.join_with_id("a"), driver.join_with_id("b")
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, a, b)
    driver.sync("sync a", a, assignments={a: b"A", b: b"B"})
    driver.join("b changed", b, protocols=(("range", b"other"),))
    driver.join("a again", a)
    assert driver.join_answer("a again").generation == 2
    driver.sync("b syncs", b)
    driver.stored()
    assert driver.group.state is State.COMPLETING
    assert "b syncs" not in driver.answers


def test_a_new_member_makes_the_others_join_again() -> None:
    driver = Driver()
    a, b = driver.stable()
    c = driver.join_with_id("c")
    assert driver.heartbeat(a) == driver.heartbeat(b) == ErrorCode.rebalance_in_progress
    driver.join("a again", a)
    assert "c" not in driver.answers
    driver.join("b again", b)
    assert {driver.join_answer(each).generation for each in ("a again", "b again", "c")} == {2}
    driver.assign([a, b, c])
    assert driver.heartbeat(c) == ErrorCode.none


def test_who_does_not_join_again_in_time_is_removed() -> None:
    driver = Driver()
    a, b = driver.stable()
    c = driver.join_with_id("c")
    driver.join("a again", a)
    driver.wait(REBALANCE_MS, b)  # it sends heartbeats, and does not listen
    assert driver.join_answer("c").generation == 2
    assert set(driver.group.members.by_id) == {a, c}
    assert driver.heartbeat(b) == ErrorCode.unknown_member_id


def test_the_leader_that_does_not_join_in_time_leads_no_more() -> None:
    driver = Driver()
    a, b = driver.stable()
    driver.join_with_id("c")
    driver.join("b again", b)
    driver.wait(REBALANCE_MS, a)
    assert driver.join_answer("b again").leader == b
    assert len(driver.join_answer("b again").members) == 2


def test_a_member_without_heartbeats_is_removed_and_the_others_join_again() -> None:
    driver = Driver()
    a, b = driver.stable()
    driver.wait(SESSION_MS + 1, a)
    assert driver.group.state is State.PREPARING
    assert driver.heartbeat(b) == ErrorCode.unknown_member_id
    driver.join("a again", a)
    assert driver.join_answer("a again").generation == 2


def test_one_who_waits_for_us_needs_no_heartbeats() -> None:
    driver = Driver()
    a, b = driver.stable()
    driver.join_with_id("c", rebalance_ms=10 * SESSION_MS)
    driver.join("a again", a, rebalance_ms=10 * SESSION_MS)
    driver.wait(3 * SESSION_MS, b)
    assert a in driver.group.members.by_id
    driver.join("b again", b)
    assert driver.join_answer("a again").error == 0
    # From now on they are expected again.
    driver.wait(SESSION_MS + 1, b)
    assert a not in driver.group.members.by_id


def test_a_new_member_that_went_away_while_it_waited_is_removed_in_the_end() -> None:
    """Its connection is gone, which nobody sees; it has no id to send heartbeats with."""
    driver = Driver()
    a, _ = driver.stable()
    driver.join("old client", requires_member_id=False, rebalance_ms=10 * NEW_MEMBER_JOIN_MS)
    driver.wait(SESSION_MS * 3, a)
    assert "old client" not in driver.answers
    driver.wait(NEW_MEMBER_JOIN_MS, a)
    assert driver.error("old client") == ErrorCode.unknown_member_id
    assert driver.join_answer("old client").member_id == ""


def test_a_member_that_vanishes_between_join_and_sync_is_removed() -> None:
    driver = Driver()
    a, b = driver.join_with_id("a"), driver.join_with_id("b")
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, a, b)
    driver.sync("sync a", a, assignments={a: b"A", b: b"B"})
    driver.wait(REBALANCE_MS, a, b)  # it lives, and does not ask for its assignment
    assert set(driver.group.members.by_id) == {a}
    assert driver.group.state is State.PREPARING


def test_a_leader_that_vanishes_between_join_and_sync_holds_nobody_up() -> None:
    driver = Driver()
    a, b = driver.join_with_id("a"), driver.join_with_id("b")
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, a, b)
    driver.sync("sync b", b)
    driver.wait(SESSION_MS + 1)
    assert driver.error("sync b") == ErrorCode.rebalance_in_progress
    driver.join("b again", b)
    assert driver.join_answer("b again").leader == b


def test_an_id_that_was_given_out_and_not_used_is_forgotten() -> None:
    driver = Driver()
    a, b = driver.stable()
    told = driver.join("c, first")
    assert told is not None
    pending = told.member_id
    driver.join_with_id("d")
    driver.join("a again", a)
    driver.join("b again", b)
    assert "d" not in driver.answers, "the one who was given an id is waited for"
    driver.wait(SESSION_MS + 1)
    assert driver.join_answer("d").generation == 2
    driver.join("late", pending)
    assert driver.error("late") == ErrorCode.unknown_member_id


def test_a_group_without_members_is_empty_and_says_so_once_it_is_stored() -> None:
    driver = Driver(stores_at_once=False)
    a = driver.join_with_id("a")
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, a)
    driver.sync("sync a", a, assignments={a: b"A"})
    driver.stored()
    assert driver.leave(a) == [ErrorCode.none]
    assert (driver.group.state, driver.group.generation) == (State.EMPTY, 2)
    assert not driver.group.is_idle
    driver.stored(failed=True)
    assert not driver.group.is_idle
    driver.group.stored(driver.now, 2, failed=False)
    assert driver.group.is_idle
    assert driver.group.wake_at > driver.now


def test_the_last_member_that_times_out_leaves_an_empty_group() -> None:
    driver = Driver()
    driver.stable(3)
    driver.wait(SESSION_MS + 1)
    assert (driver.group.state, len(driver.group.members)) == (State.EMPTY, 0)
    assert driver.group.members.size_bytes == 0
    driver.group.advance(driver.now)
    assert driver.group.wake_at == NEVER


def test_leaving_is_told_of_each() -> None:
    driver = Driver()
    a, b = driver.stable()
    told = driver.join("c, first")
    assert told is not None
    assert driver.leave(a, "nobody", told.member_id) == [0, ErrorCode.unknown_member_id, 0]
    assert driver.leave(told.member_id) == [ErrorCode.unknown_member_id]
    assert set(driver.group.members.by_id) == {b}


def test_a_member_that_leaves_while_it_waits_is_told() -> None:
    driver = Driver()
    a, b = driver.stable()
    driver.join_with_id("c")
    driver.join("a again", a)
    driver.leave(a)
    assert driver.error("a again") == ErrorCode.unknown_member_id
    driver.join("b again", b)
    assert driver.join_answer("b again").leader == b


def test_one_that_joins_or_syncs_twice_is_answered_once_each() -> None:
    driver = Driver()
    a, b = driver.stable()
    driver.join_with_id("c")
    driver.join("a again", a)
    driver.join("a once more", a)
    assert driver.error("a again") == ErrorCode.rebalance_in_progress
    driver.join("b again", b)
    assert driver.join_answer("a once more").generation == 2
    driver.sync("b syncs", b)
    driver.sync("b syncs again", b)
    assert driver.error("b syncs") == ErrorCode.rebalance_in_progress
    assert "b syncs again" not in driver.answers
    driver.sync("a syncs", a, assignments={b: b"B"})
    assert driver.sync_answer("b syncs again").assignment == b"B"


def test_who_joins_a_stable_group_again_unchanged_is_told_what_it_is() -> None:
    driver = Driver()
    a, b = driver.stable()
    again = driver.join("b again", b)
    assert again is not None
    assert (again.generation, again.leader, again.members) == (1, a, ())
    assert driver.group.state is State.STABLE


def test_a_leader_that_joins_again_wants_a_rebalance() -> None:
    driver = Driver()
    a, _ = driver.stable()
    driver.join("a again", a)
    assert driver.group.state is State.PREPARING


def test_who_missed_the_answer_while_completing_is_told_again_the_leader_with_members() -> None:
    driver = Driver()
    a, b = driver.join_with_id("a"), driver.join_with_id("b")
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, a, b)
    leader, other = driver.join("a again", a), driver.join("b again", b)
    assert leader is not None
    assert other is not None
    assert (len(leader.members), len(other.members)) == (2, 0)
    driver.join("b changed", b, protocols=(("range", b"other"),))
    assert driver.group.state is State.PREPARING


# ---------------------------------------------------------------------- protocols


def test_the_protocol_that_most_prefer_of_those_that_all_know() -> None:
    driver = Driver()
    own = [
        (("sticky", b"1"), ("range", b"1")),
        (("range", b"2"), ("sticky", b"2")),
        (("new", b"3"), ("range", b"3"), ("sticky", b"3")),
    ]
    ids = [
        driver.join_with_id(str(number), protocols=protocols)
        for number, protocols in enumerate(own)
    ]
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, *ids)
    assert driver.group.protocol_name == "range"
    assert [each.metadata for each in driver.join_answer("0").members] == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    "other",
    [{"protocols": (("other", b""),)}, {"protocol_type": "connect"}, {"protocols": ()}],
)
def test_who_does_not_fit_is_refused(other: dict[str, Any]) -> None:
    driver = Driver()
    a, _ = driver.stable()
    driver.join("c", **other)
    assert driver.error("c") == ErrorCode.inconsistent_group_protocol
    driver.join("a again", a, **other)
    assert driver.error("a again") == ErrorCode.inconsistent_group_protocol
    assert driver.group.state is State.STABLE


@pytest.mark.parametrize("other", [{"protocols": ()}, {"protocol_type": ""}])
def test_a_first_member_without_protocols_is_refused(other: dict[str, Any]) -> None:
    driver = Driver()
    driver.join("a", **other)
    assert driver.error("a") == ErrorCode.inconsistent_group_protocol
    assert driver.group.is_idle


def test_a_group_that_was_empty_may_be_of_another_sort() -> None:
    driver = Driver()
    driver.leave(*driver.stable())
    a = driver.join_with_id("a", protocol_type="connect")
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, a)
    assert driver.join_answer("a").protocol_type == "connect"


@pytest.mark.parametrize("other", [{"protocol_type": "connect"}, {"protocol_name": "roundrobin"}])
def test_a_sync_of_another_protocol_is_refused(other: dict[str, Any]) -> None:
    driver = Driver()
    a, _ = driver.stable()
    driver.sync("other", a, **other)
    assert driver.error("other") == ErrorCode.inconsistent_group_protocol
    driver.sync("same", a, protocol_type=None, protocol_name="range")
    assert driver.error("same") == ErrorCode.none


def subscribing(*topics: str) -> bytes:
    names = b"".join(len(each).to_bytes(2, "big") + each.encode() for each in topics)
    return b"\x00\x01" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


def test_which_topics_are_read_is_known_of_consumers() -> None:
    driver = Driver()
    ids = [
        driver.join_with_id("a", protocols=(("range", subscribing("t", "u")),)),
        driver.join_with_id("b", protocols=(("range", subscribing("v")),)),
    ]
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, *ids)
    assert [each for each in "tuvw" if driver.group.reads(each)] == ["t", "u", "v"]
    driver.leave(*ids)
    assert not any(map(driver.group.reads, "tuvw"))


def test_of_consumers_that_speak_unclearly_all_topics_may_be_read() -> None:
    driver = Driver()
    driver.stable()  # their metadata is no subscription
    assert driver.group.reads("anything")
    other = Driver()
    a = other.join_with_id("a", protocol_type="connect")
    other.wait(2 * LIMITS.initial_rebalance_ms + 1, a)
    assert not other.group.reads("anything")


# ---------------------------------------------------------------------- who is who


def test_strangers_are_refused_everywhere() -> None:
    driver = Driver()
    a, _ = driver.stable()
    driver.join("join", "nobody")
    driver.sync("sync", "nobody")
    assert driver.error("join") == driver.error("sync") == ErrorCode.unknown_member_id
    assert driver.heartbeat("nobody") == ErrorCode.unknown_member_id
    driver.sync("old", a, 0)
    assert driver.error("old") == ErrorCode.illegal_generation
    assert driver.heartbeat(a, 0) == driver.heartbeat(a, 2) == ErrorCode.illegal_generation


def commit(driver: Driver, member_id: str, generation: int, instance: str | None = None) -> int:
    return driver.group.commit(driver.now, member_id, instance, generation)


def test_who_may_commit() -> None:
    driver = Driver()
    assert commit(driver, "", -1) == 0
    assert commit(driver, "nobody", 0) == ErrorCode.unknown_member_id
    a, b = driver.join_with_id("a"), driver.join_with_id("b")
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, a, b)
    assert commit(driver, a, 1) == ErrorCode.rebalance_in_progress
    driver.assign([a, b])
    assert commit(driver, a, 1) == 0
    assert commit(driver, a, 0) == ErrorCode.illegal_generation
    assert commit(driver, "", -1) == ErrorCode.unknown_member_id
    assert commit(driver, a, -1) == ErrorCode.illegal_generation
    assert commit(driver, "", 1) == ErrorCode.unknown_member_id
    driver.join_with_id("c")
    assert driver.group.state is State.PREPARING
    assert commit(driver, a, 1) == 0, "what was read before the rebalance is committed in it"
    driver.leave(b)
    driver.join("a again", a)
    assert driver.group.generation == 2
    assert commit(driver, a, 1) == ErrorCode.illegal_generation


def test_a_commit_is_a_sign_of_life() -> None:
    driver = Driver()
    a, b = driver.stable()
    for _ in range(5):
        driver.wait(SESSION_MS - 1_000, b)
        assert commit(driver, a, 1) == 0
    assert driver.group.state is State.STABLE


# ---------------------------------------------------------------------- size


def test_a_group_has_a_size() -> None:
    driver = Driver(replace(LIMITS, members_max=2))
    a, b = driver.stable(2)
    driver.join("c", requires_member_id=False)
    assert driver.error("c") == ErrorCode.group_max_size_reached
    assert driver.group.state is State.STABLE
    driver.join("a again", a)  # the leader makes a rebalance
    driver.join("c", requires_member_id=False) if "c" not in driver.answers else None
    driver.join("b again", b)
    assert driver.join_answer("b again").error == 0
    driver.join("d", requires_member_id=False)
    assert driver.error("d") == ErrorCode.group_max_size_reached


def test_in_a_rebalance_those_who_come_first_are_in() -> None:
    driver = Driver(replace(LIMITS, members_max=2))
    a, b = driver.stable(2)
    driver.join("a again", a)
    driver.join("c", requires_member_id=False)
    driver.join("b again", b)
    assert driver.error("b again") == ErrorCode.group_max_size_reached
    assert b not in driver.group.members.by_id


def test_what_members_hold_is_known() -> None:
    driver = Driver()
    ids = [driver.join_with_id(str(n), protocols=(("range", bytes(n * 100)),)) for n in range(4)]
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, *ids)
    without = driver.group.members.size_bytes
    assert without > 600
    driver.sync("leader", ids[0], assignments={ids[1]: bytes(500), "stranger": bytes(900)})
    assert driver.group.members.size_bytes == without + 500
    driver.join(f"{ids[0]} again", ids[0])
    driver.leave(*ids)
    assert driver.group.members.size_bytes == 0


# ---------------------------------------------------------------------- static members


def static(driver: Driver, waiter: str, instance: str, **more: Any) -> str:
    driver.join(waiter, instance_id=instance, **more)
    return driver.group.members.static[instance]


def test_a_static_member_takes_its_place_again_without_a_rebalance() -> None:
    driver = Driver()
    a, b = static(driver, "a", "one"), static(driver, "b", "two")
    assert a.startswith("one-")
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, a, b)
    driver.assign([a, b])
    again = static(driver, "b again", "two")
    assert again != b
    answer = driver.join_answer("b again")
    assert (answer.error, answer.generation, answer.leader) == (0, 1, a)
    assert driver.group.state is State.STABLE
    assert driver.sync("sync b", again) is not None
    assert driver.sync_answer("sync b").assignment == b.encode()
    # The one before it is fenced, wherever it asks.
    fenced = ErrorCode.fenced_instance_id
    assert driver.group.heartbeat(driver.now, b, "two", 1) == fenced
    assert commit(driver, b, 1, "two") == fenced
    assert driver.group.leave(driver.now, [MemberIdentity(b, "two")]) == [fenced]
    driver.sync("old sync", b, instance_id="two")
    driver.join("old join", b, instance_id="two")
    assert driver.error("old sync") == driver.error("old join") == fenced


@pytest.mark.parametrize("skips", [False, True])
def test_a_static_leader_that_comes_back_does_not_assign(*, skips: bool) -> None:
    driver = Driver()
    a, b = static(driver, "a", "one"), static(driver, "b", "two")
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, a, b)
    driver.assign([a, b])
    again = static(driver, "a again", "one", skips_assignment=skips)
    answer = driver.join_answer("a again")
    assert driver.group.members.leader == again
    if skips:
        assert (answer.leader, answer.skip_assignment, len(answer.members)) == (again, True, 2)
    else:
        assert (answer.leader, answer.skip_assignment, answer.members) == (a, False, ())


def test_a_static_member_with_another_protocol_makes_a_rebalance() -> None:
    driver = Driver()
    both = (("range", b"r"), ("sticky", b"s"))
    a = static(driver, "a", "one", protocols=both)
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, a)
    driver.assign([a])
    again = static(driver, "a again", "one", protocols=(("sticky", b"s"), ("range", b"r")))
    assert driver.group.generation == 2
    assert driver.join_answer("a again").protocol_name == "sticky"
    assert driver.group.members.leader == again


def test_a_static_member_that_comes_back_in_a_rebalance_is_told_when_all_have_joined() -> None:
    driver = Driver()
    a, b = static(driver, "a", "one"), static(driver, "b", "two")
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, a, b)
    again = static(driver, "a again", "one")
    # While completing the leader may have been told of the old id: begin anew.
    assert driver.group.state is State.PREPARING
    third = static(driver, "a third", "one")
    assert driver.error("a again") == ErrorCode.fenced_instance_id
    assert again != third
    driver.join("b again", b, instance_id="two")
    assert driver.join_answer("a third").generation == 2


def test_static_members_are_not_removed_for_being_late_but_by_their_session() -> None:
    driver = Driver()
    a, b = static(driver, "a", "one"), static(driver, "b", "two")
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, a, b)
    driver.assign([a, b])
    driver.join("a again", a, instance_id="one")
    driver.wait(REBALANCE_MS, b)
    assert driver.join_answer("a again").generation == 2
    assert b in driver.group.members.by_id
    driver.wait(SESSION_MS + 1, a)
    assert b not in driver.group.members.by_id


def test_static_members_that_are_all_away_make_no_generation_until_they_expire() -> None:
    driver = Driver()
    a = static(driver, "a", "one", session_ms=10 * REBALANCE_MS)
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, a)
    driver.assign([a])
    c = driver.join_with_id("c")
    driver.leave(c)
    driver.wait(3 * REBALANCE_MS)
    assert (driver.group.state, driver.group.generation) == (State.PREPARING, 1)
    driver.wait(10 * REBALANCE_MS)
    assert driver.group.state is State.EMPTY


def test_a_tool_removes_a_static_member_by_its_name() -> None:
    driver = Driver()
    a, b = static(driver, "a", "one"), static(driver, "b", "two")
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, a, b)
    driver.assign([a, b])
    gone = [MemberIdentity("", "one"), MemberIdentity("", "unknown"), MemberIdentity("", None)]
    unknown = ErrorCode.unknown_member_id
    assert driver.group.leave(driver.now, gone) == [0, unknown, unknown]
    driver.drain()
    assert set(driver.group.members.by_id) == {b}


def test_a_pending_id_is_not_for_static_members() -> None:
    driver = Driver()
    told = driver.join("a, first")
    assert told is not None
    driver.join("a", told.member_id, instance_id="one")
    assert driver.error("a") == ErrorCode.unknown_member_id


# ---------------------------------------------------------------------- the end


def test_all_who_wait_are_refused_when_the_server_stops() -> None:
    driver = Driver()
    a, b = driver.stable()
    driver.join_with_id("c")
    driver.join("a again", a)
    driver.group.close(ErrorCode.not_coordinator)
    driver.drain()
    assert driver.error("c") == driver.error("a again") == ErrorCode.not_coordinator
    other = Driver()
    a, b = other.join_with_id("a"), other.join_with_id("b")
    other.wait(2 * LIMITS.initial_rebalance_ms + 1, a, b)
    other.sync("sync b", b)
    other.group.close(ErrorCode.not_coordinator)
    other.drain()
    assert other.error("sync b") == ErrorCode.not_coordinator
    assert other.group.state is State.DEAD


def test_a_group_goes_on_with_the_generation_that_was_stored() -> None:
    driver = Driver()
    driver.group = Group("g", LIMITS, lambda: "x", generation=41, protocol_type="consumer")
    a = driver.join_with_id("a", protocols=RANGE)
    driver.wait(2 * LIMITS.initial_rebalance_ms + 1, a)
    assert driver.join_answer("a").generation == 42
