"""A whole copy, compared with its source."""

from aiokafka.structs import TopicPartition

from pidlease.copier.cluster_pair import Cluster, both_sides, connect
from pidlease.copier.comparison import Comparison, compare
from pidlease.copier.errors import CopyError
from pidlease.copier.settings import CopySettings


async def compare_all(settings: CopySettings) -> list[Comparison]:
    """Compare every partition with its copy, as both are now.

    Raises:
        CopyError: one side cannot be read, or a topic is missing.
    """
    source, target = both_sides(settings)
    try:
        topics = await connect(settings, source, target)
        chosen = sorted(filter(settings.selects, topics))
        if not chosen:
            raise CopyError("no topic of the source is chosen by --topics-regex")
        return [
            found
            for topic in chosen
            for found in await _compare_topic(settings, source, target, topic)
        ]
    finally:
        await source.close()
        await target.close()


async def _compare_topic(
    settings: CopySettings, source: Cluster, target: Cluster, topic: str
) -> list[Comparison]:
    renamed = settings.renamed(topic)
    partitions = await source.partitions(topic)
    there = await target.partitions(renamed)
    if there < partitions:
        raise CopyError(
            f"{topic} has {partitions} partitions, {renamed} of the destination {there}"
        )
    return [
        await compare(
            source.asked, TopicPartition(topic, number),
            target.asked, TopicPartition(renamed, number), settings.start,
        )
        for number in range(partitions)
    ]  # fmt: skip
