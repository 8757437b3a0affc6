"""The options of the sink, checked; named as users of Spark's Kafka sink know them."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pidlease.client.pending_batch import CODECS
from pidlease.client.settings import Codec, ProducerSettings
from pidlease.spark.errors import SinkError
from pidlease.spark.spark_options import OptionError, check_names, number, truth

#: Where in `topic` the source's name stands.
NAME: Final = "{topic}"
_CLIENT_ID: Final = "pidlease-spark"
#: What a source's offset is multiplied by fits 63 bits up to offset 2^43.
_ROWS_MAX: Final = 1 << 20
_ROWS: Final = "maxRowsPerRecord"
_BATCH_BYTES: Final = 256 << 10
_DELIVERY_MS: Final = 120_000
_REQUEST_MS: Final = 30_000

KNOWN: Final = (
    "kafka.bootstrap.servers", "leases", "topic", "checkpointLocation", "stateLocation", _ROWS,
    "kafka.compression.type", "batchBytes", "deliveryTimeoutMs", "requestTimeoutMs", "append",
    "trustCheckpoint", "kafka.security.protocol", "kafka.ssl.ca.location", "run",
    "queryName", "outputMode",  # Spark's own, which it gives to every sink
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """What a sink was told.

    Attributes:
        bootstrap_servers: HOST:PORT,... of a pidlease's Kafka port.
        leases: the URL of its HTTP port.
        topic: the destination's; `{topic}` stands for the source's name.
        checkpoint: Spark's checkpoint of the query, a path or a URI; empty: there is none.
        state: where the sink keeps what it needs for a restart, on the driver's file system.
        rows_max: how many rows one record of the source may become.
        compression: of batches.
        batch_bytes: of a batch before compression; a larger record goes alone.
        delivery_timeout_ms: how long the destination may go without an answer.
        request_timeout_ms: how long one answer may take; then it is asked again.
        append: begin although the destination has records already.
        trust: go on from the checkpoint where nothing else tells.
        run: the file in `state` of the run that was prepared; empty: none was.
    """

    bootstrap_servers: str
    leases: str
    topic: str = NAME
    checkpoint: str = ""
    state: Path
    rows_max: int = 1
    compression: Codec | None = None
    batch_bytes: int = _BATCH_BYTES
    delivery_timeout_ms: int = _DELIVERY_MS
    request_timeout_ms: int = _REQUEST_MS
    append: bool = False
    trust: bool = False
    security_protocol: Literal["PLAINTEXT", "SSL"] = "PLAINTEXT"
    ca: str | None = None
    run: str = ""

    def renamed(self, topic: str) -> str:
        """What a topic of the source is called at the destination."""
        return self.topic.replace(NAME, topic)

    def producer(self) -> ProducerSettings:
        """The same as a producer's.

        Raises:
            SinkError: one makes no sense.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca) if self.tls else None
            return ProducerSettings(
                bootstrap_servers=self.bootstrap_servers.split(","),
                leases=self.leases,
                client_id=_CLIENT_ID,
                delivery_timeout_ms=float(2**53),  # the task has a clock of its own
                request_timeout_ms=self.request_timeout_ms,
                security_protocol=self.security_protocol,
                ssl_context=context,
            )
        except (ValueError, OSError) as error:
            raise SinkError(str(error)) from None

    @property
    def tls(self) -> bool:
        """Whether the destination is reached by TLS."""
        return self.security_protocol == "SSL"


def read_settings(options: Mapping[str, str]) -> SinkSettings:
    """The settings, from Spark's options; their names are not case-sensitive.

    Raises:
        SinkError: one is missing, unknown, or makes no sense; it says which.
    """
    try:
        return _read(options)
    except OptionError as error:
        raise SinkError(str(error)) from None


def _read(options: Mapping[str, str]) -> SinkSettings:
    check_names(options, KNOWN)
    # By the names that they have here: in tasks and in writers Spark's are of lower case.
    known = {name.lower(): name for name in KNOWN}
    given = {known[name.lower()]: value for name, value in options.items()}
    missing = [n for n in ("kafka.bootstrap.servers", "leases") if not given.get(n)]
    if missing:
        raise SinkError(
            f"option {' and '.join(missing)} is missing: kafka.bootstrap.servers is HOST:PORT of a"
            " pidlease's Kafka port, leases the URL of its HTTP port, http://HOST:PORT"
        )
    compression = given.get("kafka.compression.type", "none")
    if compression not in ("none", *CODECS):
        raise SinkError(
            f"kafka.compression.type {compression!r} is none of none, {', '.join(CODECS)}"
        )
    protocol = given.get("kafka.security.protocol", "PLAINTEXT")
    if protocol not in ("PLAINTEXT", "SSL"):
        raise SinkError(f"kafka.security.protocol {protocol!r} is neither PLAINTEXT nor SSL")
    checkpoint = given.get("checkpointLocation", "")
    return SinkSettings(
        bootstrap_servers=given["kafka.bootstrap.servers"],
        leases=given["leases"],
        topic=given.get("topic", NAME),
        checkpoint=checkpoint,
        state=_state(checkpoint, given.get("stateLocation", "")),
        rows_max=number(given, _ROWS, most=_ROWS_MAX) or 1,
        compression=compression,  # type: ignore[arg-type] # one of CODECS
        batch_bytes=number(given, "batchBytes", most=1 << 30) or _BATCH_BYTES,
        delivery_timeout_ms=number(given, "deliveryTimeoutMs", most=2**31) or _DELIVERY_MS,
        request_timeout_ms=number(given, "requestTimeoutMs", most=2**31) or _REQUEST_MS,
        append=truth(given, "append", default=False),
        trust=truth(given, "trustCheckpoint", default=False),
        security_protocol=protocol,  # type: ignore[arg-type] # one of both
        ca=given.get("kafka.ssl.ca.location"),
        run=given.get("run", ""),
    )


def _state(checkpoint: str, state: str) -> Path:
    """Where the sink's own files are.

    Raises:
        SinkError: nowhere that it could trust.
    """
    found = state or (checkpoint.rstrip("/") + "/pidlease" if checkpoint else "")
    if not found:
        raise SinkError("option checkpointLocation is missing: without it a restart knows nothing")
    found = found.removeprefix("file://").removeprefix("file:")
    if "://" in found:
        raise SinkError(
            f"the sink keeps its state with fsync and rename, which {found} does not offer; give"
            " stateLocation, a folder on a file system that the driver mounts, and that a driver"
            " elsewhere finds again"
        )
    return Path(found).absolute()
