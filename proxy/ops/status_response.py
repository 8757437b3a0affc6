"""The JSON of /v1/status, which `pidlease status` shows."""

from typing import Any, Final

from pidlease import __version__
from pidlease.engine.engine import Engine, wall_clock_ms
from pidlease.engine.state_follower import FollowedServer
from pidlease.http_api.console_messages import ServersAnswer, SharingServer

#: The most partitions, and stopped ones, to list; the totals count all.
_PARTITIONS_MAX: Final = 1000


def stopped_of(engine: Engine, limit: int = _PARTITIONS_MAX) -> dict[str, Any]:
    """Return the number of stopped partitions, and at most `limit` of them with the reason."""
    stopped = [partition for partition in engine.partitions() if partition.stopped]
    return {
        "stopped_count": len(stopped),
        "stopped": [
            {
                "topic": partition.name.topic,
                "partition": partition.name.partition,
                "reason": partition.log.stopped,
            }
            for partition in stopped[:limit]
        ],
    }


def replay_of(engine: Engine) -> dict[str, int]:
    """Return the progress of the replay."""
    replay = engine.replay
    return {"done": replay.done, "total": replay.total, "offsets_left": replay.offsets_left}


def reason_of(engine: Engine | None, waiting: str) -> str:
    """Return why a server is not ready; empty: it is.

    Parameters:
        waiting: why the start waits for something else; empty: it does not.
    """
    if engine is None:
        return waiting or "starting"
    if engine.welcoming:
        return ""
    if engine.lost:
        return engine.lost
    if engine.leaving:
        return "stopping"
    replay = engine.replay
    if not replay.total:
        return "loading the snapshot"
    percent = 100 * replay.done // replay.total
    return f"replay at {percent} %, {replay.offsets_left} offsets left in its running partitions"


def servers_of(engine: Engine) -> ServersAnswer:
    """Return the active servers that share the Kafka cluster; none if there is only this one."""
    shared = engine.shared_cluster
    if shared is None:
        return ServersAnswer(shared=False, partitions_without_owner=0, servers=[], slot_owners=[])
    followed = {} if engine.follower is None else engine.follower.report()
    return ServersAnswer(
        shared=True,
        partitions_without_owner=shared.without_owner(),
        servers=[
            SharingServer(
                node_id=each.member.node_id,
                server=each.member.server,
                kafka=each.member.shown_kafka(),
                http=each.member.http_url,
                slots=each.slots,
                partitions=each.partitions,
                draining=each.member.draining,
                decides=each.decides,
                registrar=each.registrar,
                silent=each.silent,
                returning=each.returning,
                responds=each.own,
                **_followed(followed.get(each.member.node_id)),
            )
            for each in shared.servers()
        ],
        slot_owners=list(shared.view.slots.owners),
    )


def _followed(found: FollowedServer | None) -> dict[str, Any]:
    """Return the fields about what this server follows of another one."""
    if found is None:
        return {}
    return {"followed": found.partitions, "follower_lag_seconds": round(found.lag_seconds, 3)}


def status_of(engine: Engine, started_ms: int) -> dict[str, Any]:
    """Return the state of a server that started at this time, in ms since 1970."""
    now_ms = wall_clock_ms()
    partitions = engine.partitions()
    newest = engine.maintenance.newest
    leases = engine.leases
    return {
        "version": __version__,
        "ready": engine.welcoming,
        "reason": reason_of(engine, ""),
        "uptime_seconds": (now_ms - started_ms) / 1000,
        "replay": replay_of(engine),
        "topics": len(engine.topics),
        "partition_count": len(partitions),
        "producers": sum(len(partition.producers) for partition in partitions),
        "in_flight": sum(partition.in_flight for partition in partitions),
        "partitions": [
            {
                "topic": partition.name.topic,
                "partition": partition.name.partition,
                "start_offset": partition.log.start_offset,
                "end_offset": None if partition.incomplete else partition.readable_end,
                "readable_to": partition.readable_end,
                "producers": len(partition.producers),
                "in_flight": partition.in_flight,
                "stopped": partition.stopped,
                **({"elsewhere": partition.elsewhere} if partition.elsewhere else {}),
            }
            for partition in partitions[:_PARTITIONS_MAX]
        ],
        **stopped_of(engine),
        "leases": {
            "ring_used": len(leases.ring),
            "ring_capacity": leases.ring.capacity,
            "lease_seconds": leases.lease_ms / 1000,
            "granted": leases.granted,
            "refused": dict(leases.refused),
            "expired": leases.expired,
            "block_left": leases.blocks.left,
            "prefetch_error": leases.blocks.prefetch_error,
        },
        "snapshot": None
        if newest is None
        else {
            "number": newest.number,
            "age_seconds": (now_ms - newest.created_ms) / 1000,
            "rows": newest.rows,
            "seconds": engine.maintenance.snapshot_seconds,
        },
        "snapshot_failures": engine.maintenance.snapshot_failures,
    }
