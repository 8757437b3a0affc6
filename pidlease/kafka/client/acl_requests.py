"""Reads and changes the ACLs of a cluster.

Entries and filters are given, and returned, by the schema's names: this module knows no rules.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pidlease.kafka.api import API_CREATE_ACLS, API_DELETE_ACLS, API_DESCRIBE_ACLS
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.exchange import ask, ask_for, read_slowly, request_for
from pidlease.kafka.codec.messages import error_name
from pidlease.kafka.error_codes import CLUSTER_AUTHORIZATION_FAILED, SECURITY_DISABLED
from pidlease.kafka.errors import UpstreamAwayError, UpstreamRefusedError

#: Matches all resources, patterns, operations and permissions.
_ANY: Final = 1
#: Bytes of the correlation id, which is another one in each response.
_ID_BYTES: Final = 4
_REFUSALS: Final[Mapping[int, str]] = {
    SECURITY_DISABLED: "has no authorizer, so it has no ACLs: set authorizer.class.name there",
    CLUSTER_AUTHORIZATION_FAILED: (
        "does not let this server read its ACLs: the server's user needs Describe on the cluster"
    ),
}


async def describe_acls(connection: BrokerConnection, known: bytes) -> tuple[bytes, Any]:
    """Return all ACLs that a broker knows: the bytes of the response, and the response.

    Parameters:
        known: the bytes of an earlier one. If they are the same, it is not decoded again, and the
            response is None: many ACLs take long.

    Raises:
        UpstreamRefusedError: the cluster has no authorizer, or this client has no right.
        UpstreamError: there is no response.
    """
    request = request_for(connection, API_DESCRIBE_ACLS)
    body = request.encode(
        resource_type_filter=_ANY, resource_name_filter=None, pattern_type_filter=_ANY,
        principal_filter=None, host_filter=None, operation=_ANY, permission_type=_ANY,
    )  # fmt: skip
    frame = await ask_for(connection, body, lambda frame: frame)
    content = bytes(frame[_ID_BYTES:])
    if content == known:
        return known, None
    response = await read_slowly(connection, request, frame)
    code = int(response.error_code.value)
    if code in _REFUSALS:
        raise UpstreamRefusedError(f"{connection} {_REFUSALS[code]}", code)
    if code:
        raise UpstreamAwayError(f"{connection} does not return its ACLs: {error_name(code)}")
    return content, response


async def create_acls(
    connection: BrokerConnection, creations: Iterable[Mapping[str, object]]
) -> Any:  # noqa: ANN401 - one of kio's classes
    """Add ACLs, and return the response, which has an error code for each.

    Raises:
        UpstreamError: there is no response.
    """
    request = request_for(connection, API_CREATE_ACLS)
    parts = tuple(request.part("AclCreation", **each) for each in creations)
    return await ask(connection, request, request.encode(creations=parts))


async def delete_acls(connection: BrokerConnection, filters: Iterable[Mapping[str, object]]) -> Any:  # noqa: ANN401 - one of kio's classes
    """Delete the ACLs that filters are about, and return the response, which has those of each.

    Raises:
        UpstreamError: there is no response.
    """
    request = request_for(connection, API_DELETE_ACLS)
    parts = tuple(request.part("DeleteAclsFilter", **each) for each in filters)
    return await ask(connection, request, request.encode(filters=parts))
