"""CreateAcls (30) and DeleteAcls (31) on Kafka's own ACLs.

The client's right is checked before; Kafka makes the change for the server's own user.
"""

from collections.abc import Sequence
from typing import Any, Final

import structlog
from kio.schema.errors import ErrorCode
from typing_extensions import override

from pidlease.kafka.errors import UpstreamAwayError, UpstreamError, UpstreamLostError
from proxy.kafka.access.acls_api import (
    DONE,
    AclFilter,
    AclsApi,
    Outcome,
    RemovedAcls,
)
from proxy.kafka.access.failed_changes import NOT_STORED
from proxy.security.acls import Acl
from proxy.security.kafka_acls import KafkaAcls, acl_in
from proxy.security.security import Security

_AWAY: Final[Outcome] = (
    ErrorCode.broker_not_available, "Kafka does not answer; nothing was changed"
)  # fmt: skip
_UNKNOWN: Final[Outcome] = ErrorCode.unknown_server_error, NOT_STORED
_NO_RIGHT: Final[Outcome] = (
    ErrorCode.cluster_authorization_failed,
    "Kafka does not let pidlease change its ACLs: pidlease's user there needs Alter on the cluster",
)

_log = structlog.get_logger(__name__)


class KafkaAclsApi(AclsApi):
    """Has Kafka change its ACLs, and responds when the change is in force here.

    Parameters:
        kafka: Kafka's ACLs.
    """

    def __init__(self, security: Security, kafka: KafkaAcls) -> None:
        super().__init__(security)
        self._kafka: Final = kafka

    @override
    def _valid(self, acl: Acl) -> Acl:
        return acl  # Kafka decides

    @override
    async def _add(self, added: Sequence[Acl]) -> Sequence[Outcome]:
        creations = [
            {
                "resource_type": acl.kind, "resource_pattern_type": acl.pattern,
                "resource_name": acl.name, "principal": acl.principal, "host": acl.host,
                "operation": acl.operation, "permission_type": acl.permission,
            }
            for acl in added
        ]  # fmt: skip
        try:
            response = await self._kafka.create(creations)
        except UpstreamError as error:
            return [_failed(error)] * len(added)
        outcomes = [_outcome(each) for each in response.results]
        outcomes += [_UNKNOWN] * (len(added) - len(outcomes))
        created = {acl for acl, outcome in zip(added, outcomes, strict=True) if outcome == DONE}
        if created:
            await self._kafka.wait_until(lambda acls: acls >= created)
        return outcomes

    @override
    async def _remove(self, filters: Sequence[AclFilter]) -> Sequence[RemovedAcls]:
        wanted = [
            {
                "resource_type_filter": each.kind, "resource_name_filter": each.name,
                "pattern_type_filter": each.pattern, "principal_filter": each.principal,
                "host_filter": each.host, "operation": each.operation,
                "permission_type": each.permission,
            }
            for each in filters
        ]  # fmt: skip
        try:
            response = await self._kafka.delete(wanted)
            removed = [_removed(each) for each in response.filter_results]
        except UpstreamError as error:
            return [RemovedAcls(_failed(error))] * len(filters)
        removed += [RemovedAcls(_UNKNOWN)] * (len(filters) - len(removed))
        gone = {acl for each in removed for acl, outcome in each.acls if outcome == DONE}
        if gone:
            await self._kafka.wait_until(gone.isdisjoint)
        return removed


def _removed(result: Any) -> RemovedAcls:
    """Return what became of a filter, by Kafka's response.

    Raises:
        UpstreamRefusedError: an ACL has an unknown pattern or permission.
    """
    acls = [(acl_in(each, each), _outcome(each)) for each in result.matching_acls]
    return RemovedAcls(_outcome(result), [(acl, done) for acl, done in acls if acl is not None])


def _outcome(result: Any) -> Outcome:
    if result.error_code is ErrorCode.none:
        return DONE
    if result.error_code is ErrorCode.cluster_authorization_failed:
        return _NO_RIGHT
    return result.error_code, result.error_message


def _failed(error: UpstreamError) -> Outcome:
    _log.error("Kafka has not confirmed a change of its ACLs", error=str(error))
    away = isinstance(error, UpstreamAwayError) and not isinstance(error, UpstreamLostError)
    return _AWAY if away else _UNKNOWN
