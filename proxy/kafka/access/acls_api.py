"""DescribeAcls (29), CreateAcls (30), DeleteAcls (31), so that `kafka-acls.sh` works.

Source: AclAuthorizer and ResourcePatternFilter of Kafka. The entries stand in the file of the ACLs.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import structlog
from kio.schema.errors import ErrorCode

from pidlease.kafka.api import API_CREATE_ACLS, API_DELETE_ACLS, API_DESCRIBE_ACLS
from pidlease.kafka.codec.messages import Response
from pidlease.kafka.codec.primitives import RequestHeader
from proxy.security.acls import (
    ANY_NAME,
    FILTER_ANY,
    FILTER_MATCH,
    Acl,
    AclError,
    Operation,
    Pattern,
    Permission,
    ResourceKind,
    checked,
)
from proxy.security.authorizer import Caller
from proxy.security.entry_file import EntryFileError
from proxy.security.security import Security

_NOT_STORED: Final = "the change may have been stored or not; the server's log says why"

_log = structlog.get_logger(__name__)


class _Filter(NamedTuple):
    """The entries that a request is about; None and FILTER_ANY stand for all."""

    kind: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    @classmethod
    def of(cls, fields: Any) -> "_Filter":
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


class AclsApi:
    """Handles requests about ACLs.

    Parameters:
        security: keeps the ACLs.
    """

    def __init__(self, security: Security) -> None:
        self._security: Final = security

    async def describe(self, _: Caller, header: RequestHeader, request: Any) -> bytes:
        """Return the entries that a filter is about."""
        response = Response(API_DESCRIBE_ACLS, header.version)
        wanted = _Filter.of(request)
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
        added: list[Acl] = []
        results: list[tuple[ErrorCode, str | None]] = []
        for each in request.creations:
            try:
                added.append(_created(each))
                results.append((ErrorCode.none, None))
            except AclError as error:
                results.append((ErrorCode.invalid_request, str(error)))
        failure = await self._change(lambda acls: acls | set(added)) if added else None
        if failure is not None:
            results = [failure if code is ErrorCode.none else (code, message)
                       for code, message in results]  # fmt: skip
        self._audit(caller, "CREATE_ACL", added, failure)
        rows = tuple(
            response.part("AclCreationResult", error_code=code, error_message=message)
            for code, message in results
        )
        return response.encode(header.correlation_id, results=rows)

    async def delete(self, caller: Caller, header: RequestHeader, request: Any) -> bytes:
        """Remove the entries that filters are about."""
        response = Response(API_DELETE_ACLS, header.version)
        filters = [_Filter.of(each) for each in request.filters]
        removed: list[list[Acl]] = [[] for _ in filters]

        def without(acls: frozenset[Acl]) -> Iterable[Acl]:
            for number, each in enumerate(filters):
                removed[number] = sorted(filter(each.matches, acls))
            return acls.difference(*removed)

        failure = await self._change(without)
        code, message = failure or (ErrorCode.none, None)
        self._audit(caller, "DELETE_ACL", [acl for each in removed for acl in each], failure)
        rows = tuple(
            response.part(
                "DeleteAclsFilterResult", error_code=code, error_message=message,
                matching_acls=() if failure else tuple(
                    response.part(
                        "DeleteAclsMatchingAcl", error_code=ErrorCode.none, error_message=None,
                        resource_type=acl.kind, resource_name=acl.name, pattern_type=acl.pattern,
                        principal=acl.principal, host=acl.host, operation=acl.operation,
                        permission_type=acl.permission,
                    )
                    for acl in acls
                ),
            )
            for acls in removed
        )  # fmt: skip
        return response.encode(header.correlation_id, filter_results=rows)

    def _acls(self) -> frozenset[Acl]:
        authorizer = self._security.authorizer
        return authorizer.acls if authorizer is not None else frozenset()

    async def _change(self, alter: Any) -> tuple[ErrorCode, str | None] | None:
        """Change the entries; return the error, or None."""
        try:
            await self._security.change_acls(alter)
        except (OSError, EntryFileError) as error:
            _log.error("a change of the ACLs was not stored", error=str(error))
            return ErrorCode.unknown_server_error, _NOT_STORED
        return None

    def _audit(self, caller: Caller, operation: str, acls: Iterable[Acl], failure: object) -> None:
        for acl in acls:
            what = (f"{acl.permission.name} {acl.operation.name} {acl.kind.name}:{acl.name}"
                    f" {acl.pattern.name} {acl.principal} {acl.host}")  # fmt: skip
            outcome = "success" if failure is None else "failed"
            self._security.audit.write("change", *caller, operation, what, outcome)


def _created(fields: Any) -> Acl:
    """Return the entry of a request.

    Raises:
        AclError: it is invalid.
    """
    try:
        return checked(
            Acl(
                ResourceKind(int(fields.resource_type)),
                Pattern(int(getattr(fields, "resource_pattern_type", Pattern.LITERAL))),
                fields.resource_name, fields.principal, fields.host,
                Operation(int(fields.operation)), Permission(int(fields.permission_type)),
            )
        )  # fmt: skip
    except ValueError as error:
        raise AclError(str(error)) from None
