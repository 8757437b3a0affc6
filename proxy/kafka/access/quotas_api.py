"""DescribeClientQuotas (48), AlterClientQuotas (49), so that `kafka-configs.sh` works (KIP-546).

Source: ClientQuotasImage (which quotas a filter finds) and ClientQuotaControlManager of Kafka.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Any, Final

import structlog
from kio.schema.errors import ErrorCode

from pidlease.kafka.api import API_ALTER_CLIENT_QUOTAS, API_DESCRIBE_CLIENT_QUOTAS
from pidlease.kafka.codec.messages import Response
from pidlease.kafka.codec.primitives import RequestHeader
from proxy.kafka.access.failed_changes import reason_of
from proxy.security.authorizer import Caller
from proxy.security.entry_file import EntryFileError
from proxy.security.quota_rules import (
    ABSENT,
    CLIENT_ID,
    USER,
    Entity,
    Quota,
    QuotaError,
    Rules,
    checked_entity,
    checked_limit,
    checked_limits,
)
from proxy.security.security import Security

#: How a filter's component is compared, by Kafka's numbers.
_EXACT: Final = 0
_DEFAULT: Final = 1
_ANY: Final = 2
#: Kafka's quotas of addresses: there are none here.
_IP: Final = "ip"

_log = structlog.get_logger(__name__)

#: The changes of an entity: key and value; None: the quota is removed.
_Changes = Mapping[str, float | None]


class QuotasApi:
    """Handles requests about quotas.

    Parameters:
        security: keeps them.
    """

    def __init__(self, security: Security) -> None:
        self._security: Final = security

    async def describe(self, _: Caller, header: RequestHeader, request: Any) -> bytes:
        """Return the quotas that a filter finds."""
        response = Response(API_DESCRIBE_CLIENT_QUOTAS, header.version)
        try:
            found = _found(self._security.quotas.rules, request)
        except QuotaError as error:
            return response.encode(
                header.correlation_id, error_code=ErrorCode.invalid_request,
                error_message=str(error), entries=None,
            )  # fmt: skip
        entries = tuple(
            response.part(
                "EntryData",
                entity=tuple(
                    response.part("EntityData", entity_type=kind, entity_name=name)
                    for kind, name in _parts(entity).items()
                ),
                values=tuple(
                    response.part("ValueData", key=key, value=value)
                    for key, value in sorted(limits.items())
                ),
            )
            for entity, limits in found
        )
        return response.encode(
            header.correlation_id, error_code=ErrorCode.none, error_message=None, entries=entries
        )

    async def alter(self, caller: Caller, header: RequestHeader, request: Any) -> bytes:
        """Change quotas: those of all entities without an error, together."""
        results: list[tuple[Any, ErrorCode, str | None]] = []
        good: dict[Entity, _Changes] = {}
        for entry in request.entries:
            try:
                entity = _new_entity(entry, good)
                changes = _changes(entry.ops)
                good[checked_limits(entity, changes)] = changes
                results.append((entry, ErrorCode.none, None))
            except QuotaError as error:
                results.append((entry, ErrorCode.invalid_request, str(error)))
        if good and not request.validate_only:
            failure = await self._change(good)
            if failure is not None:
                results = [
                    (entry, *failure) if code is ErrorCode.none else (entry, code, message)
                    for entry, code, message in results
                ]
            for entity, changes in good.items():
                self._audit(caller, entity, changes, failed=failure is not None)
        response = Response(API_ALTER_CLIENT_QUOTAS, header.version)
        entries = tuple(
            response.part(
                "EntryData", error_code=code, error_message=message,
                entity=tuple(
                    response.part(
                        "EntityData", entity_type=each.entity_type, entity_name=each.entity_name
                    )
                    for each in entry.entity
                ),
            )
            for entry, code, message in results
        )  # fmt: skip
        return response.encode(header.correlation_id, entries=entries)

    async def _change(self, changed: Mapping[Entity, _Changes]) -> tuple[ErrorCode, str] | None:
        """Store changes; return the error, or None."""
        try:
            await self._security.change_quotas(lambda rules: _altered(rules, changed))
        except (OSError, EntryFileError) as error:
            _log.error("a change of the quotas was not stored", error=str(error))
            return ErrorCode.unknown_server_error, reason_of(error)
        return None

    def _audit(self, caller: Caller, entity: Entity, changes: _Changes, *, failed: bool) -> None:
        for key, value in changes.items():
            self._security.audit.write(
                "change", *caller, "REMOVE_QUOTA" if value is None else "SET_QUOTA",
                f"{entity} {key}" + ("" if value is None else f"={value:g}"),
                "failed" if failed else "success",
            )  # fmt: skip


def _new_entity(entry: Any, others: Container[Entity]) -> Entity:
    """Return the entity of a change.

    Raises:
        QuotaError: it is invalid, or one of those before.
    """
    entity = checked_entity((each.entity_type, each.entity_name) for each in entry.entity)
    if entity in others:
        raise QuotaError(f"{entity} is given twice")
    return entity


def _changes(ops: Iterable[Any]) -> _Changes:
    """Return the changes of an entity.

    Raises:
        QuotaError: a key or a value is invalid, or a key is given twice.
    """
    found: dict[str, float | None] = {}
    for each in ops:
        if each.key in found:
            raise QuotaError(f"quota {each.key[:20]} is given twice")
        found[each.key] = None if each.remove else checked_limit(each.key, each.value)
    return found


def _altered(rules: Rules, changed: Mapping[Entity, _Changes]) -> list[Quota]:
    """Return all quotas after changes."""
    after = {entity: dict(limits) for entity, limits in rules.items()}
    for entity, changes in changed.items():
        limits: dict[str, float | None] = {**after.pop(entity, {}), **changes}
        after[entity] = {key: value for key, value in limits.items() if value is not None}
    return [
        Quota(entity, tuple(sorted(limits.items()))) for entity, limits in after.items() if limits
    ]


def _parts(entity: Entity) -> dict[str, str | None]:
    parts = {USER: entity.user, CLIENT_ID: entity.client_id}
    return {kind: name for kind, name in parts.items() if name != ABSENT}


def _found(rules: Rules, request: Any) -> list[tuple[Entity, Mapping[str, float]]]:
    """Return the quotas that a filter finds.

    Raises:
        QuotaError: the filter is invalid.
    """
    wanted: dict[str, tuple[int, str | None]] = {}
    for each in request.components:
        kind, how = each.entity_type, each.match_type
        if kind in wanted:
            raise QuotaError(f"{kind[:20]} is given twice")
        if kind not in (USER, CLIENT_ID, _IP):
            raise QuotaError(f"a quota is of {USER} and {CLIENT_ID}, not of {kind[:20]!r}")
        if how not in (_EXACT, _DEFAULT, _ANY) or (how == _EXACT) != (each.match is not None):
            raise QuotaError(f"{kind}: no filter is of type {how} with this name")
        wanted[kind] = how, each.match
    return [
        (entity, limits)
        for entity, limits in sorted(rules.items(), key=lambda rule: str(rule[0]))
        if _matches(_parts(entity), wanted, strict=request.strict)
    ]


def _matches(
    parts: Mapping[str, str | None], wanted: Mapping[str, tuple[int, str | None]], *, strict: bool
) -> bool:
    if strict and len(parts) != len(wanted):
        return False
    return all(
        kind in parts and (how == _ANY or parts[kind] == name)
        for kind, (how, name) in wanted.items()
    )
