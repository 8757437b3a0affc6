"""The first pass of the audit: it reads all sends once, and finds the suspect producers.

Each row has the numbers of the producer's preceding send (`previous_*`) within the part that a
task reads. So each row is checked by itself, without sorting. Only the first send of a producer in
a part remains: it is compared with the producer's last send in the part before. These are few, one
for each producer and segment.

The rules are those of `pidlease.core.rules`, as columns. They answer one question for all rows:
does a send follow the preceding one, so that `judge` would admit it? If not, the producer is
suspect, and its sends are validated one by one.
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

#: Instead of a policy: no PID, a PID of no policy, and a damaged place.
NO_PID: Final = 0
NO_POLICY: Final = -1
DAMAGED: Final = -2
#: The policy's name of sends without a PID.
NAMELESS: Final = "none"
#: The timeline has a row for each minute.
MINUTE_MS: Final = 60_000


def with_policy(sends: DataFrame) -> DataFrame:
    """Add the policy to sends.

    All sends without a PID count as one producer. Each damaged place counts as a producer, with the
    damage as its id, so that one pass finds them, too.
    """
    known = sends.withColumn("policy", policy())
    pid = F.when(F.col("policy").isin(NO_PID, DAMAGED), F.lit(-1)).otherwise(F.col("pid"))
    return known.withColumn("pid", pid.cast("long")).withColumn(
        "producer_id", F.coalesce("damage", "producer_id")
    )


def parts(rows: DataFrame) -> DataFrame:
    """Return a row for each producer and part of a log, in one pass over all sends.

    The same table has a row for each topic, policy and `minute`; other columns are null there.

    Parameters:
        rows: the result of `with_policy`.
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
    # An older version's table of sends has no such column.
    read_from = F.col("read_from") if "read_from" in rows.columns else F.lit(None).cast("long")
    flagged = rows.select(
        *PRODUCER_KEY, "policy", "segment", "offset", "last_offset", "records", "bytes",
        "timestamp", "generation", "first", "last", read_from.alias("read_from"),
        part.alias("part"), minute.alias("minute"), begin.alias("begin"),
        (judged & ~(is_sound() & in_order)).alias("breaks"),
        _at_begin("generation"), _at_begin("first"),
    )  # fmt: skip
    keys = [*PRODUCER_KEY, "policy", "segment", "part"]
    sets = [[F.col(each) for each in keys], [F.col(each) for each in ("topic", "policy", "minute")]]
    return flagged.groupingSets(sets, *keys, "minute").agg(
        F.grouping("minute").alias("of_producer"),
        F.sum("records").alias("records"),
        F.count("*").alias("sends"),
        F.sum("bytes").alias("bytes"),
        F.count_if("breaks").alias("breaks"),
        F.min("offset").alias("offset"),
        F.min("read_from").alias("read_from"),
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


def producer_parts(rows: DataFrame) -> DataFrame:
    """Select the rows of producers from the result of `parts`."""
    return rows.where((F.col("of_producer") == 1) & (F.col("policy") != DAMAGED))


def damages(rows: DataFrame) -> DataFrame:
    """Select the damaged places from the result of `parts`."""
    return rows.where((F.col("of_producer") == 1) & (F.col("policy") == DAMAGED)).select(
        "topic", "partition", "offset", "segment", F.col("part").alias("position"),
        F.col("producer_id").alias("damage"),
    )  # fmt: skip


def timeline(rows: DataFrame) -> DataFrame:
    """Select the rows by topic, policy and minute from the result of `parts`."""
    of_time = rows.where((F.col("of_producer") == 0) & (F.col("policy") != DAMAGED))
    name = policy_name(F.col("policy")).alias("policy")
    return of_time.select("topic", name, "minute", "records", "sends", "bytes")


def starts(of_producers: DataFrame) -> DataFrame:
    """Return the `start` of each partition: the offset below which sends may be missing.

    The first send's offset does not say it: in front of Kafka the writer's marker has offset 0.

    Parameters:
        of_producers: the result of `producer_parts`.
    """
    # The reader's offset is in the row of the first send. If that row was filtered out, sends are
    # missing, too.
    start = F.least(F.min("offset"), F.min("read_from")).alias("start")
    return of_producers.groupBy("topic", "partition").agg(start)


def suspects(of_producers: DataFrame, starts: DataFrame) -> DataFrame:
    """Return the suspect producers, among them each that breaks a rule.

    Parameters:
        of_producers: the result of `producer_parts`.
        starts: the result of `starts`.
    """
    order = Window.partitionBy(*PRODUCER_KEY).orderBy("offset")
    seams = (
        of_producers.where(F.col("policy") != NO_PID)
        .withColumn("seam_generation", F.lag("last_generation").over(order))
        .withColumn("seam_last", F.lag("last").over(order))
        .join(F.broadcast(starts), ["topic", "partition"])
    )
    # From here on a row is the producer's first send in a part, or has nulls.
    at = seams.withColumn("generation", F.col("begin_generation")).withColumn(
        "first", F.col("begin_first")
    )
    begins = F.when(F.col("seam_last").isNull(), may_begin(F.col("start") == 0)).otherwise(
        follows(F.col("seam_generation"), F.col("seam_last"))
    )
    # More than one beginning, or one in the middle: tasks have read other parts.
    one = (F.col("begins") == 1) & (F.col("begin") == F.col("offset")) & begins
    wrong = (F.col("breaks") > 0) | ~((F.col("begins") == 0) | F.coalesce(one, F.lit(False)))  # noqa: FBT003 - a value
    return at.where(wrong).select(*PRODUCER_KEY).distinct()


# ---------------------------------------------------------------------- rules as columns


def policy() -> Column:
    """Return the number of a row's policy; or `NO_PID`, `NO_POLICY` or `DAMAGED`."""
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
    """Return a policy's name; `NAMELESS` without a PID, "unknown" for a PID of no policy."""
    named = F.when(number == NO_PID, NAMELESS)
    for each in RULES:
        named = named.when(number == int(each), each.name.lower())
    return named.otherwise("unknown")


def is_sound() -> Column:
    """Return whether a send is valid by itself (`core.judge.malformed`)."""
    return _by_policy(_is_sound)


def follows(generation: Column, last: Column) -> Column:
    """Return whether a send follows the preceding one.

    Parameters:
        generation: of the preceding one.
        last: the last sequence number of the preceding one.
    """
    return _by_policy(lambda rules: _follows(rules, generation, last))


def may_begin(whole: Column) -> Column:
    """Return whether a producer may begin with a send.

    Parameters:
        whole: whether the log begins at offset 0; otherwise any send may be the first one seen.
    """

    def begins(rules: Rules) -> Column:
        if rules.start_young is Start.AT_ZERO:
            return F.col("first") == 0
        return F.lit(True)  # noqa: FBT003 - a value

    return ~whole | _by_policy(begins)


def _by_policy(rule: Callable[[Rules], Column]) -> Column:
    """Apply a rule to each row by its policy; false for a PID of no policy."""
    first, *rest = RULES.values()
    chosen = F.when(F.col("policy") == int(first.policy), rule(first))
    for rules in rest:
        chosen = chosen.when(F.col("policy") == int(rules.policy), rule(rules))
    return F.coalesce(chosen, F.lit(False))  # noqa: FBT003 - a value


def _is_sound(rules: Rules) -> Column:
    first, last, generation = F.col("first"), F.col("last"), F.col("generation")
    # A log may have any number; the difference is null if it overflows.
    distance = F.try_subtract(last, first)
    conditions = [generation.between(0, rules.generation_max),
             first.between(0, rules.sequence_max),
             last.between(0, rules.sequence_max)]  # fmt: skip
    if rules.wraps:
        distance = F.when(distance < 0, distance + rules.sequence_max + 1).otherwise(distance)
        conditions.append(distance < WRAPPING_SPAN_MAX)
    # A producer with a producer id counts requests, not records.
    beyond = F.when(F.col("producer_id") != "", distance).otherwise(F.col("records") - 1)
    conditions += [beyond >= 0, beyond <= distance if rules.ranges else beyond == distance]
    return reduce(lambda one, other: one & other, conditions)


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
