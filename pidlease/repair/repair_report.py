"""The report of a repair, as JSON: shown before a cut, and stored with the bytes cut off."""

from typing import Any, Final

from pidlease.repair.losses import Losses, ProducerLoss
from pidlease.repair.survey import DamagedPartition, Survey

#: The most producers and groups listed for a partition; the counts include all.
_LISTED: Final = 10_000


def describe(found: Survey, kept: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a survey as JSON.

    Parameters:
        kept: partition name -> the folder with the bytes that were cut off.
    """
    kept = kept or {}
    return {
        "data_dir": str(found.root),
        "clean_stop": found.clean,
        "partitions": found.looked_at,
        "damaged": [
            {**describe_partition(found, each), "kept": kept.get(str(each.name))}
            for each in found.damaged
        ],
    }


def describe_partition(found: Survey, each: DamagedPartition) -> dict[str, Any]:
    """Return one damaged partition as JSON."""
    damage, losses = each.damage, each.losses
    report: dict[str, Any] = {
        "topic": each.topic.name,
        "topic_id": each.topic.topic_id,
        "partition": each.number,
        "file": str(damage.path.relative_to(found.root)),
        "position": damage.position,
        "offset": damage.offset,
        "reason": damage.reason,
        "can_be_cut": losses is not None,
        "why_not": each.reason,
        "groups_beyond": [group._asdict() for group in each.groups[:_LISTED]],
        "groups_beyond_count": len(each.groups),
    }
    return report | _losses(losses, damage.offset) if losses is not None else report


def _losses(losses: Losses, cut: int) -> dict[str, Any]:
    readable = losses.readable
    return {
        "acknowledged_to": losses.promised_end,
        "offsets_lost": losses.promised_end - cut,
        "intact_after": {
            "batches": readable.batches,
            "records": readable.records,
            "bytes": readable.bytes,
            "first_offset": readable.first_offset,
            "end_offset": readable.end_offset,
        },
        "snapshots_beyond": losses.snapshots,
        "producers": [_producer(each) for each in losses.producers[:_LISTED]],
        "producer_count": len(losses.producers),
    }


def _producer(loss: ProducerLoss) -> dict[str, Any]:
    kept = loss.kept
    return {
        "pid": loss.pid,
        "name": loss.name,
        "policy": loss.policy,
        "generation_after_cut": -1 if kept is None else kept.generation,
        "sequence_after_cut": -1 if kept is None else kept.high,
        "known_generation": loss.generation,
        "known_sequence": loss.high,
        "intact_records_after": loss.records,
        "intact_sequences_after": [each._asdict() for each in loss.ranges],
    }
