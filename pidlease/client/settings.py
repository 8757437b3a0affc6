"""The options of a producer, checked."""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, TypedDict

from pidlease.client.pending_batch import CODECS
from pidlease.core.pid import Policy, policy_of

Place = tuple[str, int]
PolicyName = Literal["strict", "monotonic"]
Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]

#: As many as the server remembers with their offsets.
IN_FLIGHT_MAX: Final = 5
_NAME_BYTES_MAX: Final = 256
#: A name gets no third PID while the lease of its first one lasts.
_RENEW_BEFORE_MAX: Final = 0.5
_INT63_MAX: Final = 2**63 - 1


class ProducerOptions(TypedDict, total=False):
    """What `LeasedProducer` and `BlockingProducer` are told; see `Settings`."""

    bootstrap_servers: str | Sequence[str]
    leases: str
    client_id: str
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
    security_protocol: Literal["PLAINTEXT", "SSL"]
    ssl_context: ssl.SSLContext | None


class RecordOptions(TypedDict, total=False):
    """What `send` takes beside topic and value; see `LeasedProducer.send`."""

    key: bytes | None
    partition: int | None
    headers: list[tuple[str, bytes | None]] | None
    timestamp_ms: int | None
    sequence_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A producer's settings.

    Attributes:
        bootstrap_servers: HOST:PORT, or several of them, of the Kafka port.
        leases: where leases are asked for: the URL of the HTTP port, `http://HOST:PORT`.
        client_id: what the server's logs call this client.
        name: of the producer: it gets the same PID again after a crash, and its numbers go on.
        policy: strict numbers without holes; monotonic takes ids of the application's own, which
            rise and may have holes, and needs a name.
        pid: a PID that was leased before,
        generation: the generation to use with it; None: as the server says,
        sequences: and the next number by (topic, partition), where it is not the server's to say.
        initial_sequence_id: of policy monotonic: the first record without an id of its own gets
            the number behind this one; None: it goes on behind the last in the log.
        compression_type: of batches.
        max_batch_size: bytes of a batch before compression; a larger record goes alone.
        max_request_size: bytes of a record at most, and about those of a request.
        linger_ms: how long a batch that is not full waits for more. 0: as long as one is under
            way on its partition.
        max_in_flight: batches of a partition that are sent and not answered.
        buffer_memory: bytes of all records that were not answered, with what is kept for each;
            beyond, `send` waits.
        delivery_timeout_ms: how long a record may take from `send` to its answer.
        request_timeout_ms: how long an answer may take; then the connection is replaced.
        retry_backoff_ms: the wait before a batch is sent again, doubled each time,
        retry_backoff_max_ms: up to this.
        metadata_max_age_ms: how often it is looked for new partitions.
        renew_before: the part of a lease before whose end the next one is leased.
        security_protocol: PLAINTEXT or SSL,
        ssl_context: and by what.
    """

    bootstrap_servers: str | Sequence[str]
    leases: str
    client_id: str = "pidlease"
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
    security_protocol: Literal["PLAINTEXT", "SSL"] = "PLAINTEXT"
    ssl_context: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            ValueError: names the option.
        """
        for problem in (
            self._identity_problem(),
            self._number_problem(),
            self._size_problem(),
            self._time_problem(),
        ):
            if problem:
                raise ValueError(problem)

    @property
    def monotonic(self) -> bool:
        """Whether numbers may have holes."""
        return self.policy == "monotonic"

    @property
    def codec(self) -> str | None:
        """What batches are compressed by."""
        return None if self.compression_type == "none" else self.compression_type

    def _identity_problem(self) -> str:
        if self.policy not in ("strict", "monotonic"):
            return f"policy {self.policy!r} is neither strict nor monotonic"
        if self.name is not None and not 1 <= len(self.name.encode()) <= _NAME_BYTES_MAX:
            return f"name has 1 to {_NAME_BYTES_MAX} bytes"
        if self.name is not None and self.pid is not None:
            return "name and pid cannot both be given: a name's PID is the server's to say"
        if self.monotonic and self.name is None:
            return "policy monotonic needs a name"
        if not self.leases.startswith(("http://", "https://")):
            return "leases is the URL of the HTTP port, http://HOST:PORT"
        return ""

    def _number_problem(self) -> str:
        if self.pid is None and (self.generation is not None or self.sequences):
            return "generation and sequences go with a pid"
        if self.initial_sequence_id is not None and not self.monotonic:
            return "initial_sequence_id goes with policy monotonic"
        if self.pid is not None and self.pid <= 0:
            return f"pid {self.pid} is none"
        numbers = {"generation": self.generation, **{
            f"sequences of {place}": number for place, number in (self.sequences or {}).items()
        }}  # fmt: skip
        for what, number in numbers.items():
            if number is not None and not 0 <= number <= _INT63_MAX:
                return f"{what}: {number} is outside 0..{_INT63_MAX}"
        if self.initial_sequence_id is not None and self.initial_sequence_id < -1:
            return "initial_sequence_id is at least -1"
        if self.pid is not None and policy_of(self.pid) is not Policy.STRICT:
            # It would be sent by the rules of one policy, and judged by those of another.
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
        if self.security_protocol == "SSL" and self.ssl_context is None:
            return "security_protocol SSL needs an ssl_context"
        return ""

    def _time_problem(self) -> str:
        if not self.linger_ms >= 0:
            return "linger_ms is not below 0"
        if self.linger_ms >= self.delivery_timeout_ms:
            return "linger_ms is below delivery_timeout_ms, or nothing is sent in time"
        if not self.retry_backoff_max_ms >= self.retry_backoff_ms:
            return "retry_backoff_max_ms is not below retry_backoff_ms"
        return ""


def settings_of(options: ProducerOptions) -> Settings:
    """The settings that a producer was given.

    Raises:
        ValueError: one is missing, unknown, or makes no sense.
    """
    if missing := {"bootstrap_servers", "leases"} - options.keys():
        raise ValueError(f"not given: {', '.join(sorted(missing))}")
    if unknown := options.keys() - ProducerOptions.__annotations__.keys():
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    return Settings(**options)
