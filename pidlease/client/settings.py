"""The options of a producer, validated."""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, TypedDict
from urllib.parse import urlsplit

from pidlease.client.pending_batch import CODECS
from pidlease.client.record_arguments import Serializer
from pidlease.core.pid import Policy, policy_of
from pidlease.kafka.client.connection_security import (
    ConnectionSecurity,
    SaslMechanism,
    SecurityProtocol,
)
from pidlease.kafka.client.settings import TokenProvider

Place = tuple[str, int]
PolicyName = Literal["strict", "monotonic"]
Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]

#: The server remembers so many batches with their offsets.
IN_FLIGHT_MAX: Final = 5
_NAME_BYTES_MAX: Final = 256
#: Then a name gets no third PID while the lease of its first one lasts.
_RENEW_BEFORE_MAX: Final = 0.5
_INT63_MAX: Final = 2**63 - 1


class ProducerOptions(TypedDict, total=False):
    """The options of `LeasedProducer` and `BlockingProducer`; `ProducerSettings` documents them."""

    bootstrap_servers: str | Sequence[str]
    leases: str
    client_id: str
    value_serializer: Serializer | None
    key_serializer: Serializer | None
    name: str | None
    policy: PolicyName
    pid: int | None
    generation: int | None
    sequences: Mapping[Place, int] | None
    initial_sequence_id: int | None
    compression_type: Codec | None
    max_batch_size: int
    max_request_size: int
    linger_ms: float
    max_in_flight: int
    buffer_memory: int
    delivery_timeout_ms: float
    request_timeout_ms: float
    retry_backoff_ms: float
    retry_backoff_max_ms: float
    metadata_max_age_ms: float
    renew_before: float
    security_protocol: SecurityProtocol
    ssl_context: ssl.SSLContext | None
    ssl_cafile: str | Path | None
    ssl_certfile: str | Path | None
    ssl_keyfile: str | Path | None
    sasl_mechanism: SaslMechanism
    sasl_plain_username: str | None
    sasl_plain_password: str | None
    sasl_oauth_token_provider: TokenProvider | None


class RecordOptions(TypedDict, total=False):
    """Arguments of `send` beside topic and value; `LeasedProducer.send` documents them."""

    key: object
    partition: int | None
    headers: list[tuple[str, bytes | None]] | None
    timestamp_ms: int | None
    sequence_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings(ConnectionSecurity):
    """A producer's settings.

    Attributes:
        bootstrap_servers: HOST:PORT, or several of them, of the Kafka port.
        leases: the URL of the HTTP port, `http://HOST:PORT`, for leases.
        client_id: the name of this client in the server's logs.
        value_serializer: makes the bytes of a value, as `str.encode` does of str; None: values are
            bytes. A value of None is Kafka's tombstone, and is not given to it.
        key_serializer: likewise of a key; None is no key.
        name: the producer's name: after a crash it gets the same PID and continues its sequence.
        policy: strict: sequence numbers without gaps; monotonic: sequence_ids of the application,
            which rise and may have gaps. Monotonic needs a name.
        pid: a PID that was leased before.
        generation: the generation to use with `pid`; None: the server's.
        sequences: the next sequence number with `pid`, by (topic, partition); else the server's.
        initial_sequence_id: of policy monotonic: the first record without a sequence_id gets the
            number after this one; None: it continues after the last in the log.
        compression_type: of batches.
        max_batch_size: bytes of a batch before compression; a larger record is sent alone.
        max_request_size: the most bytes of a record, and about those of a request.
        linger_ms: how long a batch that is not full waits for more records. 0: while another batch
            of its partition is in flight.
        max_in_flight: the most in-flight batches of a partition.
        buffer_memory: bytes of all pending records, with the overhead of each; beyond, `send`
            waits.
        delivery_timeout_ms: how long a record may take from `send` to its outcome.
        request_timeout_ms: how long a response may take, after which the connection is replaced;
            and how long a topic may be unknown to the servers.
        retry_backoff_ms: the wait before a batch is sent again, doubled each time.
        retry_backoff_max_ms: the longest wait before a batch is sent again.
        metadata_max_age_ms: how often the metadata is loaded again, for new partitions.
        renew_before: the part of a lease that is left when the next PID is leased.
        security_protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL, of the Kafka port.
        ssl_context: of SSL and SASL_SSL, and of a URL of leases that begins with https. Instead of
            it, the next three.
        ssl_cafile: PEM file with the certificates to trust.
        ssl_certfile: PEM file with the producer's own certificate, if the server wants one.
        ssl_keyfile: PEM file with its key; None: it is in `ssl_certfile`.
        sasl_mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER.
        sasl_plain_username: the user of SASL; also for leases, if their URL begins with https.
        sasl_plain_password: the user's password, also for SCRAM.
        sasl_oauth_token_provider: for OAUTHBEARER: has `async def token(self) -> str`, which
            returns a valid token at each login; also for leases, if their URL begins with https.
    """

    bootstrap_servers: str | Sequence[str]
    leases: str
    client_id: str = "pidlease"
    value_serializer: Serializer | None = None
    key_serializer: Serializer | None = None
    name: str | None = None
    policy: PolicyName = "strict"
    pid: int | None = None
    generation: int | None = None
    sequences: Mapping[Place, int] | None = field(default_factory=lambda: MappingProxyType({}))
    initial_sequence_id: int | None = None
    compression_type: Codec | None = None
    max_batch_size: int = 65_536
    max_request_size: int = 1_000_000
    linger_ms: float = 0
    max_in_flight: int = IN_FLIGHT_MAX
    buffer_memory: int = 32 << 20
    delivery_timeout_ms: float = 120_000
    request_timeout_ms: float = 30_000
    retry_backoff_ms: float = 100
    retry_backoff_max_ms: float = 1_000
    metadata_max_age_ms: float = 300_000
    renew_before: float = 0.1

    def __post_init__(self) -> None:
        """Validate the options.

        Raises:
            ValueError: one is invalid; the text names it.
        """
        for problem in (
            self._identity_problem(),
            self._number_problem(),
            self._size_problem(),
            self._time_problem(),
            self.security_problem,
        ):
            if problem:
                raise ValueError(problem)

    @property
    def monotonic(self) -> bool:
        """Whether sequence gaps are allowed."""
        return self.policy == "monotonic"

    @property
    def is_secured(self) -> bool:
        """Whether TLS or a login is used, to one of the ports at least."""
        return self.security_protocol != "PLAINTEXT" or self.leases.lower().startswith("https:")

    @property
    def codec(self) -> str | None:
        """The codec of batches; None: no compression."""
        return None if self.compression_type == "none" else self.compression_type

    def _identity_problem(self) -> str:
        if self.policy not in ("strict", "monotonic"):
            return f"policy {self.policy!r} is neither strict nor monotonic"
        if self.name is not None and not 1 <= len(self.name.encode()) <= _NAME_BYTES_MAX:
            return f"name has 1 to {_NAME_BYTES_MAX} bytes"
        if self.name is not None and self.pid is not None:
            return "name and pid cannot both be given: the server chooses a name's PID"
        if self.monotonic and self.name is None:
            return "policy monotonic needs a name"
        for which in ("value_serializer", "key_serializer"):
            if not callable(getattr(self, which) or bytes):
                return f"{which} is a function that returns bytes"
        if not _is_url(self.leases):
            given = self.leases.rpartition("@")[2]
            return f"leases is the URL of the HTTP port, http://HOST:PORT; it is {given!r}"
        return ""

    def _number_problem(self) -> str:
        if self.pid is None and (self.generation is not None or self.sequences):
            return "generation and sequences go with a pid"
        if self.initial_sequence_id is not None and not self.monotonic:
            return "initial_sequence_id goes with policy monotonic"
        if self.pid is not None and self.pid <= 0:
            return f"pid {self.pid} is not above 0"
        numbers = {"generation": self.generation, **{
            f"sequences of {place}": number for place, number in (self.sequences or {}).items()
        }}  # fmt: skip
        for what, number in numbers.items():
            if number is not None and not 0 <= number <= _INT63_MAX:
                return f"{what}: {number} is outside 0..{_INT63_MAX}"
        if self.initial_sequence_id is not None and not -1 <= self.initial_sequence_id < _INT63_MAX:
            return f"initial_sequence_id {self.initial_sequence_id} is outside -1..{_INT63_MAX - 1}"
        if self.pid is not None and policy_of(self.pid) is not Policy.STRICT:
            # The client would send by one policy's rules, and the server validate by another's.
            return f"pid {self.pid} was not leased with policy strict"
        return ""

    def _size_problem(self) -> str:
        if self.compression_type not in (None, "none", *CODECS):
            return f"compression_type {self.compression_type!r} is none of {sorted(CODECS)}"
        if not 1 <= self.max_in_flight <= IN_FLIGHT_MAX:
            return f"max_in_flight is 1 to {IN_FLIGHT_MAX}: so many the server remembers"
        if not 0 < self.renew_before <= _RENEW_BEFORE_MAX:
            return f"renew_before is a part of a lease, above 0, at most {_RENEW_BEFORE_MAX}"
        for name in ("max_batch_size", "max_request_size", "buffer_memory", "delivery_timeout_ms",
                     "request_timeout_ms", "retry_backoff_ms", "metadata_max_age_ms"):  # fmt: skip
            if not getattr(self, name) > 0:
                return f"{name} is above 0"
        if self.max_batch_size > self.max_request_size:
            return "max_batch_size is not above max_request_size"
        return ""

    def _time_problem(self) -> str:
        if not self.linger_ms >= 0:
            return "linger_ms is not below 0"
        if self.linger_ms >= self.delivery_timeout_ms:
            return "linger_ms is below delivery_timeout_ms, or nothing is sent in time"
        if not self.retry_backoff_max_ms >= self.retry_backoff_ms:
            return "retry_backoff_max_ms is not below retry_backoff_ms"
        return ""


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or brackets without an IPv6 address
        return False


def settings_of(options: ProducerOptions) -> ProducerSettings:
    """Return the settings of a producer.

    Raises:
        ValueError: an option is missing, unknown, or invalid.
    """
    if missing := {"bootstrap_servers", "leases"} - options.keys():
        raise ValueError(f"not given: {', '.join(sorted(missing))}")
    if unknown := options.keys() - ProducerOptions.__annotations__.keys():
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    return ProducerSettings(**options)
