"""CreateTopics version 4, the first that leaves the replication to the cluster (KIP-464).

aiokafka knows it up to version 3, which looks the same. Source: Kafka's CreateTopicsRequest.json.
"""

from typing import Final, NamedTuple

from aiokafka.protocol.admin import CreateTopicsRequest_v3, CreateTopicsResponse_v3
from aiokafka.protocol.api import Request, RequestStruct, Response

from pidlease.kafka.api import API_CREATE_TOPICS

_VERSION: Final = 4
#: As the cluster does it.
_DEFAULT_REPLICATION: Final = -1


class _Answer(Response):  # type: ignore[misc]  # aiokafka is not typed
    API_KEY = API_CREATE_TOPICS
    API_VERSION = _VERSION
    SCHEMA = CreateTopicsResponse_v3.SCHEMA


class _Struct(RequestStruct):  # type: ignore[misc]  # aiokafka is not typed
    API_KEY = API_CREATE_TOPICS
    API_VERSION = _VERSION
    RESPONSE_TYPE = _Answer
    SCHEMA = CreateTopicsRequest_v3.SCHEMA


class NewTopic(NamedTuple):
    """A topic to be made."""

    name: str
    partitions: int


class CreateTopic(Request[_Struct]):  # type: ignore[misc]  # aiokafka is not typed
    """Asks for a topic.

    Parameters:
        topic: the topic.
        timeout_ms: how long the cluster may take.
    """

    API_KEY = API_CREATE_TOPICS

    def __init__(self, topic: NewTopic, timeout_ms: int) -> None:
        self._topic: Final = topic
        self._timeout_ms: Final = timeout_ms

    def build(self, request_struct_class: type[_Struct]) -> _Struct:
        """See aiokafka."""
        name, partitions = self._topic
        none: list[object] = []
        topics = [(name, partitions, _DEFAULT_REPLICATION, none, none)]
        return request_struct_class(topics, self._timeout_ms, False)  # noqa: FBT003 - not only tried
