"""Requests of consumer groups, by their plainest values, and what any version must answer."""

from datetime import timedelta
from typing import Any, Final

OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
JOIN_GROUP: Final = 11
HEARTBEAT: Final = 12
LEAVE_GROUP: Final = 13
SYNC_GROUP: Final = 14
DESCRIBE_GROUPS: Final = 15
LIST_GROUPS: Final = 16
DELETE_GROUPS: Final = 42
OFFSET_DELETE: Final = 47

#: A subscription as consumers write it: version 0, topics, no data of their own.
SUBSCRIPTION: Final = bytes.fromhex("0000 00000001 0005") + b"known" + bytes.fromhex("ffffffff")


def joining(group: str, member_id: str = "", **more: object) -> dict[str, object]:
    """A JoinGroup request."""
    return {
        "group_id": group,
        "session_timeout": timedelta(seconds=10),
        "rebalance_timeout": timedelta(seconds=10),
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
        **more,
    }


def committing(
    group: str, topic: str, offsets: dict[int, int], metadata: str | None = "", **more: object
) -> dict[str, object]:
    """An OffsetCommit request; without more it is one of nobody's."""
    partitions = [
        {"partition_index": number, "committed_offset": offset, "committed_metadata": metadata}
        for number, offset in offsets.items()
    ]
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": topic, "partitions": partitions}],
        **more,
    }


def fetching(group: str, topics: dict[str, list[int]] | None) -> dict[str, object]:
    """An OffsetFetch request, for versions with one group and with many."""
    asked = None
    if topics is not None:
        asked = [{"name": name, "partition_indexes": each} for name, each in topics.items()]
    return {
        "group_id": group,
        "topics": asked,
        "groups": [{"group_id": group, "topics": asked}],
    }


def fetched_offsets(body: Any) -> dict[tuple[str, int], tuple[int, int, str]]:
    """Of an OffsetFetch answer: (topic, partition) -> code, offset, metadata."""
    return {
        (topic.name, part.partition_index): (
            int(part.error_code),
            part.committed_offset,
            part.metadata,
        )
        for group in getattr(body, "groups", (body,))
        for topic in group.topics
        for part in topic.partitions
    }


def codes_of(body: Any) -> list[int]:
    """The codes of all partitions, of an answer to OffsetCommit or OffsetDelete."""
    return [int(part.error_code) for topic in body.topics for part in topic.partitions]


def group_request(key: int, topic: str) -> dict[str, object]:
    """A request of one of the APIs above."""
    identity = {"member_id": "m", "group_instance_id": None}
    requests: dict[int, dict[str, object]] = {
        OFFSET_COMMIT: committing("group", topic, {0: 5, 7: 5}),
        OFFSET_FETCH: fetching("group", {topic: [0]}),
        FIND_COORDINATOR: {"key": "group", "coordinator_keys": ["group", "other"]},
        JOIN_GROUP: joining("group"),
        HEARTBEAT: {"group_id": "group", "member_id": "m", "generation_id": 1},
        LEAVE_GROUP: {"group_id": "group", "member_id": "m", "members": [identity]},
        SYNC_GROUP: {"group_id": "group", "member_id": "m", "generation_id": 1, "protocol_type":
            "consumer", "protocol_name": "range"},
        DESCRIBE_GROUPS: {"groups": ["group"]},
        LIST_GROUPS: {},
        DELETE_GROUPS: {"groups_names": ["group"]},
        OFFSET_DELETE: {
            "group_id": "group",
            "topics": [{"name": topic, "partitions": [{"partition_index": 0}]}],
        },
    }  # fmt: skip
    return requests[key]


def look_at_group_answer(key: int, version: int, body: Any, topic: str) -> None:
    """The least that any version must have told, by a server that has no group yet."""
    if key == OFFSET_COMMIT:
        assert codes_of(body) == [0, 3]
    elif key == OFFSET_FETCH:
        assert fetched_offsets(body) == {(topic, 0): (0, -1, "")}
    elif key == FIND_COORDINATOR:
        found = getattr(body, "coordinators", (body,))
        assert [(each.error_code, each.node_id, each.host) for each in found] == [
            (0, 1, "127.0.0.1")
        ] * len(found)
    elif key == JOIN_GROUP:
        code, generation = (79, -1) if version >= 4 else (0, 1)
        assert (body.error_code, body.generation_id) == (code, generation)
        assert body.member_id.startswith("wire-test-")
        assert len(body.members) == (version < 4)
    elif key in (HEARTBEAT, SYNC_GROUP):
        assert body.error_code == 25
    elif key == LEAVE_GROUP:
        codes = [each.error_code for each in getattr(body, "members", ())]
        assert [body.error_code, *codes] == ([0, 25] if version >= 3 else [25])
    elif key == DESCRIBE_GROUPS:
        (group,) = body.groups
        assert (group.group_state, group.error_code) == ("Dead", 69 if version >= 6 else 0)
    elif key == LIST_GROUPS:
        assert (body.error_code, body.groups) == (0, ())
    elif key == DELETE_GROUPS:
        assert [(each.group_id, each.error_code) for each in body.results] == [("group", 69)]
    else:
        assert (body.error_code, body.topics) == (69, ())
