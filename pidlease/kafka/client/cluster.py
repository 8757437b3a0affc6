"""The view of the cluster: its brokers, its topics, and the leaders of its partitions."""

import asyncio
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.api import API_METADATA
from pidlease.kafka.client.bootstrap import connect
from pidlease.kafka.client.broker_connection import BrokerConnection, version_for
from pidlease.kafka.client.exchange import ask, ask_slowly, read
from pidlease.kafka.client.settings import Address, UpstreamConfig
from pidlease.kafka.client.topic_configs import Kept, compacted, kept_ms
from pidlease.kafka.codec.messages import Request
from pidlease.kafka.error_codes import TOPIC_ABSENT
from pidlease.kafka.errors import (
    UpstreamAwayError,
    UpstreamError,
    UpstreamNonsenseError,
    UpstreamRefusedError,
)
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.topics.topic_store import illegal_name

#: Between two refreshes of the view that were asked for, in seconds.
_REST_SECONDS: Final = 0.1
_REST_SECONDS_MAX: Final = 2.0
#: How long other brokers may take to confirm that a topic is gone, in seconds.
_CONFIRMING_SECONDS: Final = 2.0
#: Between two questions for topics that are not known here, in seconds: each serves all callers.
_QUESTION_REST_SECONDS: Final = 0.05
#: How long a caller waits for the answer, in seconds; then it is unknown.
_QUESTION_SECONDS: Final = 3.0
#: Topics that one request adds to a question; what it asks for beyond goes into the next ones.
_QUESTION_TOPICS_MAX: Final = 1000
#: Topics in one question, of all requests; a request for more is refused for now.
_QUESTION_SIZE_MAX: Final = 10_000
#: Brokers that are asked besides the first, which may lag.
_QUESTION_OTHERS_MAX: Final = 2
#: A topic of more partitions there cannot be; what claims to have one is not given the memory.
_PARTITIONS_MAX: Final = 1 << 20
_PORTS_MAX: Final = 1 << 16
#: No broker leads the partition for now.
NO_LEADER: Final = -1
#: What topics without an id get one from.
_NAMESPACE: Final = uuid.UUID("8f1b6d2e-53a4-4a0e-9c1d-70a5b2f3c6d1")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class UpstreamTopic:
    """A topic of the cluster.

    Attributes:
        name: its name.
        topic_id: distinguishes it from a later one of the name, as hex; Kafka's own from 2.8 on.
        internal: one of Kafka's own.
        leaders: the broker that leads each partition, by number; -1: none for now.
        compacted: whether Kafka removes its records by their keys; None: it does not say.
    """

    name: str
    topic_id: str
    internal: bool
    leaders: tuple[int, ...]
    compacted: bool | None = None


@dataclass(frozen=True, slots=True)
class View:
    """The cluster at a moment.

    Attributes:
        cluster_id: its id.
        controller: the broker that is asked for changes; -1: any.
        brokers: their addresses, by id.
        topics: by name.
    """

    cluster_id: str = ""
    controller: int = -1
    brokers: Mapping[int, Address] = field(default_factory=dict)
    topics: Mapping[str, UpstreamTopic] = field(default_factory=dict)

    def has(self, topic: str, partition: int) -> bool:
        """Whether there is such a partition."""
        found = self.topics.get(topic)
        return found is not None and 0 <= partition < len(found.leaders)

    def leader(self, topic: str, partition: int) -> int:
        """The broker that leads a partition; -1: none, or there is no such partition."""
        found = self.topics.get(topic)  # not by `has`: this is asked for each batch
        if found is None or not 0 <= partition < len(found.leaders):
            return NO_LEADER
        return found.leaders[partition]


@dataclass(frozen=True, slots=True)
class _Question:
    """What Kafka is to be asked next.

    Attributes:
        names: of topics.
        absent: those of them that it does not have, or why that cannot be known.
    """

    names: set[str]
    absent: asyncio.Future[Set[str] | UpstreamError]


class Cluster:
    """The cluster, looked at from time to time and whenever something does not fit.

    Parameters:
        config: how it is reached.
    """

    def __init__(self, config: UpstreamConfig) -> None:
        self.config: Final = config
        self.view = View()
        #: Called, on the event loop, when something has changed: the view before, and the new one.
        self.on_change: Final[list[Callable[[View, View], None]]] = []
        self._connections: dict[Address, BrokerConnection] = {}
        self._connecting: dict[Address, asyncio.Lock] = {}
        self._stale = asyncio.Event()
        self._looked = asyncio.Condition()
        self._looks = 0
        self._task: asyncio.Task[None] | None = None
        #: Whoever changes the view holds it: what was asked before does not replace a later answer.
        self._viewing: Final = asyncio.Lock()
        #: A question that has not begun; None: no caller waits for one.
        self._question: _Question | None = None
        self._questions: asyncio.Task[None] | None = None
        #: Whether topics are compacted, by their ids; and when all are asked for again.
        self._cleanup: dict[str, bool | None] = {}
        self._cleanup_due = 0.0

    async def start(self) -> None:
        """Look at the cluster once, and then from time to time.

        Raises:
            UpstreamError: no broker answers.
        """
        await self._look()
        if self._task is None:
            self._task = asyncio.create_task(self._keep_looking())

    async def close(self) -> None:
        """End all of it."""
        for task in (self._task, self._questions):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        for connection in self._connections.values():
            connection.close()

    # ------------------------------------------------------------------ links

    async def any_connection(self) -> BrokerConnection:
        """A connection to some broker, for short requests of our own.

        Raises:
            UpstreamError: none answers; of several reasons the last.
        """
        error: UpstreamError = UpstreamAwayError("no broker of Kafka is known")
        for address in self._addresses():
            try:
                return await self._connection(address)
            except UpstreamError as failure:
                error = failure
        raise error

    async def connection_to(self, broker: int) -> BrokerConnection:
        """A connection to a broker, for short requests of our own.

        Raises:
            UpstreamError: it does not answer, or is not known.
        """
        return await self._connection(self.address(broker))

    def address(self, broker: int) -> Address:
        """Where a broker is.

        Raises:
            UpstreamAwayError: there is none of that id.
        """
        found = self.view.brokers.get(broker)
        if found is None:
            self.stale()
            raise UpstreamAwayError(f"Kafka has no broker {broker} now")
        return found

    def _addresses(self) -> list[Address]:
        """Where brokers are known to be, those first to which there is a connection."""
        known = [*self.view.brokers.values(), *self.config.bootstrap]
        return list(dict.fromkeys(sorted(known, key=lambda each: not self._is_open(each))))

    def _is_open(self, address: Address) -> bool:
        connection = self._connections.get(address)
        return connection is not None and connection.open

    async def _connection(self, address: Address) -> BrokerConnection:
        async with self._connecting.setdefault(address, asyncio.Lock()):
            if not self._is_open(address):
                self._connections[address] = await connect(self.config, address)
            return self._connections[address]

    async def ask(self, api_key: int, broker: int | None = None, **values: object) -> Any:  # noqa: ANN401 - one of kio's classes
        """Ask a broker something short.

        Parameters:
            api_key: what.
            broker: its id; None: any broker.
            values: the request's fields.

        Raises:
            UpstreamError: there is no answer.
        """
        connection = await (self.any_connection() if broker is None else self.connection_to(broker))
        request = Request(api_key, version_for(connection, api_key))
        return await ask(connection, request, request.encode(**values))

    async def ask_for_topic(self, name: str) -> None:
        """Ask for a topic, which makes Kafka make it if it is set to (auto.create.topics.enable).

        Raises:
            UpstreamError: there is no answer.
        """
        connection = await self.any_connection()
        request, body = _metadata(connection, [name], create=True)
        await ask(connection, request, body)

    async def kept_ms(self) -> Kept:
        """Return how long the brokers remember idle producers."""
        return await kept_ms(self.view.brokers, self.connection_to)

    # ------------------------------------------------------------------ looking

    def stale(self) -> None:
        """Something did not fit what is known of the cluster: look again soon."""
        self._stale.set()

    async def look(self) -> None:
        """Return when the cluster has been looked at again, if it can be reached at all."""
        async with self._looked:
            before = self._looks
            self.stale()
            await self._looked.wait_for(lambda: self._looks > before)

    async def _keep_looking(self) -> None:
        rest = _REST_SECONDS
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.config.metadata_seconds):
                    await self._stale.wait()
            self._stale.clear()
            before = self.view
            try:
                await self._look()
                # Where nothing has changed a closer look does not help.
                same = self.view == before
                rest = min(rest * 1.5, _REST_SECONDS_MAX) if same else _REST_SECONDS
            except UpstreamError as error:
                LINES.write(_log, "warning", "Kafka cannot be asked what it looks like",
                            kind_of(error), error=str(error))  # fmt: skip
                self._stale.set()
                rest = min(rest * 2, _REST_SECONDS_MAX)
            except Exception as error:  # noqa: BLE001 - a bug of a listener; refresh again later
                LINES.write(_log, "error", "what has changed in Kafka could not be followed",
                            kind_of(error), error, error=repr(error))  # fmt: skip
            async with self._looked:
                self._looks += 1
                self._looked.notify_all()
            await asyncio.sleep(rest)

    async def _look(self) -> None:
        started = time.monotonic()
        async with self._viewing:
            connection = await self.any_connection()
            found = await self._seen_by(connection)
            if missing := self.view.topics.keys() - found.topics.keys():
                found = await self._confirmed(connection, found, missing)
            self._show(await self._with_cleanup(found), started)

    def _show(self, found: View, started: float) -> None:
        """From now on the cluster looks so."""
        before, self.view = self.view, found
        for address in self._connections.keys() - self.view.brokers.values():
            if address not in self.config.bootstrap:
                self._connections.pop(address).close()
        if self.view != before:
            _log.debug("Kafka looks another way", brokers=len(self.view.brokers),
                       topics=len(self.view.topics),
                       seconds=round(time.monotonic() - started, 3))  # fmt: skip
            for changed in self.on_change:
                changed(before, self.view)

    async def _seen_by(self, connection: BrokerConnection, topics: Set[str] | None = None) -> View:
        """What the cluster looks like to a broker.

        Parameters:
            connection: to it.
            topics: that are asked for; None: all.

        Raises:
            UpstreamError: it does not answer.
        """
        return (await self._asked(connection, topics))[0]

    async def _asked(
        self, connection: BrokerConnection, topics: Set[str] | None
    ) -> tuple[View, Set[str]]:
        """The same, with those of the topics that are asked for that there are not."""
        request, body = _metadata(connection, topics, create=False)
        answer = await ask_slowly(connection, request, body)
        found = read(connection, answer, _view)
        if self.view.cluster_id not in ("", found.cluster_id):
            # The state of producers, and batches in flight, belong to the former cluster.
            connection.close()
            raise UpstreamRefusedError(
                f"{connection} is of another cluster: {found.cluster_id},"
                f" not {self.view.cluster_id}"
            )
        if not found.brokers:
            # It has just started, and has no metadata yet (under ZooKeeper).
            connection.close()
            raise UpstreamAwayError(f"{connection} does not know of any broker yet")
        there = {
            str(each.name) for each in answer.topics if each.error_code.value not in TOPIC_ABSENT
        }
        return found, (topics or set()) - there

    async def _confirmed(self, first: BrokerConnection, found: View, missing: Set[str]) -> View:
        """What the cluster looks like, with topics that one broker does not know of any more.

        It may lag. So others are asked, if there are any, and the topics that they still have stay,
        until none of them does.
        """
        still: dict[str, UpstreamTopic] = {}
        others = [each for each in self._addresses() if each != first.address]
        with suppress(TimeoutError):
            async with asyncio.timeout(_CONFIRMING_SECONDS):
                for address in others:
                    try:
                        other = await self._seen_by(
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
        self.stale()  # they are to agree
        return replace(found, topics={**still, **found.topics})

    # ------------------------------------------------------------------ topics that are not known

    async def missing(self, places: Collection[TopicPartition]) -> Set[TopicPartition]:
        """Which partitions Kafka does not have, for certain, asked after this is called.

        What it has is in the view when this returns. Without an answer in time, nothing is
        certain. One question runs at a time, and serves all callers.
        """
        legal = list({place.topic for place in places if not illegal_name(place.topic)})
        absent: set[str] = set()
        answered: set[str] = set()
        for start in range(0, len(legal), _QUESTION_TOPICS_MAX):
            some = legal[start : start + _QUESTION_TOPICS_MAX]
            try:
                absent |= await self._find(some)
            except UpstreamError as error:
                _log.warning("whether Kafka has topics is not known", topics=some[:10],
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

    async def _find(self, names: Collection[str]) -> Set[str]:
        """Have the next question ask for topics.

        Returns:
            Those, and perhaps others, that Kafka does not have.

        Raises:
            UpstreamError: there is no answer in time.
        """
        if self._question is None:
            self._question = _Question(set(), asyncio.get_running_loop().create_future())
        question = self._question
        if len(question.names) + len(names) > _QUESTION_SIZE_MAX:
            raise UpstreamAwayError("too many topics are asked for at once")
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
                    _log.exception("Kafka could not be asked for topics")
                    absent = UpstreamAwayError(f"{type(error).__name__}: {error}")
                question.absent.set_result(absent)
                await asyncio.sleep(_QUESTION_REST_SECONDS)
        finally:
            self._questions = None

    async def _ask_question(self, names: Set[str]) -> Set[str]:
        """Ask for topics, and see those that there are.

        One broker may lag: others are asked for the topics that it does not have.

        Raises:
            UpstreamError: no broker answers.
        """
        started = time.monotonic()
        async with self._viewing:
            connection = await self.any_connection()
            found, absent = await self._asked(connection, names)
            topics = dict(found.topics)
            others = [each for each in self._addresses() if each != connection.address]
            with suppress(TimeoutError):
                async with asyncio.timeout(_CONFIRMING_SECONDS):
                    for address in others[:_QUESTION_OTHERS_MAX] if absent else ():
                        try:
                            other, still = await self._asked(
                                await self._connection(address), absent
                            )
                        except UpstreamError as error:
                            _log.info("a broker does not return its topics",
                                      error=str(error))  # fmt: skip
                            continue
                        topics |= other.topics
                        absent = absent & still
            if topics:
                seen = await self._with_cleanup(replace(self.view, topics=topics))
                all_topics = {**self.view.topics, **seen.topics}
                self._show(replace(self.view, topics=all_topics), started)
        return absent

    async def _with_cleanup(self, found: View) -> View:
        """What the cluster looks like, with which topics are compacted.

        All are asked for from time to time, and new ones at once.

        Raises:
            UpstreamError: no broker answers.
        """
        now = time.monotonic()
        if now >= self._cleanup_due:
            self._cleanup.clear()
            self._cleanup_due = now + self.config.metadata_seconds
        missing = {each.topic_id: name for name, each in found.topics.items()
                   if each.topic_id not in self._cleanup}  # fmt: skip
        if missing:
            cleanup = await compacted(await self.any_connection(), missing.values())
            self._cleanup |= {id_: cleanup.get(name) for id_, name in missing.items()}
        topics = {
            name: replace(each, compacted=self._cleanup[each.topic_id])
            for name, each in found.topics.items()
        }
        return replace(found, topics=topics)


def _metadata(
    connection: BrokerConnection, topics: Iterable[str] | None, *, create: bool
) -> tuple[Request, bytes]:
    """A request for Metadata; of all topics, where none are named."""
    request = Request(API_METADATA, version_for(connection, API_METADATA))
    wanted = None if topics is None else tuple(
        request.part("MetadataRequestTopic", name=name, topic_id=None) for name in topics
    )  # fmt: skip
    return request, request.encode(
        topics=wanted, allow_auto_topic_creation=create,
        include_cluster_authorized_operations=False, include_topic_authorized_operations=False,
    )  # fmt: skip


def _view(answer: Any) -> View:  # noqa: ANN401 - one of kio's classes
    """The cluster by an answer to Metadata.

    Raises:
        UpstreamNonsenseError: there is no such cluster.
    """
    topics = {}
    for topic in answer.topics:
        if topic.error_code.value and not topic.partitions:
            continue  # it is being made or deleted, or we may not see it
        numbers = {int(each.partition_index) for each in topic.partitions}
        if any(not 0 <= each < _PARTITIONS_MAX for each in numbers):
            raise UpstreamNonsenseError(
                f"topic {topic.name} has partitions {min(numbers)} to {max(numbers)}"
            )
        leaders = [NO_LEADER] * (1 + max(numbers, default=-1))
        for partition in topic.partitions:
            leaders[partition.partition_index] = int(partition.leader_id)
        topic_id = getattr(topic, "topic_id", None) or uuid.uuid5(_NAMESPACE, topic.name)
        topics[str(topic.name)] = UpstreamTopic(
            str(topic.name), topic_id.hex, bool(topic.is_internal), tuple(leaders)
        )
    brokers = {int(each.node_id): (str(each.host), int(each.port)) for each in answer.brokers}
    for node_id, (host, port) in brokers.items():
        if not host or not 0 < port < _PORTS_MAX:
            raise UpstreamNonsenseError(f"broker {node_id} is at {host}:{port}")
    return View(
        answer.cluster_id or "",
        int(answer.controller_id),
        brokers,
        topics,
    )
