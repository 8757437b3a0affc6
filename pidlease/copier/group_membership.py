"""The copier's place in its consumer group: which partitions are its own, and what is saved.

Joining, heartbeats and assignment are done by aiokafka's coordinator, without its consumer: that
would look for leaders without a rest while there are none. Commits are made here, for each must say
which membership it was made under. One that says none is taken by Kafka where a group is empty: a
copier that was replaced long ago would put its old checkpoint in the place of its successors'.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.structs import TopicPartition

from pidlease.copier.errors import CopyError
from pidlease.copier.settings import CLIENT_ID, METADATA_MS, CopySettings
from pidlease.kafka.error_codes import (
    COORDINATOR_MOVED,
    GROUP_BUSY,
    MEMBERSHIP_LOST,
    UNKNOWN_TOPIC_OR_PARTITION,
)

_log = logging.getLogger(__name__)

_NO_GENERATION: Final = -1
_DEFAULT_RETENTION: Final = -1
#: No record is ever taken by aiokafka, so it would seem idle for good.
_NEVER_MS: Final = 2**31 - 1
#: What was saved: an offset, and its metadata.
Saved = tuple[int, str]


class OnRevoked(Protocol):
    """Told what is not this copier's any more."""

    async def __call__(self, places: set[TopicPartition], *, lost: bool) -> None:
        """`lost`: somebody else may have it already."""


class UnavailableError(Exception):
    """The group cannot be asked now; it may be tried again."""


class ReplacedError(Exception):
    """This copier's membership is over: what it had may be somebody else's."""


class GroupMembership(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is not typed
    """See the module's text.

    Parameters:
        settings: the copy's.
        on_assigned: told which partitions are this copier's from now on.
        on_revoked: told which are not any more, and whether they are lost: somebody else may have
            them already. Awaited before the group goes on, unless they are lost.
    """

    def __init__(
        self,
        settings: CopySettings,
        on_assigned: Callable[[set[TopicPartition]], None],
        on_revoked: OnRevoked,
    ) -> None:
        self._settings: Final = settings
        self._on_assigned: Final = on_assigned
        self._on_revoked: Final = on_revoked
        self._client: Final = AIOKafkaClient(
            bootstrap_servers=settings.source,
            client_id=CLIENT_ID,
            # Joining takes as long as a session of somebody who is gone.
            request_timeout_ms=settings.request_timeout_ms + settings.session_timeout_ms,
            metadata_max_age_ms=METADATA_MS,
            **settings.source_security,
        )
        self._coordinator: GroupCoordinator | None = None
        self._generation = _NO_GENERATION
        self._member = ""

    async def start(self) -> None:
        """Join.

        Raises:
            CopyError: the source cannot be reached, or does not let this copier in.
        """
        settings = self._settings
        try:
            await self._client.bootstrap()
        except (KafkaError, OSError) as error:
            raise CopyError(f"the source {settings.source}: {error!r}") from None
        subscription = SubscriptionState()
        self._coordinator = GroupCoordinator(
            self._client,
            subscription,
            group_id=settings.group,
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=max(settings.session_timeout_ms // 5, 1),
            enable_auto_commit=False,
            max_poll_interval_ms=_NEVER_MS,
            rebalance_timeout_ms=max(settings.session_timeout_ms, settings.request_timeout_ms),
        )
        if settings.topics_regex is None:
            subscription.subscribe(set(settings.topics), listener=self)
            self._client.set_topics(settings.topics)
        else:
            subscription.subscribe_pattern(re.compile(settings.pattern), listener=self)
            self._client.set_topics([])

    async def stop(self) -> None:
        """Leave."""
        if self._coordinator is not None:
            await self._coordinator.close()
        await self._client.close()

    def check(self) -> None:
        """Raise what aiokafka would tell whoever takes records.

        Raises:
            CopyError: the group does not take this copier.
        """
        try:
            if self._coordinator is not None:
                self._coordinator.check_errors()
        except KafkaError as error:
            raise CopyError(f"group {self._settings.group}: {error!r}") from None

    # ------------------------------------------------------------------ aiokafka's side

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """See aiokafka."""
        self._generation, self._member = self._now()
        self._on_assigned(assigned)

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """See aiokafka."""
        if revoked:
            lost = self._now() != (self._generation, self._member)
            await self._on_revoked(revoked, lost=lost)
        self._generation, self._member = _NO_GENERATION, ""

    def _now(self) -> tuple[int, str]:
        if self._coordinator is None:
            return _NO_GENERATION, ""
        return self._coordinator.generation, self._coordinator.member_id

    # ------------------------------------------------------------------ what is saved

    async def commit(self, saved: Mapping[TopicPartition, Saved]) -> None:
        """Save, durably, for partitions that are this copier's.

        Raises:
            UnavailableError: it is not known to be saved; it may be tried again.
            ReplacedError: it is not saved: they are not this copier's any more.
            CopyError: it will never be saved.
        """
        generation, member = self._generation, self._member
        if generation == _NO_GENERATION:
            raise ReplacedError("not a member of the group now")
        topics: dict[str, list[tuple[int, int, str]]] = {}
        for place, (offset, metadata) in saved.items():
            topics.setdefault(place.topic, []).append((place.partition, offset, metadata))
        response = await self._ask(OffsetCommitRequest(
            self._settings.group, generation, member, _DEFAULT_RETENTION, list(topics.items())
        ))  # fmt: skip
        for topic, parts in response.topics:
            for partition, code in parts:
                if (
                    code == UNKNOWN_TOPIC_OR_PARTITION
                ):  # it is being deleted, and its offsets with it
                    _log.warning("%s-%s of the source is gone", topic, partition)
                else:
                    self._check(code, f"{topic}-{partition}")

    async def saved(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, Saved]:
        """What is saved for partitions; nothing for those that were never committed.

        Raises:
            UnavailableError: it cannot be asked now.
            CopyError: the source does not tell.
        """
        topics: dict[str, list[int]] = {}
        for place in places:
            topics.setdefault(place.topic, []).append(place.partition)
        response = await self._ask(OffsetFetchRequest(self._settings.group, list(topics.items())))
        self._check(getattr(response, "error_code", 0), "offsets")
        found: dict[TopicPartition, Saved] = {}
        for topic, parts in response.topics:
            for partition, offset, metadata, code in parts:
                self._check(code, f"{topic}-{partition}")
                if offset >= 0:
                    found[TopicPartition(topic, partition)] = offset, metadata or ""
        return found

    async def _ask(self, request: Any) -> Any:  # noqa: ANN401 - any API
        coordinator = self._coordinator
        node = None if coordinator is None else coordinator.coordinator_id
        if coordinator is None or node is None:
            raise UnavailableError("the group's coordinator is not known")
        try:
            return await self._client.send(node, request, group=ConnectionGroup.COORDINATION)
        except (KafkaError, OSError, TimeoutError) as error:
            coordinator.coordinator_dead()
            raise UnavailableError(f"the group's coordinator: {error!r}") from None

    def _check(self, code: int, what: str) -> None:
        if not code:
            return
        text = f"group {self._settings.group}, {what}: {for_code(code).__name__}"
        if code in MEMBERSHIP_LOST:
            raise ReplacedError(text)
        if code in COORDINATOR_MOVED and self._coordinator is not None:
            self._coordinator.coordinator_dead()
        if code in COORDINATOR_MOVED or code in GROUP_BUSY:
            raise UnavailableError(text)
        raise CopyError(text)
