"""DescribeAcls (29), CreateAcls (30), DeleteAcls (31), so that `kafka-acls.sh` works.

Source: AclAuthorizer and ResourcePatternFilter of Kafka. The entries stand in the file of the ACLs,
or in Kafka (`kafka_acls_api.py`).
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import structlog
from kio.schema.errors import ErrorCode

from pidlease.kafka.api import API_CREATE_ACLS, API_DELETE_ACLS, API_DESCRIBE_ACLS
from pidlease.kafka.codec.messages import Response
from pidlease.kafka.codec.primitives import RequestHeader
from proxy.kafka.access.failed_changes import reason_of
from proxy.security.acls import (
    ANY_NAME,
    FILTER_ANY,
    FILTER_MATCH,
    Acl,
    AclError,
    Pattern,
    ResourceKind,
    acl_of,
    checked,
)
from proxy.security.authorizer import Caller
from proxy.security.entry_file import EntryFileError
from proxy.security.security import Security

#: An error code and its message.
Outcome = tuple[ErrorCode, str | None]
DONE: Final[Outcome] = (ErrorCode.none, None)

_log = structlog.get_logger(__name__)


class AclFilter(NamedTuple):
    """The entries that a request is about; None and FILTER_ANY stand for all."""

    kind: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    @classmethod
    def of(cls, fields: Any) -> "AclFilter":
        """Read the filter of a request, or of an item of it."""
        return cls(
            int(fields.resource_type_filter), fields.resource_name_filter,
            int(getattr(fields, "pattern_type_filter", Pattern.LITERAL)),
            fields.principal_filter, fields.host_filter,
            int(fields.operation), int(fields.permission_type),
        )  # fmt: skip

    def matches(self, acl: Acl) -> bool:
        """Whether the filter is about an entry."""
        return (
            self.kind in (FILTER_ANY, acl.kind)
            and self.operation in (FILTER_ANY, acl.operation)
            and self.permission in (FILTER_ANY, acl.permission)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.pattern in (FILTER_ANY, FILTER_MATCH, acl.pattern)
            and self._has_name(acl)
        )

    def _has_name(self, acl: Acl) -> bool:
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern != FILTER_MATCH:
            return False
        if acl.pattern is Pattern.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name == ANY_NAME


class RemovedAcls(NamedTuple):
    """What became of a filter.

    Attributes:
        outcome: of the filter.
        acls: the entries that it is about, with the outcome of each.
    """

    outcome: Outcome
    acls: Sequence[tuple[Acl, Outcome]] = ()


class AclsApi:
    """Handles requests about ACLs.

    Parameters:
        security: keeps the ACLs.
    """

    def __init__(self, security: Security) -> None:
        self._security: Final = security

    async def describe(self, _: Caller, header: RequestHeader, request: Any) -> bytes:
        """Return the entries in force that a filter is about."""
        return await asyncio.to_thread(self._described, header, request)  # there may be many

    def _described(self, header: RequestHeader, request: Any) -> bytes:
        response = Response(API_DESCRIBE_ACLS, header.version)
        wanted = AclFilter.of(request)
        found: dict[tuple[ResourceKind, str, Pattern], list[Any]] = {}
        for acl in sorted(filter(wanted.matches, self._acls())):
            found.setdefault((acl.kind, acl.name, acl.pattern), []).append(
                response.part(
                    "AclDescription", principal=acl.principal, host=acl.host,
                    operation=acl.operation, permission_type=acl.permission,
                )
            )  # fmt: skip
        rows = tuple(
            response.part(
                "DescribeAclsResource", resource_type=kind, resource_name=name,
                pattern_type=pattern, acls=tuple(acls),
            )
            for (kind, name, pattern), acls in found.items()
        )  # fmt: skip
        return response.encode(
            header.correlation_id, error_code=ErrorCode.none, error_message=None, resources=rows
        )

    async def create(self, caller: Caller, header: RequestHeader, request: Any) -> bytes:
        """Add entries: all valid ones, together."""
        response = Response(API_CREATE_ACLS, header.version)
        entries: list[Acl | Outcome] = []
        for each in request.creations:
            try:
                entries.append(self._valid(_created(each)))
            except AclError as error:
                entries.append((ErrorCode.invalid_request, str(error)))
        added = [each for each in entries if isinstance(each, Acl)]
        outcomes = await self._add(added) if added else []
        for acl, outcome in zip(added, outcomes, strict=True):
            self._audit(caller, "CREATE_ACL", acl, outcome)
        of_added = iter(outcomes)
        rows = tuple(
            response.part("AclCreationResult", error_code=code, error_message=message)
            for code, message in (
                next(of_added) if isinstance(each, Acl) else each for each in entries
            )
        )
        return response.encode(header.correlation_id, results=rows)

    async def delete(self, caller: Caller, header: RequestHeader, request: Any) -> bytes:
        """Remove the entries that filters are about."""
        response = Response(API_DELETE_ACLS, header.version)
        removed = await self._remove([AclFilter.of(each) for each in request.filters])
        for each in removed:
            for acl, outcome in each.acls:
                self._audit(caller, "DELETE_ACL", acl, outcome)
        rows = tuple(
            response.part(
                "DeleteAclsFilterResult", error_code=each.outcome[0], error_message=each.outcome[1],
                matching_acls=() if each.outcome[0] is not ErrorCode.none else tuple(
                    response.part(
                        "DeleteAclsMatchingAcl", error_code=code, error_message=message,
                        resource_type=acl.kind, resource_name=acl.name, pattern_type=acl.pattern,
                        principal=acl.principal, host=acl.host, operation=acl.operation,
                        permission_type=acl.permission,
                    )
                    for acl, (code, message) in each.acls
                ),
            )
            for each in removed
        )  # fmt: skip
        return response.encode(header.correlation_id, filter_results=rows)

    def _acls(self) -> frozenset[Acl]:
        authorizer = self._security.authorizer
        return authorizer.acls if authorizer is not None else frozenset()

    # ------------------------------------------------------------------ where the entries stand

    def _valid(self, acl: Acl) -> Acl:
        """Return an entry if it may be added.

        Raises:
            AclError: it may not.
        """
        return checked(acl)

    async def _add(self, added: Sequence[Acl]) -> Sequence[Outcome]:
        """Add entries, and return the outcome of each."""
        outcome = await self._change(lambda acls: acls | set(added))
        return [outcome] * len(added)

    async def _remove(self, filters: Sequence[AclFilter]) -> Sequence[RemovedAcls]:
        """Remove the entries that filters are about, and return what became of each filter."""
        removed: list[list[Acl]] = [[] for _ in filters]

        def without(acls: frozenset[Acl]) -> Iterable[Acl]:
            for number, each in enumerate(filters):
                removed[number] = sorted(filter(each.matches, acls))
            return acls.difference(*removed)

        outcome = await self._change(without)
        return [RemovedAcls(outcome, [(acl, outcome) for acl in each]) for each in removed]

    async def _change(self, alter: Any) -> Outcome:
        try:
            await self._security.change_acls(alter)
        except (OSError, EntryFileError) as error:
            _log.error("a change of the ACLs was not stored", error=str(error))
            return ErrorCode.unknown_server_error, reason_of(error)
        return DONE

    def _audit(self, caller: Caller, operation: str, acl: Acl, outcome: Outcome) -> None:
        what = (f"{acl.permission.name} {acl.operation.name} {acl.kind.name}:{acl.name}"
                f" {acl.pattern.name} {acl.principal} {acl.host}")  # fmt: skip
        result = "success" if outcome[0] is ErrorCode.none else "failed"
        self._security.audit.write("change", *caller, operation, what, result)


def _created(fields: Any) -> Acl:
    """Return the entry of a request.

    Raises:
        AclError: a number is unknown.
    """
    pattern = getattr(fields, "resource_pattern_type", Pattern.LITERAL)
    return acl_of(fields.resource_type, pattern, fields.resource_name, fields)
