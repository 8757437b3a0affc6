"""Which members answer pings, which of them divides the slots, and which get none; in ticks."""

from collections.abc import Collection

import pytest

from pidlease.core.liveness import RETURN_TICKS, SILENT_TICKS, Deciders, Liveness, PeerReport
from tests.crash.seeds import new_random

_HUNDRED = {node: node for node in range(1, 101)}


def _liveness(own: int, count: int) -> Liveness:
    found = Liveness(own)
    found.set_members({node: node for node in range(1, count + 1)})
    return found


def _ticks(of: Liveness, times: int, answering: Collection[int], version: int = 1) -> list[int]:
    """Let some members answer each ping; return those that were pinged last."""
    targets: list[int] = []
    for _ in range(times):
        targets = of.tick()
        for node in targets:
            if node in answering:
                of.answered(node, PeerReport(version))
    return targets


def _silence(of: Liveness, *silent: int, count: int) -> None:
    _ticks(of, 1 + SILENT_TICKS, set(range(1, count + 1)) - {*silent})


def test_a_member_that_does_not_answer_is_silent_after_five_pings() -> None:
    one = _liveness(1, 3)
    assert _ticks(one, SILENT_TICKS, {3}) == [2, 3]
    assert one.silent([1, 2, 3]) == frozenset()
    _ticks(one, 1, {3})
    assert one.silent([1, 2, 3]) == {2}
    assert one.deciders([1, 2, 3]) == Deciders([1, 3], frozenset({2}), frozenset({2}))


def test_a_refusal_counts_at_once() -> None:
    one = _liveness(1, 3)
    one.refused(2)
    assert one.deciders([1, 2, 3]) == Deciders([1, 3], frozenset({2}), frozenset({2}))


def test_a_tick_that_comes_late_counts_once() -> None:
    """This server was suspended: the others were not."""
    one = _liveness(1, 2)
    _ticks(one, 3, {2})
    one.tick()  # before the answers that have arrived meanwhile are read
    assert one.silent([1, 2]) == frozenset()


def test_slots_return_after_thirty_seconds_of_answers() -> None:
    one = _liveness(1, 3)
    one.refused(2)
    _ticks(one, 1, {2, 3})
    assert one.returning([1, 3]) == {2}
    _ticks(one, RETURN_TICKS - 2, {2, 3})
    assert one.deciders([1, 3]).away == {2}
    assert one.deciders([1, 3]).silent == frozenset()
    _ticks(one, 2, {2, 3})
    assert one.deciders([1, 3]).away == frozenset()


def test_answers_that_stop_begin_the_wait_anew() -> None:
    one = _liveness(1, 3)
    one.refused(2)
    _ticks(one, RETURN_TICKS - 2, {2, 3})
    _ticks(one, SILENT_TICKS + 1, {3})
    _ticks(one, RETURN_TICKS - 2, {2, 3})
    assert one.returning([1, 3]) == {2}
    _ticks(one, 4, {2, 3})
    assert one.returning([1, 3]) == frozenset()


def test_a_returning_member_keeps_slots_that_have_not_moved() -> None:
    one = _liveness(1, 3)
    one.refused(2)
    _ticks(one, 1, {2, 3})
    assert one.deciders([1, 2, 3]).away == frozenset()


def test_a_process_that_was_started_again_is_a_new_member() -> None:
    one = _liveness(1, 3)
    one.refused(2)
    one.set_members({1: 1, 2: 2, 3: 3})
    assert one.silent([1, 3]) == {2}
    one.set_members({1: 1, 2: 9, 3: 3})
    assert one.deciders([1, 3]) == Deciders([1, 3])


def test_the_next_member_divides_when_the_oldest_is_silent() -> None:
    two = _liveness(2, 3)
    assert two.deciders([1, 2, 3]).order == [1, 2, 3]
    two.refused(1)
    assert two.deciders([1, 2, 3]) == Deciders([2, 3], frozenset({1}), frozenset({1}))


def test_a_later_member_goes_by_what_the_first_one_reports() -> None:
    two = _liveness(2, 4)
    _silence(two, 3, count=4)
    assert two.deciders([1, 2, 3, 4]) == Deciders([1, 2, 4])
    assert two.silent([1, 2, 3, 4]) == {3}
    two.answered(1, PeerReport(1, silent=[4], returning=[3]))
    assert two.deciders([1, 2, 4]) == Deciders([1, 2, 4], frozenset({3, 4}), frozenset({4}))
    two.answered(1, None)  # a version without pings goes by sessions
    assert two.deciders([1, 2, 4]).away == frozenset()


@pytest.mark.parametrize(("members", "silent", "abstains"), [
    (2, [2], False), (3, [2], False), (3, [2, 3], True), (4, [2, 3], False), (4, [2, 3, 4], True),
    (5, [2, 3, 4], True), (5, [2, 3], False),
])  # fmt: skip
def test_one_that_reaches_fewer_than_half_abstains(
    members: int, silent: list[int], abstains: bool
) -> None:
    one = _liveness(1, members)
    _silence(one, *silent, count=members)
    assert one.abstains is abstains
    everyone = list(range(1, members + 1))
    found = one.deciders(everyone)
    # One that abstains goes by sessions, as if there were no pings, and gives slots to no other.
    assert found.away == (frozenset() if abstains else set(silent))
    assert found.order == [each for each in everyone if abstains or each not in silent]
    assert one.report(7) == (7, tuple(silent), (), abstains, 0)
    if abstains:
        assert one.deciders([1, 2]).away == set(range(3, members + 1))


def test_one_that_abstains_is_passed_over() -> None:
    two = _liveness(2, 3)
    two.answered(1, PeerReport(1, silent=[2, 3], abstains=True))
    assert two.deciders([1, 2, 3]) == Deciders([2, 3])


def test_a_member_without_slots_does_not_divide_them() -> None:
    """Of two that do not reach each other, the one that writes first is the only one that does."""
    one, two = _liveness(1, 2), _liveness(2, 2)
    for each, other in ((one, 2), (two, 1)):
        each.refused(other)
    assert one.deciders([1, 2]).order == [1]
    assert two.deciders([1, 2]).order == [2]
    assert one.deciders([2]).order == []
    assert two.deciders([2]).order == [2]
    two.set_members({2: 2})
    assert two.deciders([1]).order == [2], "the one with the slots is gone"


def test_the_three_oldest_that_answer_ping_all_others() -> None:
    pinged: dict[int, list[int]] = {}
    for own in _HUNDRED:
        each = Liveness(own)
        each.set_members(_HUNDRED)
        pinged[own] = _ticks(each, 1, _HUNDRED)
    assert [len(pinged[own]) for own in (1, 2, 3)] == [99, 99, 99]
    assert all(pinged[own] == [1, 2, 3] for own in range(4, 101))
    assert sum(map(len, pinged.values())) == 588


def test_the_next_ones_ping_all_when_the_oldest_are_silent() -> None:
    found = {own: Liveness(own) for own in (4, 5, 6, 7)}
    for own, each in found.items():
        each.set_members(_HUNDRED)
        for gone in (1, 2, 3):
            each.refused(gone)
        each.tick()
        targets = each.tick()
        assert len(targets) == (99 if own < 7 else 6), own
    assert found[4].deciders(_HUNDRED).order[0] == 4
    assert found[7].deciders(_HUNDRED).order[0] == 4


def test_a_member_that_others_ping_is_known_by_their_report() -> None:
    last = Liveness(100)
    last.set_members(_HUNDRED)
    _ticks(last, 2, _HUNDRED)
    last.answered(1, PeerReport(1, silent=[50], returning=[51]))
    assert last.silent(_HUNDRED) == {50}
    assert last.returning(_HUNDRED) == {51}
    last.answered(1, PeerReport(1))
    assert last.silent(_HUNDRED) == frozenset()


@pytest.mark.parametrize("own", [1, 3, 6])
def test_what_is_known_is_computed_anew_when_it_has_changed(own: int) -> None:
    """A report is kept until something changes; and an answer without news changes nothing."""
    random = new_random(f"liveness-{own}")
    nodes, in_map = range(1, 7), [1, 2, 3, 5, 6]
    one = _liveness(own, len(nodes))
    news = 0
    for _ in range(2_000):
        kind, node = (
            random.choice(("tick", "answer", "answer", "refuse", "join")),
            random.choice(nodes),
        )
        if kind == "tick":
            one.tick()
        elif kind == "refuse" and node != own:
            one.refused(node)
        elif kind == "join":
            one.set_members({each: each for each in nodes if each != node or each == own})
        else:
            silent = tuple(sorted(random.sample(nodes, random.choice((0, 0, 0, 1, 3)))))
            report = PeerReport(random.randrange(9), silent, (), random.random() < 0.2)
            before = one.silent(in_map), one.deciders(in_map)
            if one.answered(node, report):
                news += 1
            else:
                assert (one.silent(in_map), one.deciders(in_map)) == before
        told = one.report(7)
        one._findings = None
        assert one.report(7) == told
    assert news > 100
