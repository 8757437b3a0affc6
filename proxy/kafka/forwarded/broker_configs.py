"""Settings of Kafka's brokers: they are not asked for here.

They name addresses, and clients know one broker only, which is none of Kafka's.
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

#: Requests about resources that may be brokers.
OF_BROKERS: Final = (
    API_DESCRIBE_CONFIGS,
    API_ALTER_CONFIGS,
    API_INCREMENTAL_ALTER_CONFIGS,
)
#: Types of resources (org.apache.kafka.common.config.ConfigResource): a broker, and its loggers.
_BROKERS: Final = (4, 8)
_REASON: Final = "settings of brokers are asked of Kafka itself"


def refuse_brokers(header: RequestHeader, frame: bytearray) -> bytes | None:
    """The answer to a request that is about brokers, too; None: it is about none.

    Raises:
        MalformedError: it is none.
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
