"""FindCoordinator (10), DescribeGroups (15), ListGroups (16), DeleteGroups (42)."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from pidlease.kafka.api import (
    API_DELETE_GROUPS,
    API_DESCRIBE_GROUPS,
    API_FIND_COORDINATOR,
    API_LIST_GROUPS,
)
from pidlease.kafka.codec.messages import Response, read_request, read_request_slowly
from pidlease.kafka.codec.metadata import NODE_ID
from pidlease.kafka.codec.primitives import INT16, INT32, RequestHeader, write_array
from pidlease.storage.offsets.journal_records import RemoveGroup
from pidlease.storage.offsets.offset_store import OffsetStore
from proxy.kafka.client_connection import Slot
from proxy.kafka.groups.group import Group, State
from proxy.kafka.groups.group_coordinator import GroupCoordinator, stored_code
from proxy.kafka.growing_response import GrowingResponse
from proxy.kafka.request_order import Answered

# Key types of FindCoordinator.
_GROUP_KEY: Final = 0
_TRANSACTION_KEY: Final = 1
#: From this version on FindCoordinator has several keys (KIP-699).
_FIND_MANY_FROM: Final = 4
#: From this version on DescribeGroups has an error for an unknown group (KIP-1043).
_GROUP_NOT_FOUND_FROM: Final = 6
#: Groups that are encoded before other tasks run.
_AT_ONCE: Final = 100
#: A larger FindCoordinator request is decoded in steps between which other tasks run.
_LARGE_REQUEST_BYTES: Final = 4 << 10
#: KIP-848's name of this group type.
_TYPE: Final = "classic"


class GroupAdminApi:
    """Handles the requests of admin clients about groups, and FindCoordinator.

    Parameters:
        addresses: host and port of this server, by the name of a listener.
    """

    def __init__(
        self,
        coordinator: GroupCoordinator,
        offsets: OffsetStore,
        addresses: Mapping[str, tuple[str, int]],
    ) -> None:
        self._coordinator = coordinator
        self._offsets = offsets
        self._addresses = addresses

    # ------------------------------------------------------------------ FindCoordinator

    def find_coordinator(self, header: RequestHeader, frame: bytearray, slot: Slot) -> Answered:
        """Answer FindCoordinator: this server coordinates all groups; there are no transactions.

        librdkafka takes a broker without this API for one that is too old for LZ4.
        """
        if len(frame) <= _LARGE_REQUEST_BYTES:
            return self._found(header, read_request(header, frame), slot)
        return self._found_slowly(header, frame, slot)

    def _found(self, header: RequestHeader, request: Any, slot: Slot) -> bytes:
        response = Response(API_FIND_COORDINATOR, header.version)
        found = self._find(getattr(request, "key_type", _GROUP_KEY), slot)
        if header.version >= _FIND_MANY_FROM:
            coordinators = tuple(
                response.part("Coordinator", key=key, **found) for key in request.coordinator_keys
            )
            return response.encode(header.correlation_id, coordinators=coordinators)
        return response.encode(header.correlation_id, **found)

    async def _found_slowly(self, header: RequestHeader, frame: bytearray, slot: Slot) -> None:
        await slot.turn()
        request = await read_request_slowly(header, frame)
        if header.version < _FIND_MANY_FROM:
            slot.fill(self._found(header, request, slot))
            return
        response, growing = Response(API_FIND_COORDINATOR, header.version), GrowingResponse(slot)
        found = self._find(request.key_type, slot)
        rows = []
        for key in dict.fromkeys(request.coordinator_keys):
            rows.append(response.row("Coordinator", key=key, **found))
            if len(rows) % _AT_ONCE == 0:
                await asyncio.sleep(0)
            await growing.grow(len(rows[-1]))
        slot.fill(*response.encode_rows(header.correlation_id, [b"".join(rows)], len(rows)))

    def _find(self, key_type: int, slot: Slot) -> dict[str, object]:
        if key_type == _GROUP_KEY:
            host, port = self._addresses[slot.connection.listener]
            return {
                "node_id": NODE_ID,
                "host": host,
                "port": port,
                "error_code": ErrorCode.none,
                "error_message": None,
            }
        error, message = ErrorCode.invalid_request, f"there are no coordinators of type {key_type}"
        if key_type == _TRANSACTION_KEY:
            # Clients give up at this error; others they would retry for minutes.
            error = ErrorCode.transactional_id_authorization_failed
            message = "transactions are not served"
        return {
            "node_id": -1, "host": "", "port": -1, "error_code": error, "error_message": message,
        }  # fmt: skip

    # ------------------------------------------------------------------ ListGroups

    def list_groups(self, header: RequestHeader, frame: bytearray, slot: Slot) -> Answered:
        """Answer ListGroups."""
        request = read_request(header, frame)
        states = {each.strip().lower() for each in getattr(request, "states_filter", ())}
        types = {each.strip().lower() for each in getattr(request, "types_filter", ())}
        return self._listed(header, states, types, slot)

    async def _listed(
        self, header: RequestHeader, states: set[str], types: set[str], slot: Slot
    ) -> None:
        # One large response of a connection at a time.
        await slot.turn()
        growing = GrowingResponse(slot)
        response = Response(API_LIST_GROUPS, header.version)
        if self._coordinator.closed:
            slot.fill(_rows(header, response, ErrorCode.coordinator_not_available, []))
            return
        rows = []
        for number, group_id in enumerate(self._coordinator.known.ids(), 1):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            state = self._coordinator.state(group_id)
            fits = not states or state.value.lower() in states
            if state is not State.DEAD and fits and (not types or _TYPE in types):
                rows.append(
                    response.row(
                        "ListedGroup",
                        group_id=group_id,
                        protocol_type=self._coordinator.protocol_type(group_id),
                        group_state=state.value,
                        group_type=_TYPE,
                    )
                )
                if not await growing.grow(len(rows[-1])):
                    # A client would take a partial list for the whole list.
                    slot.fill(_rows(header, response, ErrorCode.coordinator_not_available, []))
                    return
        slot.fill(_rows(header, response, ErrorCode.none, rows))

    # ------------------------------------------------------------------ DescribeGroups

    def describe_groups(self, header: RequestHeader, frame: bytearray, slot: Slot) -> Answered:
        """Answer DescribeGroups."""
        return self._described(header, read_request(header, frame).groups, slot)

    async def _described(self, header: RequestHeader, groups: Sequence[str], slot: Slot) -> None:
        # One large response of a connection at a time.
        await slot.turn()
        growing = GrowingResponse(slot)
        response = Response(API_DESCRIBE_GROUPS, header.version)
        rows = []
        room = True
        for number, group_id in enumerate(dict.fromkeys(groups), 1):  # each group once
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            rows.append(self._describe(response, group_id, room=room))
            room = await growing.grow(len(rows[-1])) and room
        slot.fill(_rows(header, response, None, rows))

    def _describe(self, response: Response, group_id: str, *, room: bool) -> bytes:
        group = self._coordinator.active.get(group_id) if room else None
        state = self._coordinator.state(group_id)
        error, message = ErrorCode.none, None
        if self._coordinator.closed:
            error = ErrorCode.coordinator_not_available
        elif not room:
            error, message = ErrorCode.invalid_request, "too many groups at once"
        elif state is State.DEAD and response.version >= _GROUP_NOT_FOUND_FROM:
            error, message = ErrorCode.group_id_not_found, f"Group {group_id} not found."
        stable = group is not None and state is State.STABLE
        return response.row(
            "DescribedGroup",
            error_code=error,
            error_message=message,
            group_id=group_id,
            group_state=state.value,
            protocol_type=self._coordinator.protocol_type(group_id),
            protocol_data=group.protocol_name or "" if group is not None and stable else "",
            members=_members(response, group) if group is not None else (),
        )

    # ------------------------------------------------------------------ DeleteGroups

    def delete_groups(self, header: RequestHeader, frame: bytearray, _slot: Slot) -> Answered:
        """Answer DeleteGroups when the deletions are stored."""
        request = read_request(header, frame)
        outcomes = {each: self._delete(each) for each in dict.fromkeys(request.groups_names)}
        return _deleted(header, outcomes)

    def _delete(self, group_id: str) -> "ErrorCode | asyncio.Future[None]":
        if self._coordinator.closed:
            return ErrorCode.coordinator_not_available
        state = self._coordinator.state(group_id)
        if state is State.DEAD:
            return ErrorCode.group_id_not_found
        if state is not State.EMPTY:
            return ErrorCode.non_empty_group
        self._coordinator.remove(group_id)
        return self._offsets.write(RemoveGroup(group_id))


def _rows(
    header: RequestHeader, response: Response, error: ErrorCode | None, rows: list[bytes]
) -> bytes:
    """Encode a response: a throttle time (from version 1 on), an error unless None, an array."""
    tags = b"\0" if response.flexible else b""
    parts = [INT32.pack(header.correlation_id), tags]
    if header.version >= 1:
        parts.append(INT32.pack(0))
    if error is not None:
        parts.append(INT16.pack(error))
    return b"".join([*parts, write_array(len(rows), flexible=response.flexible), *rows, tags])


def _members(response: Response, group: Group) -> tuple[Any, ...]:
    stable = group.state is State.STABLE
    return tuple(
        response.part(
            "DescribedGroupMember",
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(group.protocol_name or "") if stable else b"",
            member_assignment=member.assignment,
        )
        for member in group.members.by_id.values()
    )


async def _deleted(
    header: RequestHeader, outcomes: "dict[str, ErrorCode | asyncio.Future[None]]"
) -> bytes:
    response = Response(API_DELETE_GROUPS, header.version)
    results = []
    for group_id, outcome in outcomes.items():
        code = outcome if isinstance(outcome, ErrorCode) else await stored_code(outcome)
        results.append(response.part("DeletableGroupResult", group_id=group_id, error_code=code))
    return response.encode(header.correlation_id, results=tuple(results))
