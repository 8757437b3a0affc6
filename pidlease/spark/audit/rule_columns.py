"""The rules of `pidlease.core.rules` as columns: what one send says, held against the one before.

They answer one question only, for all rows at once: does a send follow the one before, so that
`judge` would admit it without a word? Where not, the rows of its producer are judged one by one
(`judging`). The rules are the table's; here is only how it is asked.
"""

from collections.abc import Callable
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pidlease.core.judge import WRAPPING_SPAN_MAX
from pidlease.core.pid import N_MASK, POLICY_SHIFT, Policy
from pidlease.core.rules import RULES, Rules, Start

#: In the place of a policy: without a PID, a PID that belongs to none, and a damaged place.
NO_PID: Final = 0
NO_POLICY: Final = -1
DAMAGED: Final = -2
#: What is said of who has no PID, in the place of a policy's name.
NAMELESS: Final = "none"


def policy() -> Column:
    """The number of a row's policy; `NO_PID` or `NO_POLICY`."""
    number = F.shiftright("pid", POLICY_SHIFT)
    known = number.isin(*map(int, RULES)) & (F.col("pid").bitwiseAND(N_MASK) != 0)
    return (
        F.when(F.col("damage").isNotNull(), DAMAGED)
        .when(F.col("producer_id") != "", int(Policy.EPOCH))
        .when(F.col("pid") <= 0, NO_PID)
        .when(known, number.cast("int"))
        .otherwise(NO_POLICY)
    )


def policy_name(number: Column) -> Column:
    """A policy's name; `NAMELESS` without a PID, "unknown" where a PID belongs to none."""
    named = F.when(number == NO_PID, NAMELESS)
    for each in RULES:
        named = named.when(number == int(each), each.name.lower())
    return named.otherwise("unknown")


def is_sound() -> Column:
    """Whether a send makes sense by itself (`core.judge.malformed`), by its column `policy`."""
    return _by_policy(_is_sound)


def follows(generation: Column, last: Column) -> Column:
    """Whether a send follows the one before.

    Parameters:
        generation: of the one before,
        last: and its last sequence.
    """
    return _by_policy(lambda rules: _follows(rules, generation, last))


def may_begin(whole: Column) -> Column:
    """Whether a producer's first send that is seen may be its first.

    Parameters:
        whole: whether the log goes back to its beginning; otherwise any may be.
    """

    def begins(rules: Rules) -> Column:
        if rules.start_young is Start.AT_ZERO:
            return F.col("first") == 0
        return F.lit(True)  # noqa: FBT003 - a value

    return ~whole | _by_policy(begins)


def _by_policy(ask: Callable[[Rules], Column]) -> Column:
    """What the row of each policy says; false for a PID of none."""
    first, *rest = RULES.values()
    chosen = F.when(F.col("policy") == int(first.policy), ask(first))
    for rules in rest:
        chosen = chosen.when(F.col("policy") == int(rules.policy), ask(rules))
    return F.coalesce(chosen, F.lit(False))  # noqa: FBT003 - a value


def _is_sound(rules: Rules) -> Column:
    first, last, generation = F.col("first"), F.col("last"), F.col("generation")
    # Tried, as what a log says may be any number: where one does not fit, the answer is null.
    distance = F.try_subtract(last, first)
    asked = [generation.between(0, rules.generation_max),
             first.between(0, rules.sequence_max),
             last.between(0, rules.sequence_max)]  # fmt: skip
    if rules.wraps:
        distance = F.when(distance < 0, distance + rules.sequence_max + 1).otherwise(distance)
        asked.append(distance < WRAPPING_SPAN_MAX)
    # A producer of a producer id counts requests, whatever they hold (`engine.whose.identified`).
    beyond = F.when(F.col("producer_id") != "", distance).otherwise(F.col("records") - 1)
    asked += [beyond >= 0, beyond <= distance if rules.ranges else beyond == distance]
    return reduce(lambda one, other: one & other, asked)


def _follows(rules: Rules, generation: Column, last: Column) -> Column:
    first = F.col("first")
    if rules.holes:
        numbers = first > last
    else:
        numbers = (first > 0) & (F.try_subtract(first, F.lit(1)) == last)
        if rules.wraps:
            numbers = numbers | ((first == 0) & (last == rules.sequence_max))
    same = F.col("generation") == generation
    if rules.restarts:
        higher = (F.col("generation") > generation) & (first == 0)
        return (same & numbers) | higher
    one_higher = F.try_subtract(F.col("generation"), F.lit(1)) == generation
    return (same | one_higher) & numbers
