"""A bound on bytes that several share."""

from pidlease.core.byte_budget import ByteBudget


def test_what_is_free_is_reserved_and_no_more() -> None:
    budget = ByteBudget(10)
    assert budget.reserve(4)
    assert budget.reserve(6)
    assert budget.exhausted
    assert not budget.reserve(1)
    budget.release(4)
    assert (budget.used, budget.exhausted) == (6, False)
    assert not budget.reserve(5)
    assert budget.reserve(4)


def test_one_that_is_alone_is_admitted_whatever_its_size() -> None:
    budget = ByteBudget(10)
    assert budget.reserve(25)
    assert not budget.reserve(0), "but only one"
    assert budget.reserve(5, own=25), "which may grow"
    assert not budget.reserve(5, own=25), "others hold 5 of the 30 bytes: it may grow no more"
    budget.release(30)
    assert budget.used == 0
