"""The copier's membership in its consumer group: assigned partitions and offset commits.

aiokafka's coordinator joins, sends heartbeats and assigns. Its consumer is not used: without a
leader it would look for one without a back-off. Commits are sent here, because each must name the
membership that it is made under. Kafka accepts a commit without one if the group is empty: a copier
that was replaced long ago would overwrite its successors' checkpoint.
"""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Any, Final, Protocol

from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from typing_extensions import override

from pidlease.copier.errors import CopyError
from pidlease.copier.settings import CLIENT_ID, METADATA_MS, CopySettings
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.error_codes import (
    COORDINATOR_MOVED,
    GROUP_BUSY,
    MEMBERSHIP_LOST,
    UNKNOWN_TOPIC_OR_PARTITION,
)

_log = logging.getLogger(__name__)

_NO_GENERATION: Final = -1
_DEFAULT_RETENTION: Final = -1
#: aiokafka's consumer is not polled, so the group must not wait for polls.
_NEVER_MS: Final = 2**31 - 1
#: A committed offset and its metadata.
Saved = tuple[int, str]


class OnRevoked(Protocol):
    """Called with the partitions that this copier has no more."""

    async def __call__(self, places: set[TopicPartition], *, lost: bool) -> None:
        """`lost`: another copier may have them already."""


class UnavailableError(Exception):
    """The group is not available now; try again."""


class ReplacedError(Exception):
    """This copier is no member any more: another one may have its partitions."""


class GroupMembership(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is not typed
    """A copier's membership in its group.

    Parameters:
        on_assigned: called with the partitions that this copier has from now on.
        on_revoked: called with the partitions that it has no more. The group waits for it, unless
            they are lost: then another copier may have them already.
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
            # Joining may take as long as the session of a member that has gone.
            request_timeout_ms=settings.request_timeout_ms + settings.session_timeout_ms,
            metadata_max_age_ms=METADATA_MS,
            **settings.source_connection.aiokafka_options(),
        )
        self._coordinator: GroupCoordinator | None = None
        self._generation = _NO_GENERATION
        self._member = ""

    async def start(self) -> None:
        """Join the group.

        Raises:
            CopyError: the source cannot be reached, or refuses this copier.
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
        """Leave the group."""
        if self._coordinator is not None:
            await self._coordinator.close()
        await self._client.close()

    def check(self) -> None:
        """Raise the error that aiokafka would raise from a poll.

        Raises:
            CopyError: the group refuses this copier.
        """
        try:
            if self._coordinator is not None:
                self._coordinator.check_errors()
        except KafkaError as error:
            raise CopyError(f"group {self._settings.group}: {error!r}") from None

    # ------------------------------------------------------------------ called by aiokafka

    @override
    async def on_partitions_assigned(self, assigned: Iterable[tuple[str, int]]) -> None:
        self._generation, self._member = self._now()
        self._on_assigned(_places(assigned))

    @override
    async def on_partitions_revoked(self, revoked: Collection[tuple[str, int]]) -> None:
        if revoked:
            lost = self._now() != (self._generation, self._member)
            await self._on_revoked(_places(revoked), lost=lost)
        self._generation, self._member = _NO_GENERATION, ""

    def _now(self) -> tuple[int, str]:
        if self._coordinator is None:
            return _NO_GENERATION, ""
        return self._coordinator.generation, self._coordinator.member_id

    # ------------------------------------------------------------------ offsets

    async def commit(self, saved: Mapping[TopicPartition, Saved]) -> Set[TopicPartition]:
        """Commit offsets and metadata of partitions that this copier has.

        Returns:
            The partitions that the group's coordinator does not know; of these, nothing is stored.

        Raises:
            UnavailableError: the outcome is unknown; try again.
            ReplacedError: they are not committed: this copier does not have them any more.
            CopyError: they can never be committed.
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
        gone: set[TopicPartition] = set()
        for topic, parts in response.topics:
            for partition, code in parts:
                if code == UNKNOWN_TOPIC_OR_PARTITION:  # it is new, or deleted with its offsets
                    gone.add(TopicPartition(topic, partition))
                else:
                    self._check(code, f"{topic}-{partition}")
        return gone

    async def saved(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, Saved]:
        """Return the committed offsets and metadata, of partitions that have some.

        Raises:
            UnavailableError: the group is not available now.
            CopyError: the source does not return them.
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


def _places(partitions: Iterable[tuple[str, int]]) -> set[TopicPartition]:
    """Convert aiokafka's names of partitions."""
    return {TopicPartition(*each) for each in partitions}
