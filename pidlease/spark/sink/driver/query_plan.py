"""Whether a query keeps each partition of the source in one task, and in order.

Numbers are the source's offsets, and a task sends its ranges one behind the other. Where two tasks
share a partition, the one behind would say that what the one before has is not there: lost, with
the job green. So only what is known to keep rows where they are may stand between source and sink.
"""

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import DataFrame

from pidlease.spark.errors import SinkError

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


def check_plan(frame: DataFrame) -> None:
    """See that a query is one that the sink may trust.

    Raises:
        SinkError: it is not; it says what to change.
    """
    leaves = []
    for node in _nodes(frame._jdf.queryExecution().analyzed()):
        name = node.getClass().getSimpleName()
        if name in _LEAVES:
            leaves.append(node)
        elif name not in _KEEPING:
            raise SinkError(
                f"{name} stands between the source and the sink: it may move rows to other tasks,"
                " or change their order, and then nothing tells a retry from a new row. Write its"
                " result by another query, which reads it from a topic"
            )
        _check_expressions(node, name)
    if len(leaves) != 1:
        raise SinkError(f"the query reads {len(leaves)} sources; give each a query of its own")
    _check_source(leaves[0])


def _check_expressions(node: Any, name: str) -> None:  # noqa: ANN401 - of the virtual machine
    if not node.subqueries().isEmpty():
        raise SinkError(
            f"{name} of the query asks another query (IN, EXISTS or a scalar): Spark may make a"
            " join of it, which moves rows to other tasks, and it may answer otherwise when a"
            " micro-batch comes again. Write its result by a query of its own into a topic"
        )
    if not node.deterministic():
        raise SinkError(
            f"{name} of the query is not deterministic (rand, uuid, spark_partition_id, a function"
            " that is marked so): when a micro-batch comes again, it must make the same rows"
        )


def _nodes(plan: Any) -> Iterator[Any]:  # noqa: ANN401 - of the virtual machine
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        yield node
        children = node.children()
        waiting += [children.apply(place) for place in range(children.length())]


def _check_source(leaf: Any) -> None:  # noqa: ANN401 - of the virtual machine
    name = leaf.getClass().getSimpleName()
    if name == "StreamingRelationV2":
        source, options = str(leaf.sourceName()), leaf.extraOptions()
    elif name == "DataSourceV2Relation":
        source, options = str(leaf.table().name()), leaf.options()
    else:
        # Spark's Kafka source, read as a batch, is of the old kind; `prepare` counts its tasks.
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
