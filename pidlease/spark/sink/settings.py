"""The sink's options, validated; named as in Spark's Kafka sink."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pidlease.client.pending_batch import CODECS
from pidlease.client.settings import Codec, ProducerSettings
from pidlease.kafka.client.kafka_options import NAMES as SECURITY
from pidlease.kafka.client.kafka_options import (
    Security,
    connection_options,
    read_security,
    refuse_unmapped,
)
from pidlease.spark.errors import OptionError, SinkError
from pidlease.spark.spark_options import check_names, number, truth

#: Placeholder for the source's name in option `topic`.
NAME: Final = "{topic}"
_CLIENT_ID: Final = "pidlease-spark"
#: A sequence number is the offset times this at most: 63 bits suffice up to offset 2^43.
_ROWS_MAX: Final = 1 << 20
_ROWS: Final = "maxRowsPerRecord"
_BATCH_BYTES: Final = 256 << 10
_DELIVERY_MS: Final = 120_000
_REQUEST_MS: Final = 30_000

KNOWN: Final = (
    "kafka.bootstrap.servers", "leases", "topic", "checkpointLocation", "stateLocation", _ROWS,
    "kafka.compression.type", "batchBytes", "deliveryTimeoutMs", "requestTimeoutMs", "append",
    "trustCheckpoint", *(f"kafka.{name}" for name in SECURITY), "run",
    "queryName", "outputMode",  # Spark's own, which it gives to every sink
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """The sink's settings.

    Attributes:
        bootstrap_servers: HOST:PORT,... of a pidlease's Kafka port.
        leases: the URL of its HTTP port.
        topic: the destination topic; `{topic}` stands for the source's name.
        checkpoint: path or URI of Spark's checkpoint; empty: there is none.
        state: the folder of `RunStore`, on the driver's file system.
        rows_max: how many rows one source record may become.
        batch_bytes: size of a batch before compression; a larger record gets its own batch.
        delivery_timeout_ms: the sink fails after this time without progress.
        request_timeout_ms: a request without a response is repeated after this time.
        append: begin even if the destination has records already.
        trust: rely on the checkpoint if the destination's log no longer reaches back.
        run: the prepared run's name in `state`; empty: none was prepared.
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
    security: Security = field(default=(), repr=False)
    run: str = ""

    def renamed(self, topic: str) -> str:
        """Return the destination topic of a source topic."""
        return self.topic.replace(NAME, topic)

    def producer(self) -> ProducerSettings:
        """Return the settings of a producer for the destination.

        Raises:
            SinkError: a setting is invalid.
        """
        try:
            connection = connection_options(self.security)
            return ProducerSettings(
                bootstrap_servers=self.bootstrap_servers.split(","),
                leases=self.leases,
                client_id=_CLIENT_ID,
                delivery_timeout_ms=float(2**53),  # the task has a clock of its own
                request_timeout_ms=self.request_timeout_ms,
                **connection,
            )
        except (ValueError, OSError) as error:
            raise SinkError(str(error)) from None

    @property
    def give_up_ms(self) -> float:
        """How long a cluster that does not respond is retried."""
        return self.delivery_timeout_ms


def read_settings(options: Mapping[str, str]) -> SinkSettings:
    """Read the settings from Spark's options; names are not case-sensitive.

    Raises:
        SinkError: an option is missing, unknown, or invalid; the text names it.
    """
    try:
        return _read(options)
    except OptionError as error:
        raise SinkError(str(error)) from None


def _read(options: Mapping[str, str]) -> SinkSettings:
    refuse_unmapped(options)
    check_names(options, KNOWN)
    # Spark lowers the case of the names in tasks and writers.
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
        security=read_security(given),
        run=given.get("run", ""),
    )


def _state(checkpoint: str, state: str) -> Path:
    """Return the folder of the sink's own files.

    Raises:
        SinkError: no folder with fsync and rename is given.
    """
    folder = state or (checkpoint.rstrip("/") + "/pidlease" if checkpoint else "")
    if not folder:
        raise SinkError("option checkpointLocation is missing: a restart could not resume")
    folder = folder.removeprefix("file://").removeprefix("file:")
    if "://" in folder:
        raise SinkError(
            f"the sink keeps its state with fsync and rename, which {folder} does not offer; give"
            " stateLocation, a folder on a file system that the driver mounts, and that a driver"
            " elsewhere finds again"
        )
    return Path(folder).absolute()
