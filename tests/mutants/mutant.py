"""What a mutant is, and the places where it is looked for."""

from dataclasses import dataclass

SIM = "tests/sim/test_power_loss_engine.py::test_crashes_by_seed"
FAULTS = "tests/unit/log/test_embedded_faults.py"
LOG = "tests/unit/log/test_embedded_log.py"
DAMAGE = "tests/unit/log/test_embedded_damage.py"
FLUSH = "tests/unit/log/test_flush_beside.py"
CACHED_READS = "tests/unit/log/test_cached_reads.py"
FETCH = "tests/kafka_listener/test_fetch.py"
OPEN_LOGS = "tests/unit/log/test_open_logs.py"
SNAPSHOTS = "tests/unit/storage/test_snapshots.py"
TOPICS = "tests/unit/storage/test_topics.py"
FOLDER = "tests/unit/log/test_data_directory.py"
LOG_TOPICS = "tests/unit/log/test_log_topics.py"
LOST_PLACE = "tests/unit/log/test_lost_place.py"
BATCH = "tests/unit/kafka/test_record_batch.py"
SEQUENCE = "tests/unit/coordination/test_file_sequence.py"
PARTITION = "tests/unit/engine/test_partition.py"
LEASING = "tests/unit/engine/test_leases.py"
CHANGES = "tests/unit/engine/test_topic_changes.py"
COLLISIONS = "tests/unit/engine/test_topic_collisions.py"
HISTORY = "tests/unit/cli/test_sequence_history.py"
RECOVERY = "tests/unit/engine/test_recovery.py"
RING = "tests/unit/core/test_ring.py"
JUDGE = "tests/unit/core/test_judge.py"
GOLDEN = "tests/unit/core/test_golden.py"
PACKED = "tests/unit/core/test_packed.py"
STATE = "tests/unit/core/test_state.py"
ORDER = "tests/kafka_listener/test_order.py"
READ_BUFFER = "tests/kafka_listener/test_read_buffer.py"
PRODUCE = "tests/kafka_listener/test_produce_errors.py"
NETWORK = "tests/crash/test_network.py"
NAMES = "tests/http_api/test_names.py"
NAMING = "tests/unit/engine/test_named_leases.py"
VERIFIED = "tests/http_api/test_verify.py"
IDENTIFIED = "tests/kafka_listener/test_identified.py"
WIRE_GOLDEN = "tests/kafka_listener/test_golden.py"
APPENDS = "tests/kafka_listener/test_golden_appends.py"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One small edit, and the tests that must notice it.

    Attributes:
        name: what is broken.
        path: of the file.
        old: the text that stands there, exactly once.
        new: the text in its place.
        tests: where at least one must turn red, and no other.
        server: whether the tests start servers, so that these must run the broken copy, too.
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]
    server: bool = False

    def apply(self, text: str) -> str:
        """The text of the file, broken.

        Raises:
            ValueError: the code is no longer what the mutant was made for.
        """
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: in {self.path} its text stands {found} times, not once")
        return text.replace(self.old, self.new)
