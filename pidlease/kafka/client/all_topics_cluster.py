"""The metadata of all topics of a cluster, with their cleanup policies, for a server."""

import asyncio
import time
from collections.abc import Collection, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from typing_extensions import override

from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.cluster import Cluster, UpstreamTopic, View
from pidlease.kafka.client.settings import Address, UpstreamConfig, Versions
from pidlease.kafka.client.topic_configs import IdExpirations, compacted, id_expirations
from pidlease.kafka.errors import UpstreamAwayError, UpstreamError, UpstreamRefusedError
from pidlease.observability.loggers import Logger
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.topics.topic_store import illegal_name

#: How long a start waits for brokers to say which versions they serve, in seconds.
_FIRST_VERSIONS_SECONDS: Final = 3.0
#: How long other brokers may take to confirm that a topic is gone, in seconds.
_CONFIRMING_SECONDS: Final = 2.0
#: The pause between two questions about unknown topics, in seconds: each serves all callers.
_QUESTION_PAUSE_SECONDS: Final = 0.05
#: How long a caller waits for the answer to a question, in seconds; then it is unknown.
_QUESTION_SECONDS: Final = 3.0
#: Topics that one call adds to a question; the others go into the following questions.
_QUESTION_TOPICS_MAX: Final = 1000
#: Topics in one question, of all callers; more are refused for now.
_QUESTION_SIZE_MAX: Final = 10_000
#: Brokers to ask beside the first one: its metadata may lag.
_QUESTION_OTHERS_MAX: Final = 2

_log = Logger(__name__)


@dataclass(frozen=True, slots=True)
class _Question:
    """A question about unknown topics.

    Attributes:
        names: the topics.
        absent: those that do not exist; an error: unknown.
    """

    names: set[str]
    absent: asyncio.Future[Set[str] | UpstreamError]


class AllTopicsCluster(Cluster):
    """Keeps the metadata of all topics, and does not believe a single broker that one is gone.

    It stays connected to each live broker: one that restarts may serve other versions.

    Parameters:
        config: the settings of the connections.

    Attributes:
        versions: those that all live brokers serve; another object after each change.
    """

    def __init__(self, config: UpstreamConfig) -> None:
        super().__init__(config)
        self.versions: Versions = {}
        config.served.on_change.append(self._compare_versions)
        #: Set when a live broker may have no connection.
        self._disconnected: Final = asyncio.Event()
        #: Set when all brokers were asked for the first time.
        self._asked: Final = asyncio.Event()
        self._staying: asyncio.Task[None] | None = None
        #: The question that has not begun; None: no caller waits for one.
        self._question: _Question | None = None
        self._questions: asyncio.Task[None] | None = None
        #: Whether topics are compacted, by their ids; and when to request all of them again.
        self._cleanup: dict[str, bool | None] = {}
        self._cleanup_due = 0.0

    @override
    async def start(self) -> None:
        """Load the metadata, and learn which versions the brokers serve; follow both from now on.

        Raises:
            UpstreamError: no broker responds.
        """
        await super().start()
        if self._staying is None:
            self._staying = asyncio.create_task(self._stay_connected())
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_VERSIONS_SECONDS):
                await self._asked.wait()

    @override
    async def close(self) -> None:
        for task in (self._questions, self._staying):
            if task is not None and not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        await super().close()

    # ------------------------------------------------------------------ versions of the brokers

    async def _stay_connected(self) -> None:
        """Connect to each live broker, again after each connection that ends."""
        failures = 0
        while True:
            self._disconnected.clear()
            closed = [each for each in self.view.brokers if not self.connected(each)]
            reached = await asyncio.gather(*map(self._reach, closed))
            self._asked.set()
            failures = 0 if all(reached) else failures + 1
            # Also without failures: a broker may close each connection at once.
            await asyncio.sleep(self.config.refresh_backoff.seconds(max(failures, 1)))
            if not failures:
                await self._disconnected.wait()

    async def _reach(self, broker: int) -> bool:
        """Connect to a broker, which makes its versions known; return whether it responds."""
        try:
            await self.connection_to(broker)
        except UpstreamError as error:
            LINES.write(_log, "debug", "a broker cannot be reached", (broker, kind_of(error)),
                        broker=broker, error=str(error))  # fmt: skip
            return False
        except Exception as error:  # noqa: BLE001 - a bug; the other brokers are asked all the same
            LINES.write(_log, "error", "a broker cannot be reached", (broker, kind_of(error)),
                        error, broker=broker, error=repr(error))  # fmt: skip
            return False
        return True

    @override
    async def _connection(self, address: Address) -> BrokerConnection:
        connection = await super()._connection(address)

        def changed() -> None:
            if not connection.open:
                self._disconnected.set()

        if connection.on_change is None:
            connection.on_change = changed
        return connection

    @override
    def _show(self, found: View, started: float) -> None:
        before = self.view.brokers
        super()._show(found, started)
        if found.brokers != before:
            self._disconnected.set()
            self._compare_versions()

    def _compare_versions(self) -> None:
        """Replace the versions that all live brokers serve, if they have changed."""
        found = self.config.served.common(self.view.brokers.values())
        before = self.versions
        if found == before:
            return
        self.versions = found
        if before:
            apis = {key for key in {*before, *found} if before.get(key) != found.get(key)}
            _log.info("the versions that all brokers of Kafka serve have changed",
                      apis=sorted(apis))  # fmt: skip

    async def id_expirations(self) -> IdExpirations:
        """Return how long the brokers remember unused ids."""
        return await id_expirations(self.view.brokers, self.connection_to)

    @override
    async def _find(self, connection: BrokerConnection) -> View:
        found = await self._view_of(connection, None)
        if missing := self.view.topics.keys() - found.topics.keys():
            found = await self._confirmed(connection, found, missing)
        return await self._with_cleanup(found, connection)

    @override
    async def _view_of(
        self, connection: BrokerConnection, topics: Collection[str] | None, *, create: bool = False
    ) -> View:
        found = await super()._view_of(connection, topics, create=create)
        if self.view.cluster_id not in ("", found.cluster_id):
            # The state of producers, and batches in flight, belong to the former cluster.
            connection.close()
            raise UpstreamRefusedError(
                f"{connection} is of another cluster: {found.cluster_id},"
                f" not {self.view.cluster_id}"
            )
        return found

    async def _confirmed(self, first: BrokerConnection, found: View, missing: Set[str]) -> View:
        """Return the view with the missing topics that another broker still has.

        The first broker's metadata may lag. A topic is gone when no broker has it.
        """
        still: dict[str, UpstreamTopic] = {}
        others = [each for each in self._addresses() if each != first.address]
        with suppress(TimeoutError):
            async with asyncio.timeout(_CONFIRMING_SECONDS):
                for address in others:
                    try:
                        other = await self._view_of(
                            await self._connection(address), missing - still.keys()
                        )
                    except UpstreamError as error:
                        LINES.write(_log, "info", "a broker does not return its topics",
                                    address, error=str(error))  # fmt: skip
                        continue
                    still |= other.topics
                    if len(still) == len(missing):
                        break
        if not still:
            return found
        self.stale()  # until the brokers agree
        return replace(found, topics={**still, **found.topics})

    async def _with_cleanup(self, found: View, connection: BrokerConnection) -> View:
        """Add to a view which topics are compacted.

        All cleanup policies are requested from time to time, those of new topics at once.

        Parameters:
            connection: to the broker that returned the view: another one may lag.

        Raises:
            UpstreamError: the broker does not respond.
        """
        now = time.monotonic()
        if now >= self._cleanup_due:
            self._cleanup.clear()
            self._cleanup_due = now + self.config.metadata_seconds
        missing = {each.topic_id: name for name, each in found.topics.items()
                   if each.topic_id not in self._cleanup}  # fmt: skip
        if missing:
            cleanup = await compacted(connection, missing.values())
            for topic_id, name in missing.items():
                if name in cleanup:
                    self._cleanup[topic_id] = cleanup[name]
            if len(cleanup) < len(missing):
                self.stale()  # the broker does not know each topic yet
        topics = {
            name: replace(each, compacted=self._cleanup.get(each.topic_id))
            for name, each in found.topics.items()
        }
        return replace(found, topics=topics)

    # ------------------------------------------------------------------ unknown topics

    async def missing(self, places: Collection[TopicPartition]) -> Set[TopicPartition]:
        """Return the partitions that certainly do not exist, by a question that begins after this.

        The view has those that exist when this returns. Without an answer in time, nothing is
        certain. One question runs at a time, and serves all callers.
        """
        legal = list({place.topic for place in places if not illegal_name(place.topic)})
        absent: set[str] = set()
        answered: set[str] = set()
        for start in range(0, len(legal), _QUESTION_TOPICS_MAX):
            some = legal[start : start + _QUESTION_TOPICS_MAX]
            try:
                absent |= await self._absent(some)
            except UpstreamError as error:
                _log.warning("whether Kafka has topics is unknown", topics=some[:10],
                             error=str(error))  # fmt: skip
            else:
                answered.update(some)
        return {each for each in places if self._is_missing(each, absent, answered)}

    def _is_missing(self, place: TopicPartition, absent: Set[str], answered: Set[str]) -> bool:
        name, number = place
        if name in absent or illegal_name(name):
            return True
        known = self.view.topics.get(name)
        return name in answered and known is not None and not 0 <= number < len(known.leaders)

    async def _absent(self, names: Collection[str]) -> Set[str]:
        """Add topics to the next question.

        Returns:
            Those, and perhaps others, that do not exist.

        Raises:
            UpstreamError: there is no answer in time.
        """
        if self._question is None:
            self._question = _Question(set(), asyncio.get_running_loop().create_future())
        question = self._question
        if len(question.names) + len(names) > _QUESTION_SIZE_MAX:
            raise UpstreamAwayError("too many unknown topics at once")
        question.names.update(names)
        if self._questions is None:
            self._questions = asyncio.create_task(self._ask_questions())
        try:
            async with asyncio.timeout(_QUESTION_SECONDS):
                absent = await asyncio.shield(question.absent)
        except TimeoutError:
            text = f"Kafka does not return its topics within {_QUESTION_SECONDS} s"
            raise UpstreamAwayError(text) from None
        if isinstance(absent, UpstreamError):
            raise UpstreamAwayError(str(absent)) from absent
        return absent

    async def _ask_questions(self) -> None:
        """Ask while callers wait, without delaying other requests."""
        try:
            while self._question is not None:
                question, self._question = self._question, None
                absent: Set[str] | UpstreamError
                try:
                    absent = await self._ask_question(question.names)
                except UpstreamError as error:
                    absent = error
                except Exception as error:  # noqa: BLE001 - callers must not wait for ever because of a bug
                    _log.exception("a question about topics failed")
                    absent = UpstreamAwayError(f"{type(error).__name__}: {error}")
                question.absent.set_result(absent)
                await asyncio.sleep(_QUESTION_PAUSE_SECONDS)
        finally:
            self._questions = None

    async def _ask_question(self, names: Set[str]) -> Set[str]:
        """Request topics, add those that exist to the view, and return the others.

        One broker may lag: others are asked for the topics that it does not have.

        Raises:
            UpstreamError: no broker responds.
        """
        started = time.monotonic()
        async with self._viewing:
            connection = await self.any_connection()
            found = await self._view_of(connection, names)
            topics, absent = dict(found.topics), found.absent(names)
            others = [each for each in self._addresses() if each != connection.address]
            with suppress(TimeoutError):
                async with asyncio.timeout(_CONFIRMING_SECONDS):
                    for address in others[:_QUESTION_OTHERS_MAX] if absent else ():
                        try:
                            other = await self._view_of(await self._connection(address), absent)
                        except UpstreamError as error:
                            _log.info("a broker does not return its topics",
                                      error=str(error))  # fmt: skip
                            continue
                        topics |= other.topics
                        absent = other.absent(absent)
            if topics:
                seen = await self._with_cleanup(replace(self.view, topics=topics), connection)
                all_topics = {**self.view.topics, **seen.topics}
                self._show(replace(self.view, topics=all_topics), started)
        return absent
