"""The options of a copy, validated."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final

from pidlease.client.settings import IN_FLIGHT_MAX
from pidlease.kafka.client.connection_security import ConnectionSecurity
from pidlease.kafka.client.offset_requests import EARLIEST, LATEST

#: The placeholder of the source's topic name in `rename`.
NAME: Final = "{topic}"
#: The name of a copier in the clusters' logs.
CLIENT_ID: Final = "pidlease-copier"
#: How often the metadata is loaded again, for new topics and partitions.
METADATA_MS: Final = 30_000
#: aiokafka's options for TLS and SASL.
_SECURITY: Final = frozenset(each.name for each in fields(ConnectionSecurity))


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySettings(ConnectionSecurity):
    """A copy's settings.

    ```python
    from pidlease.copier import CopySettings

    CopySettings(
        source="kafka1:9092",
        destination="127.0.0.1:9092",
        leases="http://127.0.0.1:8080",
        group="mirror",
        topics_regex="orders-.*",
        rename="{topic}.copy",
    )
    ```

    Attributes:
        source: HOST:PORT, or several of them, of the cluster that is copied.
        destination: HOST:PORT, or several, of the Kafka port of a pidlease.
        leases: the URL of its HTTP port, `http://HOST:PORT`.
        group: the consumer group at the source: its copiers share the partitions, and its offsets
            hold the checkpoints.
        topics: the topics to copy.
        topics_regex: instead of `topics`: copy all topics that this matches as a whole.
        rename: the topic at the destination; `{topic}` stands for the source's name.
        start: where a new copy begins: EARLIEST, LATEST, or ms since 1970. With LATEST, partitions
            that come after the copy has begun are copied from their first record.
        once: end when all records that the source has at the start are copied.
        skip_lost: continue with the source's first record even if records before it were deleted
            and never copied.
        append: begin a copy without a checkpoint even if its topic has records already.
        rewind: copy records again that the destination has lost after it acknowledged them.
        trust_checkpoint: resume from the checkpoint even if the lease has ended and the
            destination's log does not reach back far enough to check it.
        commit_interval_ms: how often checkpoints are committed.
        buffer_bytes: of records that were read and are not acknowledged, of one partition.
        memory_bytes: of records that were read and are not acknowledged, of all partitions.
        fetch_wait_ms: how long a fetch waits at the source for records.
        session_timeout_ms: a copier that is silent for so long is replaced.
        request_timeout_ms: how long a response may take; then the request is sent again.
        give_up_ms: how long requests to a cluster are sent again, at a start or a rebalance.
        max_in_flight: the most in-flight batches of a partition.
        who: the id of this copier for other copiers; empty: host and process.
        source_security: the options of TLS and SASL for the source, by the same names as those for
            the destination: security_protocol, and so on.
        security_protocol: towards the destination: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
        ssl_context: of SSL and SASL_SSL to the destination, and of an https URL of leases. Instead
            of it, the next three.
        ssl_cafile: PEM file with the certificates to trust.
        ssl_certfile: PEM file with the copier's own certificate.
        ssl_keyfile: PEM file with its key; None: it is in `ssl_certfile`.
        sasl_mechanism: at the destination: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER.
        sasl_plain_username: the user at the destination.
        sasl_plain_password: that user's password.
        sasl_oauth_token_provider: for OAUTHBEARER: has `async def token(self) -> str`.
    """

    source: str | Sequence[str]
    destination: str | Sequence[str]
    leases: str
    group: str
    topics: Sequence[str] = ()
    topics_regex: str | None = None
    rename: str = NAME
    start: int = EARLIEST
    once: bool = False
    skip_lost: bool = False
    rewind: bool = False
    append: bool = False
    trust_checkpoint: bool = False
    commit_interval_ms: float = 1_000
    buffer_bytes: int = 4 << 20
    memory_bytes: int = 128 << 20
    fetch_wait_ms: int = 500
    session_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    give_up_ms: float = 60_000
    max_in_flight: int = IN_FLIGHT_MAX
    who: str = ""
    source_security: Mapping[str, Any] = field(
        default_factory=lambda: MappingProxyType({}), repr=False
    )

    def __post_init__(self) -> None:
        """Validate the options.

        Raises:
            ValueError: one is invalid; the text names it.
        """
        for problem in (self._what_problem(), self._number_problem(), self.security_problem):
            if problem:
                raise ValueError(problem)

    def renamed(self, topic: str) -> str:
        """Return the name of a source's topic at the destination."""
        return self.rename.replace(NAME, topic)

    @property
    def source_connection(self) -> ConnectionSecurity:
        """TLS and SASL towards the source."""
        return ConnectionSecurity(**self.source_security)

    @property
    def pattern(self) -> str:
        """The pattern that matches the whole name of a topic."""
        return rf"(?:{self.topics_regex})\Z"

    def selects(self, topic: str) -> bool:
        """Whether to copy a topic of the source."""
        if self.topics_regex is not None:
            return re.match(self.pattern, topic) is not None
        return topic in self.topics

    def _what_problem(self) -> str:
        if not self.group:
            return "group is the name of a consumer group"
        if bool(self.topics) == (self.topics_regex is not None):
            return "either topics, or topics_regex"
        if isinstance(self.topics, str):
            return "topics is a list of names"
        if self.topics_regex is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                return f"topics_regex {self.topics_regex!r}: {error}"
        several = self.topics_regex is not None or len(self.topics) > 1
        if several and NAME not in self.rename:
            return f"rename {self.rename!r} would make one topic of several: it lacks {NAME}"
        if not self.leases.startswith(("http://", "https://")):
            return "leases is the URL of the destination's HTTP port, http://HOST:PORT"
        if unknown := self.source_security.keys() - _SECURITY:
            return f"source_security: unknown: {', '.join(sorted(unknown))}"
        if problem := self.source_connection.security_problem:
            return f"source_security: {problem}"
        return ""

    def _number_problem(self) -> str:
        if self.start < EARLIEST:
            return f"start is {EARLIEST}, {LATEST}, or ms since 1970"
        if not 1 <= self.max_in_flight <= IN_FLIGHT_MAX:
            return f"max_in_flight is 1 to {IN_FLIGHT_MAX}: so many the server remembers"
        for name in ("commit_interval_ms", "buffer_bytes", "memory_bytes", "session_timeout_ms",
                     "request_timeout_ms", "give_up_ms"):  # fmt: skip
            if not getattr(self, name) > 0:
                return f"{name} is above 0"
        if self.fetch_wait_ms < 0:
            return "fetch_wait_ms is not below 0"
        return ""
