"""ApiVersions (key 18) and DescribeCluster (key 60)."""

from collections.abc import Callable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from pidlease.kafka.api import API_API_VERSIONS, API_DESCRIBE_CLUSTER, FEATURE
from pidlease.kafka.codec.messages import Response, read_request
from pidlease.kafka.codec.primitives import RequestHeader
from proxy.kafka.brokers import Brokers
from proxy.kafka.listener_config import ClusterConfig
from proxy.kafka.served_versions import Versions

_NO_OPERATIONS: Final = -(2**31)
#: The first version of ApiVersions with features (KIP-584).
_FEATURES_SINCE: Final = 3
#: Endpoint types (org.apache.kafka.clients.admin.EndpointType); this server has brokers only.
_BROKERS: Final = 1
_CONTROLLERS: Final = 2


class ClusterApi:
    """Handles ApiVersions and DescribeCluster.

    Parameters:
        config: the address and cluster id that clients get.
        versions: returns the advertised APIs of now: key -> (lowest, highest version).
        brokers: the brokers of responses; None: this server is the only one.
    """

    def __init__(
        self,
        config: ClusterConfig,
        versions: Callable[[], Versions],
        brokers: Brokers | None = None,
    ) -> None:
        self._config = config
        self._brokers = brokers or Brokers(config)
        self._versions = versions

    def api_versions(self, header: RequestHeader) -> bytes:
        """Answer ApiVersions; an unknown version gets error 35 in version 0 (KIP-511).

        A feature says that this is pidlease: its clients send their batches to no other broker.
        """
        versions = self._versions()
        lowest, highest = versions[API_API_VERSIONS]
        known = lowest <= header.version <= highest
        response = Response(API_API_VERSIONS, header.version if known else 0)
        served = versions.items() if known else [(API_API_VERSIONS, (lowest, highest))]
        features = {}
        if known and header.version >= _FEATURES_SINCE:
            own = response.part("SupportedFeatureKey", name=FEATURE, min_version=1, max_version=1)
            features = {"supported_features": (own,)}
        return response.encode(
            header.correlation_id,
            **features,
            error_code=ErrorCode.none if known else ErrorCode.unsupported_version,
            api_keys=tuple(
                _api_version(response, key, low, high) for key, (low, high) in sorted(served)
            ),
        )

    def describe_cluster(self, header: RequestHeader, frame: bytearray, listener: str) -> bytes:
        """Answer DescribeCluster. This server has no controller endpoints.

        Parameters:
            listener: the name of the one on which the request came.
        """
        request = read_request(header, frame)
        response = Response(API_DESCRIBE_CLUSTER, header.version)
        code, message = ErrorCode.none, None
        kind = getattr(request, "endpoint_type", _BROKERS)
        if kind == _CONTROLLERS:
            code, message = ErrorCode.mismatched_endpoint_type, "this is the endpoint of a broker"
        elif kind != _BROKERS:
            code, message = ErrorCode.unsupported_endpoint_type, f"no endpoint has type {kind}"
        brokers = tuple(
            response.part(
                "DescribeClusterBroker", broker_id=each.node_id, host=each.host, port=each.port,
                rack=None, is_fenced=False,
            )
            for each in self._brokers.all(listener)
        )  # fmt: skip
        return response.encode(
            header.correlation_id,
            error_code=code,
            error_message=message,
            endpoint_type=_BROKERS,
            cluster_id=self._config.cluster_id if message is None else "",
            controller_id=self._brokers.node_id if message is None else -1,
            brokers=brokers if message is None else (),
            cluster_authorized_operations=_NO_OPERATIONS,
        )


def _api_version(response: Response, key: int, lowest: int, highest: int) -> Any:
    return response.part("ApiVersion", api_key=key, min_version=lowest, max_version=highest)
