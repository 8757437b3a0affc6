"""Members, their map and the fence log, in a journal that several servers read and put."""

from collections.abc import Callable

import pytest

from pidlease.coordination.fence_log import Fence, FenceLogError, FencePosition
from pidlease.coordination.journal import journal_fences
from pidlease.coordination.journal.journal import NEXT_NUMBER, OWNER, Row
from pidlease.coordination.journal.journal_fences import JournalFences
from pidlease.coordination.journal.journal_members import JournalMembers, node_ids_row
from pidlease.coordination.journal.journal_names import JournalNames
from pidlease.coordination.journal.journal_sequence import JournalSequence
from pidlease.coordination.members import (
    MapConflictError,
    Member,
    MembersError,
    MembershipLostError,
)
from pidlease.coordination.name_bindings import (
    Binding,
    BindingChange,
    BindingConflictError,
    StoredBinding,
)
from pidlease.core.slots import EMPTY_MAP, SLOTS, reassigned
from tests.unit.coordination.memory_journal import MemoryJournal

NOW_MS = 1_700_000_000_000
KEEP_MS = 1000


def member(node_id: int, *, draining: bool = False) -> Member:
    return Member(node_id, f"host:{node_id}", "127.0.0.1", 9000 + node_id,
                  f"http://127.0.0.1:{8000 + node_id}")._replace(draining=draining)  # fmt: skip


def pair(
    stranger: str = "",
) -> tuple[tuple[MemoryJournal, JournalMembers], tuple[MemoryJournal, JournalMembers]]:
    one = MemoryJournal(session="one")
    two = MemoryJournal(one, "two")
    return (one, JournalMembers(one, lambda: stranger)), (two, JournalMembers(two, lambda: ""))


def test_members_come_and_go() -> None:
    (rows, one), (_, two) = pair()
    noticed: list[bool] = []
    one.watch(lambda: noticed.append(True))
    assert (one.node_id(), two.node_id(), one.node_id()) == (1, 2, 3)
    one.join(member(1))
    assert list(one.read().members) == [1]
    noticed.clear()
    two.join(member(2))
    found = one.read()
    assert noticed
    assert [each._replace(joined=0) for each in found.members.values()] == [member(1), member(2)]
    assert found.members[1].joined < found.members[2].joined
    assert (found.slots, found.stranger, found.registrar) == (EMPTY_MAP, "", "")
    rows.rows[OWNER, ""] = {"server": "several", "url": found.members[2].http_url}
    assert one.read().registrar == found.members[2].http_url
    one.join(member(1, draining=True))
    after = two.read().members
    assert after[1].draining
    assert after[1].joined == found.members[1].joined
    two.leave()
    two.leave()
    assert list(one.read().members) == [1]
    rows.replaced = True
    with pytest.raises(MembersError, match="another server"):
        one.read()


def test_a_new_server_gets_no_node_id_that_is_in_use() -> None:
    """Once a move from ZooKeeper did not move the counter: a living server was replaced."""
    (_, one), (rows, two) = pair()
    for number in (1, 2):
        one.join(member(number))
    owners = reassigned(EMPTY_MAP, [1, 2, 5], [1] * SLOTS)
    one.read()
    one.write(owners)
    assert not rows.read, "this server has read nothing yet"
    assert [two.node_id() for _ in range(2)] == [6, 7]


def test_the_counter_of_node_ids_of_another_coordinator_goes_on() -> None:
    (rows, one), _ = pair()
    rows.put([node_ids_row(4)])
    assert [one.node_id() for _ in range(2)] == [4, 5]


def test_a_map_that_cannot_be_read_gives_no_node_id() -> None:
    (rows, one), _ = pair()
    rows.put([Row("map", "", {"version": 99})])
    with pytest.raises(MembersError, match="the map cannot be read"):
        one.node_id()
    assert rows.rows.keys() == {("map", "")}


def test_a_member_whose_session_has_ended_joins_again() -> None:
    (rows, one), (_, two) = pair()
    one.join(member(1))
    two.join(member(2))
    del rows.rows["member", "1"]
    assert list(two.read().members) == [2]
    assert sorted(one.read().members) == [1, 2]
    found = two.read().members
    assert found[1].joined > found[2].joined


def test_a_change_that_failed_is_not_made_by_a_new_session() -> None:
    (rows, one), (_, two) = pair()
    one.join(member(1))
    rows.fails = "before"
    with pytest.raises(MembersError):
        one.join(member(1, draining=True))
    del rows.rows["member", "1"]
    one.read()
    assert not two.read().members[1].draining


def test_a_later_process_of_a_directory_is_another_session() -> None:
    (rows, one), (_, two) = pair()
    one.join(member(1))
    again = JournalMembers(MemoryJournal(rows, "later"), lambda: "")
    again.join(member(1))
    one.leave()  # late, of the former process
    assert list(two.read().members) == [1]


def test_a_copy_of_a_directory_replaces_the_first_server_for_good() -> None:
    """Once a bug: both wrote the row in turn, and owned the same slots at the same epoch."""
    (rows, one), (_, two) = pair()
    one.join(member(1))
    two.join(member(2))
    copy = JournalMembers(MemoryJournal(rows, "copy"), lambda: "")
    copy.join(member(1)._replace(server="copy:1"))
    for _ in range(2):
        for each in (one.read, one.slots, lambda: one.join(member(1, draining=True))):
            with pytest.raises(MembershipLostError, match=r"copy:1.*copy of it.* node 1"):
                each()
        assert copy.read().members[1].server == "copy:1"
        copy.slots()
    one.leave()
    assert two.read().members[1].server == "copy:1"


def test_a_member_does_not_join_again_in_the_place_of_another_process() -> None:
    (rows, one), _ = pair()
    one.join(member(1))
    copy = JournalMembers(MemoryJournal(rows, "copy"), lambda: "")
    del rows.rows["member", "1"]  # the session has ended
    rows.meanwhile = lambda: copy.join(member(1)._replace(server="copy:1"))
    with pytest.raises(MembershipLostError):
        one.read()
    assert copy.read().members[1].server == "copy:1"


def test_a_journal_that_has_ended_ends_the_membership() -> None:
    (rows, one), _ = pair()
    one.join(member(1))
    rows.replaced, rows.ended = True, "not read for so long"
    for each in (one.read, one.slots):
        with pytest.raises(MembershipLostError, match="not read for so long"):
            each()


def test_the_map_is_written_at_the_version_it_was_read_at() -> None:
    (_, one), (_, two) = pair()
    first = one.write(reassigned(one.slots(), [1], [0] * SLOTS))
    assert two.slots() == first
    with pytest.raises(MapConflictError):
        two.write(reassigned(EMPTY_MAP, [2], [0] * SLOTS))
    second = two.write(reassigned(first, [1, 2], [0] * SLOTS))
    assert second.version == first.version + 1
    with pytest.raises(MapConflictError):
        one.write(reassigned(first, [1, 3], [0] * SLOTS))
    assert one.slots() == second


def test_a_map_of_a_newer_format_is_not_read() -> None:
    (rows, one), _ = pair()
    one.write(reassigned(EMPTY_MAP, [1], [0] * SLOTS))
    rows.rows["map", ""]["version"] = 2
    with pytest.raises(MembersError, match="format 2"):
        one.slots()
    with pytest.raises(MembersError, match="format 2"):
        one.read()


def test_a_server_that_serves_alone_is_reported() -> None:
    (_, one), _ = pair("alone:1")
    assert one.read().stranger == "alone:1"


def test_of_two_that_take_a_number_at_once_one_takes_the_next() -> None:
    (rows, one), (_, two) = pair()
    taken: list[int] = []
    rows.meanwhile = lambda: taken.append(two.node_id())
    assert (one.node_id(), taken) == (2, [1])
    rows.meanwhile = lambda: two.join(member(2))
    one.join(member(1))
    found = one.read().members
    assert found[1].joined > found[2].joined


# ---------------------------------------------------------------------- fences


def names_of(
    rows: MemoryJournal, now_ms: Callable[[], int] = lambda: NOW_MS
) -> tuple[JournalNames, JournalFences]:
    fences = JournalFences(rows, now_ms, KEEP_MS)
    return JournalNames(rows, fences), fences


def grant(names: JournalNames, labels: list[str], pid: int, granted_ms: int = NOW_MS) -> None:
    changes = [BindingChange(label, StoredBinding(None), Binding(pid + at, 5, -1, granted_ms))
               for at, label in enumerate(labels)]  # fmt: skip
    assert names.change_many(changes) == [None] * len(labels)


def test_a_grant_is_in_the_log_as_soon_as_it_is_bound() -> None:
    rows = MemoryJournal()
    names, _ = names_of(rows)
    _, fences = names_of(MemoryJournal(rows))
    start = fences.end()
    assert start == FencePosition(0, 0)
    grant(names, ["a"], 1)
    found, position = fences.read(start)
    assert found == [Fence("a", Binding(1, 5, -1, NOW_MS))]
    assert position is not None
    assert fences.read(position) == ((), position)
    assert fences.end() == position
    # A name that is unbound needs no fence.
    names.change("a", found[0].binding, None)
    assert fences.read(position) == ((), position)


def test_a_grant_that_is_not_made_is_not_in_the_log() -> None:
    names, fences = names_of(MemoryJournal())
    grant(names, ["a", "b"], 1)
    position = fences.end()
    free, new = StoredBinding(None), Binding(9, 1, -1, NOW_MS)
    outcomes = names.change_many([BindingChange(label, free, new) for label in ("a", "c", "b")])
    assert [type(each) for each in outcomes] == [
        BindingConflictError, type(None), BindingConflictError,
    ]  # fmt: skip
    assert fences.read(position)[0] == [Fence("c", new)]


def test_a_grant_of_another_server_meanwhile_is_a_conflict() -> None:
    rows, others = MemoryJournal(), MemoryJournal()
    others.rows = rows.rows
    names, fences = names_of(rows)
    other, _ = names_of(others)
    grant(names, ["a"], 1)
    bound = names.get_many(["a"])[0]
    later, mine = Binding(1, 6, -1, NOW_MS), Binding(1, 6, -1, NOW_MS + 1)
    rows.meanwhile = lambda: other.change("a", bound.binding, later)
    outcomes = names.change_many(
        [BindingChange("a", bound, mine), BindingChange("b", StoredBinding(None), mine)]
    )
    assert [type(each) for each in outcomes] == [BindingConflictError, type(None)]
    assert names.get("a") == later
    assert [each.name for each in fences.read(FencePosition(0, 0))[0]] == ["a", "a", "b"]


def test_old_entries_are_removed_and_a_late_reader_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_fences, "_APPENDED_MAX", 5)
    rows, now = MemoryJournal(), [NOW_MS]
    names, fences = names_of(rows, lambda: now[0])
    grant(names, ["a", "b", "c"], 1)
    now[0] += KEEP_MS + 1
    # Old grants, as releases have them: their entries are new.
    grant(names, ["d", "e"], 10)
    assert fences.read(FencePosition(0, 0)) == ((), None)
    assert fences.read(FencePosition(2, 0)) == ((), None)
    found, end = fences.read(FencePosition(3, 0))
    assert [each.name for each in found] == ["d", "e"]
    assert end == FencePosition(5, 0)
    rows.replaced = True
    with pytest.raises(FenceLogError, match="another server"):
        fences.end()


def test_the_last_entry_stays_however_old_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one follows its number: no reader misses it."""
    monkeypatch.setattr(journal_fences, "_APPENDED_MAX", 3)
    rows = MemoryJournal()
    names, fences = names_of(rows)
    rows.put(Row("fence", NEXT_NUMBER, {"name": name, **Binding(1, 5, -1, 1)._asdict()})
             for name in "abc")  # fmt: skip
    fences.note_appended(3)  # of a version that did not note when
    assert fences.read(FencePosition(1, 0)) == ((), None)
    end = fences.end()
    assert end == FencePosition(3, 0)
    grant(names, ["d"], 4)
    assert [each.name for each in fences.read(end)[0]] == ["d"]


# ---------------------------------------------------------------------- blocks


def test_of_two_servers_that_take_a_block_at_once_one_takes_the_next() -> None:
    rows = MemoryJournal()
    others = MemoryJournal(rows)
    one = JournalSequence(rows, "one", lambda: NOW_MS, KEEP_MS)
    two = JournalSequence(others, "two", lambda: NOW_MS, KEEP_MS)
    firsts = [one.take().first, two.take().first]
    rows.meanwhile = lambda: firsts.append(two.take().first)
    firsts.append(one.take().first)
    firsts += [one.take().first, two.take().first]
    assert firsts == [1, 101, 201, 301, 401, 501]
    assert [block.owner for block in one.blocks()] == ["one", "two", "two", "one", "one", "two"]


def test_a_block_that_was_merged_meanwhile_is_not_taken_again() -> None:
    """A server is suspended between its last read and its put, for longer than blocks are kept."""
    rows = MemoryJournal()
    others = MemoryJournal(rows)
    now = [NOW_MS]
    one = JournalSequence(rows, "one", lambda: now[0], KEEP_MS)
    two = JournalSequence(others, "two", lambda: now[0], KEEP_MS)
    assert one.take().first == 1

    def meanwhile() -> None:
        assert [two.take().first for _ in range(3)] == [101, 201, 301]
        now[0] += 2 * KEEP_MS
        two._merge()
        assert ("block", "101") not in rows.rows

    rows.meanwhile = meanwhile
    assert one.take().first == 401


def test_a_merge_keeps_what_another_server_takes_meanwhile() -> None:
    rows = MemoryJournal()
    others = MemoryJournal(rows)
    now = [NOW_MS]
    one = JournalSequence(rows, "one", lambda: now[0], KEEP_MS)
    two = JournalSequence(others, "two", lambda: now[0], KEEP_MS)
    for _ in range(3):
        one.take()
    now[0] += 2 * KEEP_MS
    rows.meanwhile = two.take
    one._merge()
    assert one.blocks()[-1].end == 401
    assert two.take().first == 401
