"""The cheap pass over all sends, and who has to be looked at after it.

Each row brings the numbers of the send before (`previous_*`), as far as one task has read. So
whether a send follows is asked row by row, without an order. What is left are the seams: the first
send of a producer in a part has nobody before it, and is held against the last one in the part
before. These are few: one row for each producer and segment.
"""

from collections.abc import Callable
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pidlease.core.judge import WRAPPING_SPAN_MAX
from pidlease.core.pid import N_MASK, POLICY_SHIFT, Policy
from pidlease.core.rules import RULES, Rules, Start
from pidlease.spark.reader.send_rows import PRODUCER_KEY

#: In the place of a policy: without a PID, a PID that belongs to none, and a damaged place.
NO_PID: Final = 0
NO_POLICY: Final = -1
DAMAGED: Final = -2
#: What is said of who has no PID, in the place of a policy's name.
NAMELESS: Final = "none"
#: Timestamps are counted by minutes.
MINUTE_MS: Final = 60_000


def asked(sends: DataFrame) -> DataFrame:
    """The sends with their policy.

    Who has no PID is one producer, and each damaged place is one, whose id is what is wrong there:
    so they come along in the one pass.
    """
    with_policy = sends.withColumn("policy", policy())
    pid = F.when(F.col("policy").isin(NO_PID, DAMAGED), F.lit(-1)).otherwise(F.col("pid"))
    return with_policy.withColumn("pid", pid.cast("long")).withColumn(
        "producer_id", F.coalesce("damage", "producer_id")
    )


def parts(rows: DataFrame) -> DataFrame:
    """One row for each producer and part of a log: the only pass over all sends.

    And, with `minute` in the place of the rest, for each topic, policy and minute.

    Parameters:
        rows: see `asked`.
    """
    known = follows(F.col("previous_generation"), F.col("previous_last"))
    judged = ~F.col("policy").isin(NO_PID, DAMAGED)
    in_order = F.col("begins") | F.coalesce(known, F.lit(False))  # noqa: FBT003 - a value
    begin = F.when(F.col("begins"), F.col("offset"))
    part = (
        F.when(F.col("policy") == DAMAGED, F.col("position"))
        .when(F.col("segment") == "", F.spark_partition_id())
        .otherwise(-1)
    )
    minute = F.floor(F.col("timestamp") / MINUTE_MS).cast("long")
    flagged = rows.select(
        *PRODUCER_KEY, "policy", "segment", "offset", "last_offset", "records", "bytes",
        "timestamp", "generation", "first", "last",
        part.alias("part"), minute.alias("minute"), begin.alias("begin"),
        (judged & ~(is_sound() & in_order)).alias("breaks"),
        _at_begin("generation"), _at_begin("first"),
    )  # fmt: skip
    who = [*PRODUCER_KEY, "policy", "segment", "part"]
    sets = [[F.col(each) for each in who], [F.col(each) for each in ("topic", "policy", "minute")]]
    return flagged.groupingSets(sets, *who, "minute").agg(
        F.grouping("minute").alias("of_producer"),
        F.sum("records").alias("records"),
        F.count("*").alias("sends"),
        F.sum("bytes").alias("bytes"),
        F.count_if("breaks").alias("breaks"),
        F.min("offset").alias("offset"),
        F.max("last_offset").alias("last_offset"),
        F.min("timestamp").alias("first_ms"),
        F.max("timestamp").alias("last_ms"),
        F.max("generation").alias("generation"),
        F.min_by("first", "offset").alias("first"),
        F.max_by("last", "offset").alias("last"),
        F.max_by("generation", "offset").alias("last_generation"),
        F.count("begin").alias("begins"),
        F.max("begin").alias("begin"),
        F.max("begin_generation").alias("begin_generation"),
        F.max("begin_first").alias("begin_first"),
    )


def _at_begin(name: str) -> Column:
    return F.when(F.col("begins"), F.col(name)).alias(f"begin_{name}")


def producer_parts(found: DataFrame) -> DataFrame:
    """Of what `parts` found, the rows of producers."""
    return found.where((F.col("of_producer") == 1) & (F.col("policy") != DAMAGED))


def damages(found: DataFrame) -> DataFrame:
    """Of what `parts` found, the damaged places."""
    return found.where((F.col("of_producer") == 1) & (F.col("policy") == DAMAGED)).select(
        "topic", "partition", "offset", "segment", F.col("part").alias("position"),
        F.col("producer_id").alias("damage"),
    )  # fmt: skip


def timeline(found: DataFrame) -> DataFrame:
    """Of what `parts` found, records and sends by topic, policy and minute."""
    of_time = found.where((F.col("of_producer") == 0) & (F.col("policy") != DAMAGED))
    name = policy_name(F.col("policy")).alias("policy")
    return of_time.select("topic", name, "minute", "records", "sends", "bytes")


def suspects(of_producers: DataFrame, starts: DataFrame) -> DataFrame:
    """Who has to be looked at send by send: whoever breaks a rule is among them.

    Parameters:
        of_producers: see `producer_parts`.
        starts: the first offset of each partition, as `start`.
    """
    order = Window.partitionBy(*PRODUCER_KEY).orderBy("offset")
    seams = (
        of_producers.where(F.col("policy") != NO_PID)
        .withColumn("seam_generation", F.lag("last_generation").over(order))
        .withColumn("seam_last", F.lag("last").over(order))
        .join(F.broadcast(starts), ["topic", "partition"])
    )
    # From here on a row is the first send in a part, or none where it goes on in one.
    at = seams.withColumn("generation", F.col("begin_generation")).withColumn(
        "first", F.col("begin_first")
    )
    begins = F.when(F.col("seam_last").isNull(), may_begin(F.col("start") == 0)).otherwise(
        follows(F.col("seam_generation"), F.col("seam_last"))
    )
    # More than one beginning, or one in the middle: the parts are not those that tasks have read.
    one = (F.col("begins") == 1) & (F.col("begin") == F.col("offset")) & begins
    wrong = (F.col("breaks") > 0) | ~((F.col("begins") == 0) | F.coalesce(one, F.lit(False)))  # noqa: FBT003 - a value
    return at.where(wrong).select(*PRODUCER_KEY).distinct()


# ---------------------------------------------------------------------- rules as columns


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
