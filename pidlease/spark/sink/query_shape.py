"""Checks that a query suits the sink: its columns, and a plan that keeps partitions in their tasks.

Sequence numbers are the source's offsets, and a task sends its ranges in order. If two tasks shared
a partition, the later one would declare the rows of the earlier one missing: they would be lost,
although the job succeeds. So only operators that keep rows in their task are allowed between source
and sink.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pidlease.spark.errors import SinkError

_BYTES: Final = (BinaryType, StringType)
_WHOLE: Final = (IntegerType, LongType, ShortType)
#: The types that a column may have.
_TYPES: Final[dict[str, tuple[type[DataType], ...]]] = {
    "key": _BYTES,
    "value": _BYTES,
    "headers": (ArrayType,),
    "timestamp": (TimestampType, TimestampNTZType),
    "topic": (StringType,),
    "partition": _WHOLE,
    "offset": _WHOLE,
    "source_topic": (StringType,),
    "source_partition": _WHOLE,
    "source_offset": _WHOLE,
}
_SOURCE: Final = ("source_topic", "source_partition", "source_offset")
_PLAIN: Final = ("topic", "partition", "offset")
_HELP: Final = (
    "keep the source's columns topic, partition and offset; or name them source_topic,"
    " source_partition and source_offset, and partition is the destination's"
)

#: Sources that put one partition into one task, in the order of offsets.
_SOURCES: Final = frozenset(("kafka", "pidlease"))
#: Options of a source that cut a partition into several tasks.
_SPLITTING: Final = ("minPartitions", "maxRecordsPerPartition")
_LEAVES: Final = frozenset(("StreamingRelationV2", "DataSourceV2Relation", "LogicalRelation"))
#: Spark's logical operators that leave rows in their task and in their order.
_KEEPING: Final = frozenset((
    "Project", "Filter", "TypedFilter", "Generate", "Expand", "SubqueryAlias", "View",
    "EventTimeWatermark", "CollectMetrics", "MapInArrow", "MapInPandas", "MapElements",
    "MapPartitions", "AppendColumns", "SerializeFromObject", "DeserializeToObject",
    "ResolvedHint", "UnresolvedHint",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class QueryColumns:
    """The names of a query's columns; an empty name: there is no such column.

    Attributes:
        source: the source's topic, partition and offset.
        partition: the destination's partition; empty: the number of the source's.
    """

    source: tuple[str, str, str]
    partition: str
    value: str
    key: str
    headers: str
    timestamp: str


def find_columns(schema: StructType) -> QueryColumns:
    """Find a query's columns by their names.

    Raises:
        SinkError: one is missing, or has an unsuitable type.
    """
    kinds = {field.name.lower(): (field.name, field.dataType) for field in schema}
    names = {lower: name for lower, (name, _) in kinds.items()}
    for lower, (name, kind) in kinds.items():
        allowed = _TYPES.get(lower)
        if allowed is not None and not isinstance(kind, allowed):
            wanted = " or ".join(each.typeName() for each in allowed)
            raise SinkError(f"column {name} is {kind.simpleString()}; it must be {wanted}")
    if "headers" in kinds and not _are_headers(kinds["headers"][1]):
        raise SinkError(
            f"column {names['headers']} is {kinds['headers'][1].simpleString()}; it must be"
            " array<struct<key:string,value:binary>>"
        )
    if "value" not in names:
        raise SinkError(f"there is no column value, but {', '.join(names.values())}")
    own = [each for each in _SOURCE if each in names]
    if own and len(own) < len(_SOURCE):
        missing = ", ".join(each for each in _SOURCE if each not in names)
        raise SinkError(f"there is no column {missing}: {_HELP}")
    if not own and any(each not in names for each in _PLAIN):
        missing = ", ".join(each for each in _PLAIN if each not in names)
        raise SinkError(
            f"rows do not say which record of the source they come from (no {missing}), so a"
            f" retry cannot be distinguished from a new row: {_HELP}"
        )
    if own and "topic" in names:
        raise SinkError(
            "column topic is not used: rows go where option topic says. Leave it out; rows for"
            " several topics want a query for each"
        )
    source = _SOURCE if own else _PLAIN
    return QueryColumns(
        source=(names[source[0]], names[source[1]], names[source[2]]),
        partition=names.get("partition", "") if own else "",
        value=names["value"],
        key=names.get("key", ""),
        headers=names.get("headers", ""),
        timestamp=names.get("timestamp", ""),
    )


def _are_headers(kind: DataType) -> bool:
    element = kind.elementType if isinstance(kind, ArrayType) else kind
    if not isinstance(element, StructType):
        return False
    types = {field.name: field.dataType for field in element}
    return isinstance(types.get("key"), StringType) and isinstance(types.get("value"), BinaryType)


def check_plan(plan: Any) -> None:  # noqa: ANN401 - a Java object
    """Check that a query keeps each source partition in one task, and in order.

    Parameters:
        plan: the query's analyzed plan.

    Raises:
        SinkError: it does not; the text says what to change.
    """
    leaves = []
    for node in _nodes(plan):
        name = node.getClass().getSimpleName()
        if name in _LEAVES:
            leaves.append(node)
        elif name not in _KEEPING:
            raise SinkError(
                f"{name} stands between the source and the sink: it may move rows to other tasks,"
                " or change their order, and then a retry cannot be distinguished from a new row."
                " Write its result by another query, which reads it from a topic"
            )
        _check_expressions(node, name)
    if len(leaves) != 1:
        raise SinkError(f"the query reads {len(leaves)} sources; give each a query of its own")
    _check_source(leaves[0])


def _check_expressions(node: Any, name: str) -> None:  # noqa: ANN401 - a Java object
    if not node.subqueries().isEmpty():
        raise SinkError(
            f"{name} of the query has a subquery (IN, EXISTS or a scalar): Spark may make a"
            " join of it, which moves rows to other tasks, and its result may differ when a"
            " micro-batch is repeated. Write its result by a query of its own into a topic"
        )
    if not node.deterministic():
        raise SinkError(
            f"{name} of the query is not deterministic (rand, uuid, spark_partition_id, a function"
            " that is marked so): when a micro-batch is repeated, it must produce the same rows"
        )


def _nodes(plan: Any) -> Iterator[Any]:  # noqa: ANN401 - a Java object
    pending = [plan]
    while pending:
        node = pending.pop()
        yield node
        children = node.children()
        pending += [children.apply(index) for index in range(children.length())]


def _check_source(leaf: Any) -> None:  # noqa: ANN401 - a Java object
    name = leaf.getClass().getSimpleName()
    if name == "StreamingRelationV2":
        source, options = str(leaf.sourceName()), leaf.extraOptions()
    elif name == "DataSourceV2Relation":
        source, options = str(leaf.table().name()), leaf.options()
    else:
        # Spark's Kafka source, read as a batch, is a V1 source; `survey_table` counts its tasks.
        source, options = str(leaf.relation().getClass().getSimpleName()), None
        source = "kafka" if source == "KafkaRelation" else source
    if source.lower() not in _SOURCES:
        raise SinkError(
            f"the source is {source}: the sink takes its numbers from the offsets of the sources"
            " kafka and pidlease only"
        )
    for option in _SPLITTING:
        if options is not None and options.get(option) is not None:
            raise SinkError(
                f"the source has option {option}: several tasks would share one of its partitions,"
                " and records would be lost. Leave it out; for more tasks, give the topic more"
                " partitions"
            )
