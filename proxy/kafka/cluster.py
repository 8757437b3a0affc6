"""What describes the server to a client: ApiVersions, Metadata, CreateTopics, and what is missing.

The server is a cluster of one broker, which leads every partition and is the controller.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import structlog
from kio.schema.errors import ErrorCode

from pidlease.engine.engine import Engine, TooManyPartitionsError, TopicExistsError
from pidlease.storage.topics import Topic, illegal_name
from proxy.kafka.messages import Response, read_request
from proxy.kafka.wire import RequestHeader

#: The one broker's id.
NODE_ID: Final = 1
_METADATA: Final = 3
_FIND_COORDINATOR: Final = 10
_API_VERSIONS: Final = 18
_CREATE_TOPICS: Final = 19
#: Topics that one request may create or ask for.
_TOPICS_MAX: Final = 10_000
_TOPICS_AT_ONCE: Final = 100
_NO_OPERATIONS: Final = -(2**31)
#: From this version of Metadata on a topic may be asked for by its id alone.
_BY_ID_FROM: Final = 12
_NO_UUID: Final = uuid.UUID(int=0)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """How the server describes itself, and makes topics.

    Attributes:
        cluster_id: of the data directory.
        host: where clients are to connect,
        port: and on which port.
        auto_create: whether a topic is made when it is first asked for.
        default_partitions: how many partitions a topic gets that does not say.
    """

    cluster_id: str
    host: str
    port: int
    auto_create: bool = True
    default_partitions: int = 1


class ClusterApi:
    """Answers the requests named in the module's text.

    Parameters:
        engine: where the topics are.
        config: how the server describes itself.
        check_settings: raises ValueError for topic settings that make no sense.
        versions: the APIs and versions that are served: key -> (lowest, highest).
    """

    def __init__(
        self,
        engine: Engine,
        config: ClusterConfig,
        check_settings: Callable[[dict[str, str]], None],
        versions: dict[int, tuple[int, int]],
    ) -> None:
        self._engine = engine
        self._config = config
        self._check_settings = check_settings
        self._versions = versions

    # ------------------------------------------------------------------ ApiVersions (18)

    def api_versions(self, header: RequestHeader) -> bytes:
        """Answer ApiVersions; of an unknown version with error 35 in version 0 (KIP-511)."""
        lowest, highest = self._versions[_API_VERSIONS]
        known = lowest <= header.version <= highest
        response = Response(_API_VERSIONS, header.version if known else 0)
        served = self._versions.items() if known else [(_API_VERSIONS, (lowest, highest))]
        return response.encode(
            header.correlation_id,
            error_code=ErrorCode.none if known else ErrorCode.unsupported_version,
            api_keys=tuple(
                _api_version(response, key, low, high) for key, (low, high) in sorted(served)
            ),
        )

    # ------------------------------------------------------------------ Metadata (3)

    async def metadata(self, header: RequestHeader, frame: bytearray) -> bytes:
        """Answer Metadata; topics that are named for the first time are made, if so set."""
        request = read_request(header, frame)
        response = Response(_METADATA, header.version)
        # Null means all topics; in version 0 an empty array does.
        everything = request.topics is None or (header.version == 0 and not request.topics)
        if everything:
            topics = [self._topic(response, topic) for topic in self._engine.topics.values()]
        else:
            create = self._config.auto_create and getattr(
                request, "allow_auto_topic_creation", True
            )
            # Each once, however often it is named.
            asked_for = {(asked.name, getattr(asked, "topic_id", None)): asked
                         for asked in request.topics[:_TOPICS_MAX]}  # fmt: skip
            topics = []
            for asked in asked_for.values():
                topics.append(await self._asked(response, asked, create=create))
                await asyncio.sleep(0)  # others want to be served, too
        broker = response.part(
            "Broker", node_id=NODE_ID, host=self._config.host, port=self._config.port, rack=None
        )
        return response.encode(
            header.correlation_id,
            brokers=(broker,),
            cluster_id=self._config.cluster_id,
            controller_id=NODE_ID,
            topics=tuple(topics),
            cluster_authorized_operations=_NO_OPERATIONS,
            error_code=ErrorCode.none,
        )

    async def _asked(self, response: Response, asked: Any, *, create: bool) -> Any:
        name = asked.name
        if name is None and asked.topic_id is None:
            return _no_topic(response, "", _NO_UUID, ErrorCode.invalid_request)
        if name is None and response.version < _BY_ID_FROM:
            return _no_topic(response, "", asked.topic_id, ErrorCode.invalid_request)
        if name is None:
            for topic in self._engine.topics.values():
                if topic.topic_id == asked.topic_id.hex:
                    return self._topic(response, topic)
            return _no_topic(response, None, asked.topic_id, ErrorCode.unknown_topic_id)
        if create and name not in self._engine.topics and not illegal_name(name):
            try:
                await self._engine.create_topic(Topic.new(name, self._config.default_partitions))
            except TopicExistsError:
                pass  # somebody else asked at the same time
            except (OSError, TooManyPartitionsError) as error:
                _log.error("topic not created", topic=name, error=str(error))
        found = self._engine.topics.get(name)
        if found is not None:
            return self._topic(response, found)
        code = (
            ErrorCode.invalid_topic_exception
            if illegal_name(name)
            else ErrorCode.unknown_topic_or_partition
        )
        return _no_topic(response, name, _NO_UUID, code)

    def _topic(self, response: Response, topic: Topic) -> Any:
        partitions = tuple(
            response.part(
                "Partition",
                error_code=ErrorCode.none,
                partition_index=index,
                leader_id=NODE_ID,
                leader_epoch=0,
                replica_nodes=(NODE_ID,),
                isr_nodes=(NODE_ID,),
                offline_replicas=(),
            )
            for index in range(topic.partitions)
        )
        return response.part(
            "Topic",
            error_code=ErrorCode.none,
            name=topic.name,
            topic_id=uuid.UUID(topic.topic_id),
            is_internal=False,
            partitions=partitions,
            topic_authorized_operations=_NO_OPERATIONS,
        )

    # ------------------------------------------------------------------ CreateTopics (19)

    async def create_topics(self, header: RequestHeader, frame: bytearray) -> bytes:
        """Answer CreateTopics."""
        request = read_request(header, frame)
        response = Response(_CREATE_TOPICS, header.version)
        names = Counter(topic.name for topic in request.topics)
        results = []
        for number, asked in enumerate(request.topics[:_TOPICS_MAX]):
            if number % _TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)  # others want to be served, too
            code: ErrorCode = ErrorCode.invalid_request
            message: str | None = "the topic is named twice"
            if names[asked.name] == 1:
                code, message = await self._create(asked, validate_only=request.validate_only)
            results.append(self._created(response, asked, code, message))
        return response.encode(header.correlation_id, topics=tuple(results))

    async def _create(self, asked: Any, *, validate_only: bool) -> tuple[ErrorCode, str | None]:
        code, reason = self._wrong(asked)
        if code is not ErrorCode.none or validate_only:
            return code, reason
        overrides = {config.name: config.value or "" for config in asked.configs}
        topic = Topic.new(asked.name, self._partitions(asked), overrides)
        try:
            await self._engine.create_topic(topic)
        except TopicExistsError as error:
            return ErrorCode.topic_already_exists, str(error)
        except TooManyPartitionsError as error:
            return ErrorCode.invalid_partitions, str(error)
        except OSError as error:
            return ErrorCode.kafka_storage_error, str(error)
        return ErrorCode.none, None

    def _wrong(self, asked: Any) -> tuple[ErrorCode, str | None]:
        reason = illegal_name(asked.name)
        if reason:
            return ErrorCode.invalid_topic_exception, reason
        if asked.name in self._engine.topics:
            return ErrorCode.topic_already_exists, f"topic {asked.name} exists"
        if asked.assignments and any(
            set(each.broker_ids) != {NODE_ID} for each in asked.assignments
        ):
            return ErrorCode.invalid_replica_assignment, f"the only broker is {NODE_ID}"
        if not asked.assignments and asked.replication_factor not in (-1, 1):
            reason = f"replication factor {asked.replication_factor}; there is one broker"
            return ErrorCode.invalid_replication_factor, reason
        if self._partitions(asked) < 1:
            return ErrorCode.invalid_partitions, f"{asked.num_partitions} partitions"
        if self._partitions(asked) > self._engine.partitions_left:
            reason = f"only {self._engine.partitions_left} partitions more may be made"
            return ErrorCode.invalid_partitions, reason
        try:
            self._check_settings({config.name: config.value or "" for config in asked.configs})
        except ValueError as error:
            return ErrorCode.invalid_config, str(error)
        return ErrorCode.none, None

    def _partitions(self, asked: Any) -> int:
        if asked.assignments:
            return len(asked.assignments)
        if asked.num_partitions == -1:
            return self._config.default_partitions
        return int(asked.num_partitions)

    def _created(
        self,
        response: Response,
        asked: Any,
        code: ErrorCode,
        message: str | None,
    ) -> Any:
        made = self._engine.topics.get(asked.name) if code is ErrorCode.none else None
        return response.part(
            "CreatableTopicResult",
            name=asked.name,
            topic_id=uuid.UUID(made.topic_id) if made else None,
            error_code=code,
            error_message=message,
            num_partitions=self._partitions(asked),
            replication_factor=1,
            configs=(),
            topic_config_error_code=0,
        )

    # ------------------------------------------------------------------ FindCoordinator (10)

    def find_coordinator(self, header: RequestHeader, frame: bytearray) -> bytes:
        """Answer FindCoordinator: groups and transactions are not served yet.

        It is here because librdkafka takes a broker without it for one too old for LZ4.
        """
        request = read_request(header, frame)
        response = Response(_FIND_COORDINATOR, header.version)
        code = ErrorCode.coordinator_not_available
        message = "consumer groups and transactions are not served"
        nowhere = {"node_id": -1, "host": "", "port": -1}
        if header.version >= 4:
            coordinators = tuple(
                response.part(
                    "Coordinator", key=key, error_code=code, error_message=message, **nowhere
                )
                for key in request.coordinator_keys[:_TOPICS_MAX]
            )
            return response.encode(header.correlation_id, coordinators=coordinators)
        return response.encode(
            header.correlation_id, error_code=code, error_message=message, **nowhere
        )


def _api_version(response: Response, key: int, lowest: int, highest: int) -> Any:
    return response.part("ApiVersion", api_key=key, min_version=lowest, max_version=highest)


def _no_topic(response: Response, name: str | None, topic_id: uuid.UUID, code: ErrorCode) -> Any:
    empty: Iterable[object] = ()
    return response.part(
        "Topic",
        error_code=code,
        name=name,
        topic_id=topic_id,
        is_internal=False,
        partitions=empty,
        topic_authorized_operations=_NO_OPERATIONS,
    )
