"""JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14)."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode

from pidlease.kafka.api import API_HEARTBEAT, API_JOIN_GROUP, API_LEAVE_GROUP, API_SYNC_GROUP
from pidlease.kafka.codec.messages import Response, read_request, read_request_slowly
from pidlease.kafka.codec.primitives import INT16, RequestHeader, write_string
from proxy.kafka.client_connection import Slot
from proxy.kafka.groups.group_coordinator import GroupCoordinator, JoinFuture, SyncFuture
from proxy.kafka.groups.group_steps import (
    Join,
    JoinAnswer,
    MemberIdentity,
    Protocols,
    Sync,
    SyncAnswer,
)
from proxy.kafka.growing_response import GrowingResponse
from proxy.kafka.request_order import Answered

# The first versions of JoinGroup, SyncGroup and LeaveGroup with a feature.
_NULLABLE_NAME_FROM: Final = 7  # JoinGroup: the protocol name may be null (KIP-559)
_MEMBER_ID_REQUIRED_FROM: Final = 4  # JoinGroup: a new member gets its id first (KIP-394)
_SKIP_ASSIGNMENT_FROM: Final = 9  # JoinGroup: a leader may skip the assignment (KIP-814)
_PROTOCOL_IN_SYNC_FROM: Final = 5  # SyncGroup has the protocol (KIP-559)
_LEAVE_MANY_FROM: Final = 3  # LeaveGroup has several members (KIP-345)
#: A larger LeaveGroup request is handled in steps between which other tasks run.
_LARGE_REQUEST_BYTES: Final = 4 << 10
#: Members that leave before other tasks run.
_LEAVE_AT_ONCE: Final = 200
_MILLISECOND: Final = timedelta(milliseconds=1)


class MembershipApi:
    """Handles the requests of members."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def join_group(self, header: RequestHeader, frame: bytearray, slot: Slot) -> Answered:
        """Answer JoinGroup when all members of the group have joined."""
        request = read_request(header, frame)
        session_ms = request.session_timeout // _MILLISECOND
        rebalance = getattr(request, "rebalance_timeout", request.session_timeout)
        join = Join(
            request.member_id,
            getattr(request, "group_instance_id", None),
            header.client_id,
            slot.connection.host,
            request.protocol_type,
            _protocols(request),
            session_ms,
            max(rebalance // _MILLISECOND, 0),
            requires_member_id=header.version >= _MEMBER_ID_REQUIRED_FROM,
            skips_assignment=header.version >= _SKIP_ASSIGNMENT_FROM,
        )
        waiter = self._coordinator.join(request.group_id, join)
        if waiter.done():
            return _joined(header, waiter.result())
        # It may wait for minutes, and its data is the member's: the group's memory counts it.
        slot.park()
        return _joined_later(header, waiter)

    def sync_group(self, header: RequestHeader, frame: bytearray, slot: Slot) -> Answered:
        """Answer SyncGroup when the group's leader has assigned the partitions."""
        request = read_request(header, frame)
        protocol_type = getattr(request, "protocol_type", None)
        protocol_name = getattr(request, "protocol_name", None)
        if header.version >= _PROTOCOL_IN_SYNC_FROM and None in (protocol_type, protocol_name):
            return _synced(header, SyncAnswer(ErrorCode.inconsistent_group_protocol))
        sync = Sync(
            request.member_id,
            getattr(request, "group_instance_id", None),
            request.generation_id,
            protocol_type,
            protocol_name,
            {each.member_id: each.assignment for each in request.assignments},
        )
        waiter = self._coordinator.sync(request.group_id, sync)
        if waiter.done():
            return _synced(header, waiter.result())
        if not self._coordinator.leads(request.group_id, request.member_id):
            slot.park()  # the request's data is not kept
        return _synced_later(header, waiter)

    def heartbeat(self, header: RequestHeader, frame: bytearray, _slot: Slot) -> Answered:
        """Answer Heartbeat."""
        request = read_request(header, frame)
        error = self._coordinator.heartbeat(
            request.group_id,
            request.member_id,
            getattr(request, "group_instance_id", None),
            request.generation_id,
        )
        return Response(API_HEARTBEAT, header.version).encode(
            header.correlation_id, error_code=error
        )

    def leave_group(self, header: RequestHeader, frame: bytearray, slot: Slot) -> Answered:
        """Answer LeaveGroup."""
        many = header.version >= _LEAVE_MANY_FROM
        if many and len(frame) > _LARGE_REQUEST_BYTES:
            return self._leave_slowly(header, frame, slot)
        request = read_request(header, frame)
        response = Response(API_LEAVE_GROUP, header.version)
        leaving = (
            _identities(request.members) if many else [MemberIdentity(request.member_id, None)]
        )
        error, errors = self._coordinator.leave(request.group_id, leaving)
        if not many:
            error = errors[0] if errors else error
        members = tuple(
            response.part(
                "MemberResponse",
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                error_code=code,
            )
            for each, code in zip(leaving, errors, strict=False)
            if many
        )
        return response.encode(header.correlation_id, error_code=error, members=members)

    async def _leave_slowly(self, header: RequestHeader, frame: bytearray, slot: Slot) -> None:
        """Answer LeaveGroup of many members, as if it were several; let other tasks run meanwhile.

        Only a tool sends one, and it waits for the response before it sends more.
        """
        await slot.turn()
        request = await read_request_slowly(header, frame)
        response, growing = Response(API_LEAVE_GROUP, header.version), GrowingResponse(slot)
        rows: list[bytes] = []
        outcome = ErrorCode.none
        for start in range(0, len(request.members), _LEAVE_AT_ONCE):
            some = _identities(request.members[start : start + _LEAVE_AT_ONCE])
            error, errors = self._coordinator.leave(request.group_id, some)
            if start == 0:
                outcome = error
            if outcome is not ErrorCode.none:
                break
            # If the server stops meanwhile, the others have not left.
            codes = errors or [error] * len(some)
            rows += map(partial(_left_row, response.flexible), some, codes)
            await growing.grow(sum(map(len, rows[start:])))
            await asyncio.sleep(0)
        fields = INT16.pack(outcome.value)
        slot.fill(*response.encode_rows(header.correlation_id, [b"".join(rows)], len(rows), fields))


def _identities(members: Sequence[Any]) -> list[MemberIdentity]:
    return [MemberIdentity(each.member_id, each.group_instance_id) for each in members]


def _left_row(flexible: bool, member: MemberIdentity, code: ErrorCode) -> bytes:  # noqa: FBT001
    """Encode a member's part of the response to LeaveGroup: kio takes several times as long."""
    return b"".join((
        write_string(member.member_id, flexible=flexible),
        write_string(member.instance_id, flexible=flexible),
        INT16.pack(code.value),
        b"\0" if flexible else b"",
    ))  # fmt: skip


def _protocols(request: Any) -> Protocols:
    """Return each protocol once, however often it is named."""
    protocols: dict[str, bytes] = {}
    for each in request.protocols:
        protocols.setdefault(each.name, each.metadata)
    return tuple(protocols.items())


async def _joined_later(header: RequestHeader, waiter: JoinFuture) -> bytes:
    return _joined(header, await waiter)


def _joined(header: RequestHeader, answer: JoinAnswer) -> bytes:
    response = Response(API_JOIN_GROUP, header.version)
    name = answer.protocol_name
    if header.version < _NULLABLE_NAME_FROM:
        name = name or ""
    members = tuple(
        response.part(
            "Member",
            member_id=member_id,
            group_instance_id=instance_id,
            metadata=metadata,
        )
        for member_id, instance_id, metadata in answer.members
    )
    return response.encode(
        header.correlation_id,
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=name,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=members,
    )


async def _synced_later(header: RequestHeader, waiter: SyncFuture) -> bytes:
    return _synced(header, await waiter)


def _synced(header: RequestHeader, answer: SyncAnswer) -> bytes:
    return Response(API_SYNC_GROUP, header.version).encode(
        header.correlation_id,
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )
