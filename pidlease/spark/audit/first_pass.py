"""The cheap pass over all sends, and who has to be looked at after it.

Each row brings the numbers of the send before (`previous_*`), as far as one task has read. So
whether a send follows is asked row by row, without an order. What is left are the seams: the first
send of a producer in a part has nobody before it, and is held against the last one in the part
before. These are few: one row for each producer and segment.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pidlease.spark.audit import rule_columns as columns
from pidlease.spark.audit.rule_columns import DAMAGED, NO_PID

#: A producer on a partition.
WHO: Final = ("topic", "partition", "pid", "producer_id")
#: Timestamps are counted by minutes.
MINUTE_MS: Final = 60_000


def asked(sends: DataFrame) -> DataFrame:
    """The sends with their policy.

    Who has no PID is one producer, and each damaged place is one, whose id is what is wrong there:
    so they come along in the one pass.
    """
    with_policy = sends.withColumn("policy", columns.policy())
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
    before = columns.follows(F.col("previous_generation"), F.col("previous_last"))
    judged = ~F.col("policy").isin(NO_PID, DAMAGED)
    follows = F.col("begins") | F.coalesce(before, F.lit(False))  # noqa: FBT003 - a value
    begin = F.when(F.col("begins"), F.col("offset"))
    part = (
        F.when(F.col("policy") == DAMAGED, F.col("position"))
        .when(F.col("segment") == "", F.spark_partition_id())
        .otherwise(-1)
    )
    minute = F.floor(F.col("timestamp") / MINUTE_MS).cast("long")
    flagged = rows.select(
        *WHO, "policy", "segment", "offset", "last_offset", "records", "bytes", "timestamp",
        "generation", "first", "last",
        part.alias("part"), minute.alias("minute"), begin.alias("begin"),
        (judged & ~(columns.is_sound() & follows)).alias("breaks"),
        _at_begin("generation"), _at_begin("first"),
    )  # fmt: skip
    who = [*WHO, "policy", "segment", "part"]
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
    name = columns.policy_name(F.col("policy")).alias("policy")
    return of_time.select("topic", name, "minute", "records", "sends", "bytes")


def suspects(of_producers: DataFrame, starts: DataFrame) -> DataFrame:
    """Who has to be looked at send by send: whoever breaks a rule is among them.

    Parameters:
        of_producers: see `producer_parts`.
        starts: the first offset of each partition, as `start`.
    """
    order = Window.partitionBy(*WHO).orderBy("offset")
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
    begins = F.when(F.col("seam_last").isNull(), columns.may_begin(F.col("start") == 0)).otherwise(
        columns.follows(F.col("seam_generation"), F.col("seam_last"))
    )
    # More than one beginning, or one in the middle: the parts are not those that tasks have read.
    one = (F.col("begins") == 1) & (F.col("begin") == F.col("offset")) & begins
    wrong = (F.col("breaks") > 0) | ~((F.col("begins") == 0) | F.coalesce(one, F.lit(False)))  # noqa: FBT003 - a value
    return at.where(wrong).select(*WHO).distinct()
