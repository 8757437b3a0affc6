"""CreateTopics (19) and CreatePartitions (37) on the embedded log.

The errors are those of Kafka's controller (ControllerApis, ReplicationControlManager).
"""

import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from pidlease.engine.engine import (
    Engine,
    PartitionCountError,
    TooManyPartitionsError,
    TopicExistsError,
    UnknownTopicError,
)
from pidlease.engine.topics.topic_table import TopicCollisionError
from pidlease.kafka.codec.metadata import NODE_ID
from pidlease.kafka.codec.time_slices import counted
from pidlease.storage.topics.stream_settings import STREAM_SETTINGS
from pidlease.storage.topics.topic_settings import check_change
from pidlease.storage.topics.topic_store import Topic, illegal_name
from proxy.kafka.admin.admin_changes import AdminChanges, deadline_of
from proxy.kafka.admin.change_outcome import DONE, TIMED_OUT, Verdict, not_stored
from proxy.kafka.admin.config_entries import Setting, UnfitSettingError, own_settings, synonyms
from proxy.kafka.admin.response_rows import Rows
from proxy.kafka.listener_config import ClusterConfig


class CreatingApi:
    """Creates topics, and adds partitions to them.

    Parameters:
        settings: the settings of a topic, by name.
        check_settings: raises ValueError for invalid topic settings.
    """

    def __init__(
        self,
        engine: Engine,
        config: ClusterConfig,
        settings: Mapping[str, Setting],
        check_settings: Callable[[dict[str, str]], None],
        changes: AdminChanges,
    ) -> None:
        self._engine = engine
        self._config = config
        self._settings = settings
        self._check_settings = check_settings
        self._changes = changes

    # ------------------------------------------------------------------ CreateTopics

    async def create_topics(self, request: Any, rows: Rows) -> None:
        """Answer CreateTopics."""
        deadline = deadline_of(request.timeout)
        names = await counted(topic.name for topic in request.topics)
        timed_out: tuple[Topic | None, Verdict] = None, TIMED_OUT
        for asked in request.topics:
            created: Topic | None = None
            if names[asked.name] > 1:
                verdict = Verdict(ErrorCode.invalid_request, "the topic is named twice")
            elif request.validate_only:
                created, verdict = self._new_topic(asked)
            else:
                work = partial(self._create, asked)
                created, verdict = await self._changes.run(work, deadline, timed_out)
            await self._add_row(rows, asked, created, verdict, new=not request.validate_only)

    async def _create(self, asked: Any) -> tuple[Topic | None, Verdict]:
        topic, verdict = self._new_topic(asked)
        if topic is None:
            return None, verdict
        try:
            await self._engine.create_topic(topic)
        except TopicExistsError as error:
            return None, Verdict(ErrorCode.topic_already_exists, str(error))
        except TopicCollisionError as error:
            return None, Verdict(ErrorCode.invalid_topic_exception, str(error))
        except TooManyPartitionsError as error:
            return None, Verdict(ErrorCode.invalid_partitions, str(error))
        except OSError as error:
            return None, not_stored(error)
        return topic, verdict

    def _new_topic(self, asked: Any) -> tuple[Topic | None, Verdict]:
        """Return the topic to create, or None and the error."""
        verdict = self._check(asked)
        if verdict.code is not ErrorCode.none:
            return None, verdict
        try:
            given = [(config.name, config.value) for config in asked.configs]
            own = own_settings(given, self._settings)
            check_change({}, own)
            self._check_settings(own)
        except (UnfitSettingError, ValueError) as error:
            return None, Verdict(ErrorCode.invalid_config, str(error))
        return Topic.new(asked.name, self._partitions(asked), own), verdict

    def _check(self, asked: Any) -> Verdict:
        reason = illegal_name(asked.name) or self._engine.name_collision(asked.name)
        if reason:
            return Verdict(ErrorCode.invalid_topic_exception, reason)
        if asked.name in self._engine.topics:
            return Verdict(ErrorCode.topic_already_exists, f"topic {asked.name} exists")
        if asked.assignments and any(
            set(each.broker_ids) != {NODE_ID} for each in asked.assignments
        ):
            return Verdict(ErrorCode.invalid_replica_assignment, f"the only broker is {NODE_ID}")
        if not asked.assignments and asked.replication_factor not in (-1, 1):
            reason = f"replication factor {asked.replication_factor}; there is one broker"
            return Verdict(ErrorCode.invalid_replication_factor, reason)
        partitions, left = self._partitions(asked), self._engine.partitions_left
        if partitions < 1:
            return Verdict(ErrorCode.invalid_partitions, f"{asked.num_partitions} partitions")
        if partitions > left:
            return _too_many(left)
        return DONE

    def _partitions(self, asked: Any) -> int:
        if asked.assignments:
            return len(asked.assignments)
        if asked.num_partitions == -1:
            return self._config.default_partitions
        return int(asked.num_partitions)

    async def _add_row(
        self, rows: Rows, asked: Any, created: Topic | None, verdict: Verdict, *, new: bool
    ) -> None:
        await rows.add(
            "CreatableTopicResult",
            name=asked.name,
            topic_id=uuid.UUID(created.topic_id) if created is not None and new else None,
            error_code=verdict.code,
            error_message=verdict.message,
            num_partitions=created.partitions if created is not None else -1,
            replication_factor=1 if created is not None else -1,
            configs=self._configs(rows, created) if created is not None else (),
            topic_config_error_code=0,
        )

    def _configs(self, rows: Rows, topic: Topic) -> tuple[Any, ...]:
        """Return the settings of a new topic, from version 5 on (KIP-525)."""
        if rows.version < 5:
            return ()
        found = []
        shared = self._engine.all_topics_settings
        for setting in self._settings.values():
            name = setting.name
            if name in STREAM_SETTINGS and name not in topic.overrides:
                continue  # they have no default
            (first, *_) = synonyms(setting, topic.overrides.get(name), shared.get(name))
            found.append(
                rows.response.part(
                    "CreatableTopicConfigs",
                    name=name,
                    value=first.value,
                    read_only=not setting.writable,
                    config_source=first.source.value,
                    is_sensitive=False,
                )
            )
        return tuple(found)

    # ------------------------------------------------------------------ CreatePartitions

    async def create_partitions(self, request: Any, rows: Rows) -> None:
        """Answer CreatePartitions."""
        deadline = deadline_of(request.timeout)
        names = await counted(topic.name for topic in request.topics)
        for asked in request.topics:
            name = asked.name
            times = names.pop(name, 0)
            if not times:
                continue  # its row has been added
            if times > 1:
                verdict = Verdict(ErrorCode.invalid_request, "the topic is named twice")
            else:
                verdict = self._check_partitions(asked)
            if verdict is DONE and not request.validate_only:
                work = partial(self._add_partitions, name, asked.count)
                verdict = await self._changes.run(work, deadline, TIMED_OUT)
            await rows.add(
                "CreatePartitionsTopicResult",
                name=name,
                error_code=verdict.code,
                error_message=verdict.message,
            )

    def _check_partitions(self, asked: Any) -> Verdict:
        topic = self._engine.topics.get(asked.name)
        if topic is None:
            reason = "there is no topic of that name"
            return Verdict(ErrorCode.unknown_topic_or_partition, reason)
        more, left = asked.count - topic.partitions, self._engine.partitions_left
        if more <= 0:
            reason = f"the topic has {topic.partitions} partitions; {asked.count} are not more"
            return Verdict(ErrorCode.invalid_partitions, reason)
        if asked.assignments is not None and (
            len(asked.assignments) != more
            or any(set(each.broker_ids) != {NODE_ID} for each in asked.assignments)
        ):
            reason = f"the assignment is not for {more} more partitions, each on broker {NODE_ID}"
            return Verdict(ErrorCode.invalid_replica_assignment, reason)
        if more > left:
            return _too_many(left)
        return DONE

    async def _add_partitions(self, name: str, total: int) -> Verdict:
        try:
            await self._engine.add_partitions(name, total)
        except UnknownTopicError as error:
            return Verdict(ErrorCode.unknown_topic_or_partition, str(error))
        except (PartitionCountError, TooManyPartitionsError) as error:
            return Verdict(ErrorCode.invalid_partitions, str(error))
        except OSError as error:
            return not_stored(error)
        return DONE


def _too_many(left: int) -> Verdict:
    return Verdict(ErrorCode.invalid_partitions, f"only {left} more partitions can be created")
