"""The sink as Spark calls it, without a JVM: twice on the driver for a micro-batch, and in tasks.

The server is real, and so are the checkpoint and the notes of starts. `test_plain` and
`test_crashes` do the same with Spark.
"""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pidlease.core.topic_partition import TopicPartition
from pidlease.spark.errors import SinkError, SinkFencedError
from pidlease.spark.partition_offsets import Offsets, offsets_to_json
from pidlease.spark.sink.run_state import RunState, RunStore
from pidlease.spark.sink.sink_writer import StreamSink
from pidlease.spark.sink.start_note import StartNote, StartNotes
from tests.copier.sides import read_all
from tests.servers.pidlease import PidleaseServer

QUERY = "query-id"
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
SCHEMA = (
    StructType().add("topic", "string").add("partition", "integer").add("offset", "long")
    .add("value", "string")
)  # fmt: skip


class Application:
    """An application with the query.

    Parameters:
        folder: its local folder, new for each application.
    """

    def __init__(
        self, folder: Path, checkpoint: Path, server: PidleaseServer, patch: pytest.MonkeyPatch
    ) -> None:
        folder.mkdir()
        self._folder = folder
        self._checkpoint = checkpoint
        self._patch = patch
        self._starts = 0
        self._begins: Offsets = {}
        self.options = {
            "kafka.bootstrap.servers": server.bootstrap, "leases": server.http_url,
            "topic": "copy", "checkpointlocation": str(checkpoint), "deliveryTimeoutMs": "20000",
        }  # fmt: skip

    def start(self) -> None:
        """Start the query, as its listener notes it."""
        self._starts += 1
        self.spark_run = f"{self._folder.name}-{self._starts}"
        for each in ("offsets", "commits"):
            (self._checkpoint / each).mkdir(parents=True, exist_ok=True)
        (self._checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
        StartNotes(self._folder).write(QUERY, StartNote(self.spark_run))

    def plan(self, number: int, ends: Offsets) -> None:
        """Save the offsets of a micro-batch, as Spark does before it begins."""
        text = "\n".join(("v1", "{}", json.dumps(offsets_to_json(ends))))
        (self._checkpoint / "offsets" / str(number)).write_text(text)

    def sink(self) -> StreamSink:
        """Make a writer, as Spark does on the driver."""
        self._patch.setenv("SPARK_LOCAL_DIRS", str(self._folder))
        return StreamSink(dict(self.options), SCHEMA)

    def write(
        self, sink: StreamSink, source: TopicPartition, first: int, end: int
    ) -> WriterCommitMessage:
        """Run a task."""
        context = TaskContext._getOrCreate()
        context._localProperties = {"spark.jobGroup.id": self.spark_run}
        self._patch.setattr(TaskContext, "_taskContext", context)
        copy: StreamSink = pickle.loads(pickle.dumps(sink))
        return copy.write(rows(source, first, end))

    def commit(self, number: int, messages: list[WriterCommitMessage | None]) -> None:
        """Commit a micro-batch by another writer, and then in the checkpoint."""
        self.sink().commit(messages, number)
        (self._checkpoint / "commits" / str(number)).write_text("v1\n{}")

    def whole(self, number: int, begins: Offsets, ends: Offsets) -> None:
        """Run a whole micro-batch."""
        self.plan(number, ends)
        sink = self.sink()
        messages = [self.write(sink, each, begins.get(each, 0), end) for each, end in ends.items()]
        self.commit(number, [*messages])


def rows(source: TopicPartition, first: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, some at a time."""
    for begin in range(first, end, 7):
        offsets = list(range(begin, min(begin + 7, end)))
        yield pa.record_batch({
            "topic": [source.topic] * len(offsets),
            "partition": pa.array([source.partition] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "value": [f"{source.partition}/{each}" for each in offsets],
        })  # fmt: skip


def stored(server: PidleaseServer) -> dict[int, list[bytes | None]]:
    """Read the destination."""
    found = read_all(server.bootstrap, "copy", 2)
    return {partition: [row.value for row in own] for partition, own in found.items()}


def values(partition: int, end: int) -> list[bytes | None]:
    """Return what a partition has if each row is stored once, in order."""
    return [b"%d/%d" % (partition, each) for each in range(end)]


def state_of(checkpoint: Path) -> RunState:
    """Return the state of the newest run."""
    return RunStore(checkpoint / "pidlease").before()[0]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def first(
    tmp_path: Path, checkpoint: Path, server: PidleaseServer, monkeypatch: pytest.MonkeyPatch
) -> Application:
    """An application; the server runs."""
    server.start()
    return Application(tmp_path / "first", checkpoint, server, monkeypatch)


def test_a_run_for_each_start(first: Application, checkpoint: Path, server: PidleaseServer) -> None:
    """Micro-batches of one start share PIDs and generation; the next start raises it."""
    first.start()
    first.whole(0, {}, {A: 20, B: 30})
    before = state_of(checkpoint)
    assert len(list((checkpoint / "pidlease").iterdir())) == 1
    first.whole(1, {A: 20, B: 30}, {A: 41, B: 30})
    again = state_of(checkpoint)
    assert {each: (own.pid, own.generation) for each, own in again.sources.items()} == {
        each: (own.pid, own.generation) for each, own in before.sources.items()
    }
    first.start()
    first.whole(2, {A: 41, B: 30}, {A: 50, B: 33})
    after = state_of(checkpoint)
    for each, own in after.sources.items():
        assert (own.pid, own.generation - 1) == (
            again.sources[each].pid,
            again.sources[each].generation,
        )
    assert len(list((checkpoint / "pidlease").iterdir())) == 2
    assert stored(server) == {0: values(0, 50), 1: values(1, 33)}
    assert sum(each.duplicates for each in after.sources.values()) == 0


def test_an_application_dies_in_a_micro_batch_and_comes_back(
    first: Application, checkpoint: Path, server: PidleaseServer, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Its successor repeats the micro-batch; the one that comes back is fenced, in any place."""
    first.start()
    first.whole(0, {}, {A: 20, B: 30})
    ends = {A: 60, B: 70}
    first.plan(1, ends)
    sink = first.sink()
    done = first.write(sink, A, 20, 60)  # one task has ended, and one has begun
    first.write(sink, B, 30, 44)

    second = Application(tmp_path / "second", checkpoint, server, monkeypatch)
    second.start()
    second.whole(1, {A: 20, B: 30}, ends)
    assert stored(server) == {0: values(0, 60), 1: values(1, 70)}
    duplicates = {each: own.duplicates for each, own in state_of(checkpoint).sources.items()}
    assert duplicates == {A: 40, B: 14}

    with pytest.raises(SinkFencedError, match="another run of this query has taken over"):
        first.write(sink, B, 44, 70)
    first.commit(1, [done])  # in its own folder, which nobody reads any more
    first.plan(2, {A: 80, B: 80})
    late = first.sink()
    with pytest.raises(SinkFencedError, match="has taken over: run-000002"):
        first.write(late, A, 60, 80)
    with pytest.raises(SinkFencedError, match="has taken over: run-000002"):
        first.sink().commit([], 2)
    second.whole(2, ends, {A: 80, B: 80})
    assert stored(server) == {0: values(0, 80), 1: values(1, 80)}
    assert state_of(checkpoint).batch == 2
    for number in range(3, 9):  # the run of the first is forgotten
        second.start()
        second.whole(number, {A: 77 + number, B: 80}, {A: 78 + number, B: 80})
    with pytest.raises(SinkError, match="is not there"):
        first.write(first.sink(), A, 86, 87)
    assert stored(server) == {0: values(0, 86), 1: values(1, 80)}


def test_an_abort_begins_no_run(
    first: Application, checkpoint: Path, server: PidleaseServer
) -> None:
    """Not even if the server is back: the tasks have failed with the first error."""
    first.start()
    first.plan(0, {A: 5})
    first.options["deliveryTimeoutMs"] = "1500"
    server.kill9()
    sink = first.sink()
    server.start()
    with pytest.raises(SinkError, match="cannot be reached"):
        first.write(sink, A, 0, 5)
    first.sink().abort([None], 0)
    assert list((checkpoint / "pidlease").iterdir()) == []
    first.options["deliveryTimeoutMs"] = "20000"
    first.start()
    first.whole(0, {}, {A: 5, B: 0})
    assert stored(server)[0] == values(0, 5)


def test_a_task_of_another_start(first: Application, server: PidleaseServer) -> None:
    """A note that the listener did not replace."""
    first.start()
    first.plan(0, {A: 5})
    sink = first.sink()
    first.spark_run = "another"
    with pytest.raises(SinkError, match=r"saw the start first-1 .* task is of another"):
        first.write(sink, A, 0, 5)
    assert server.metric("pidlease_appended_records_total") == 0
