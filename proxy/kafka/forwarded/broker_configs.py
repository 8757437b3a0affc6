"""Rejects requests for the settings of Kafka's brokers.

These settings contain brokers' addresses, and the only broker that clients see is pidlease.
"""

from typing import Final

from kio.schema.errors import ErrorCode

from pidlease.kafka.api import (
    API_ALTER_CONFIGS,
    API_DESCRIBE_CONFIGS,
    API_INCREMENTAL_ALTER_CONFIGS,
)
from pidlease.kafka.codec.messages import Response, read_request
from pidlease.kafka.codec.primitives import RequestHeader

#: Requests about resources, which may be brokers.
OF_BROKERS: Final = (
    API_DESCRIBE_CONFIGS,
    API_ALTER_CONFIGS,
    API_INCREMENTAL_ALTER_CONFIGS,
)
#: Resource types (org.apache.kafka.common.config.ConfigResource): a broker, and its loggers.
_BROKERS: Final = (4, 8)
_REASON: Final = "settings of brokers are asked of Kafka itself"


def refuse_brokers(header: RequestHeader, frame: bytearray) -> bytes | None:
    """Return the error response to a request that names a broker; None for other requests.

    Raises:
        MalformedError: the frame is not a valid request.
    """
    request = read_request(header, frame)
    if all(each.resource_type not in _BROKERS for each in request.resources):
        return None
    response = Response(header.api_key, header.version)
    describing = header.api_key == API_DESCRIBE_CONFIGS
    kind = "DescribeConfigsResult" if describing else "AlterConfigsResourceResponse"
    rows = tuple(
        response.part(
            kind, error_code=ErrorCode.invalid_request, error_message=_REASON, configs=(),
            resource_type=each.resource_type, resource_name=each.resource_name,
        )
        for each in request.resources
    )  # fmt: skip
    field = "results" if describing else "responses"
    return response.encode(header.correlation_id, **{field: rows})
