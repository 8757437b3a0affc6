"""What is compared with what, under which load, and the ratio that is wanted."""

from __future__ import annotations

from tests.benchmarks.comparison import P99_MS, Comparison
from tests.benchmarks.contenders import Contender, Fsync, Secured
from tests.benchmarks.load import Load

# librdkafka's defaults but for idempotence, as most users run it. Records of 1 KB.
_BULK = Load(records=20_000, record_bytes=1_000, bursts=8, settings={})
#: librdkafka's consumer with its defaults; the records are in the page cache on both sides.
_READ = Load(records=100_000, record_bytes=1_000, bursts=3, settings={}, reads=True)
_SINGLE_SETTINGS: dict[str, str | int | float | bool] = {
    "linger.ms": 0,
    "batch.num.messages": 1,  # each record becomes a batch and a request of its own
    "max.in.flight.requests.per.connection": 5,
}
_SINGLE = Load(records=1_000, record_bytes=100, bursts=20, settings=_SINGLE_SETTINGS)
# With an fsync for each request the same burst would take seconds.
_SINGLE_FSYNC = Load(records=300, record_bytes=100, bursts=10, settings=_SINGLE_SETTINGS)

# Two seconds each at 20,000 records a second; librdkafka's defaults (linger.ms 5).
_PACED = Load(records=40_000, record_bytes=1_000, bursts=3, settings={}, per_second=20_000)

# Two clients in Python at one server; aiokafka's default for both.
_PYTHON: dict[str, str | int | float | bool] = {"max_batch_size": 16_384}
_PYTHON_1K = Load(records=10_000, record_bytes=1_000, bursts=8, settings=_PYTHON)
_PYTHON_100 = Load(records=30_000, record_bytes=100, bursts=8, settings=_PYTHON)

_OURS = Contender("pidlease", Fsync.NEVER)
_OURS_BATCH = Contender("pidlease", Fsync.BATCH)
_OURS_UNJUDGED = Contender("pidlease", Fsync.NEVER, judging=False)
_OURS_SCRAPED = Contender("pidlease", Fsync.NEVER, scraped=True)
_OURS_UNMEASURED = Contender("pidlease", Fsync.NEVER, measured=False)
_OURS_LOGINS = Contender("pidlease", Fsync.NEVER, secured=Secured.LOGINS)
_OURS_ACLS = Contender("pidlease", Fsync.NEVER, secured=Secured.ACLS)
_OURS_TLS = Contender("pidlease", Fsync.NEVER, secured=Secured.TLS)
_KAFKA_TLS = Contender("kafka", Fsync.NEVER, secured=Secured.TLS)
_OUR_CLIENT = Contender("pidlease", Fsync.NEVER, client="LeasedProducer")
_AIOKAFKA = Contender("pidlease", Fsync.NEVER, client="aiokafka")
_KAFKA = Contender("kafka", Fsync.NEVER)
_KAFKA_BATCH = Contender("kafka", Fsync.BATCH)
_KAFKA_AIOKAFKA = Contender("kafka", Fsync.NEVER, client="aiokafka")
_FRONT = Contender("in front", Fsync.NEVER)
_FRONT_JAVA = Contender("in front", Fsync.NEVER, client="Java")
_KAFKA_JAVA = Contender("kafka", Fsync.NEVER, client="Java")
_FRONT_CLIENT = Contender("in front", Fsync.NEVER, client="LeasedProducer")
_KAFKA_TWIN = Contender("kafka", Fsync.NEVER, twin=" twin")
_KAFKA_BATCH_TWIN = Contender("kafka", Fsync.BATCH, twin=" twin")


def _self_check(name: str, one: Contender, twin: Contender, load: Load, unit: str) -> Comparison:
    """Only run when asked for by name."""
    return Comparison(name, one, twin, load, unit, target=None, default=False)


# In an order that lets servers be stopped early: what needs the same ones stands together.
SUITE = (
    # Kafka against Kafka: how far from 1.0 this machine gets with nothing to tell apart.
    _self_check("self-check-1k", _KAFKA, _KAFKA_TWIN, _BULK, "MB/s"),
    _self_check("self-check-single", _KAFKA, _KAFKA_TWIN, _SINGLE, "records/s"),
    _self_check("self-check-1k-fsync", _KAFKA_BATCH, _KAFKA_BATCH_TWIN, _BULK, "MB/s"),
    _self_check(
        "self-check-single-fsync", _KAFKA_BATCH, _KAFKA_BATCH_TWIN, _SINGLE_FSYNC, "records/s"
    ),
    Comparison("produce-1k", _OURS, _KAFKA, _BULK, "MB/s", 0.9),
    Comparison("single-record", _OURS, _KAFKA, _SINGLE, "records/s", 1.2),
    Comparison("front-1k", _FRONT, _KAFKA, _BULK, "MB/s", 0.9),
    # Kafka's own producer, with its defaults.
    Comparison("front-java-1k", _FRONT_JAVA, _KAFKA_JAVA, _BULK, "MB/s", 0.9),
    Comparison("front-latency", _FRONT, _KAFKA, _PACED, P99_MS, 1.5),
    Comparison("front-single", _FRONT, _KAFKA, _SINGLE, "records/s", 0.6),
    # Strict numbering, under the partition's writer, beside aiokafka's own straight to Kafka.
    Comparison("front-client-1k", _FRONT_CLIENT, _KAFKA_AIOKAFKA, _PYTHON_1K, "MB/s", None),
    Comparison("consume-1k", _OURS, _KAFKA, _READ, "MB/s", 0.9),
    Comparison("judging-1k", _OURS, _OURS_UNJUDGED, _BULK, "MB/s", 0.98, rounds_factor=2),
    Comparison(
        "judging-single", _OURS, _OURS_UNJUDGED, _SINGLE, "records/s", 0.98, rounds_factor=2
    ),
    Comparison(
        "metrics-1k",
        _OURS_SCRAPED,
        _OURS_UNMEASURED,
        _BULK,
        "MB/s",
        0.98,
        rounds_factor=2,
        starts=3,
    ),
    Comparison(
        "metrics-single",
        _OURS_SCRAPED,
        _OURS_UNMEASURED,
        _SINGLE,
        "records/s",
        0.98,
        rounds_factor=3,
        starts=5,
    ),
    Comparison(
        "acls-single", _OURS_ACLS, _OURS_LOGINS, _SINGLE, "records/s", 0.97, rounds_factor=2
    ),
    Comparison("tls-1k", _OURS_TLS, _KAFKA_TLS, _BULK, "MB/s", 1.0),
    Comparison("client-1k", _OUR_CLIENT, _AIOKAFKA, _PYTHON_1K, "MB/s", 1.0),
    Comparison("client-100b", _OUR_CLIENT, _AIOKAFKA, _PYTHON_100, "records/s", 1.0),
    Comparison("produce-1k-fsync", _OURS_BATCH, _KAFKA_BATCH, _BULK, "MB/s", 0.9),
    Comparison("single-record-fsync", _OURS_BATCH, _KAFKA_BATCH, _SINGLE_FSYNC, "records/s", 1.2),
)
