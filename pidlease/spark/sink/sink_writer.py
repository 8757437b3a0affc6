"""The sink as Spark sees it: created in the driver for each micro-batch, and sent to its tasks."""

import asyncio
import logging
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from typing_extensions import override

from pidlease.core.topic_partition import TopicPartition
from pidlease.spark.errors import SinkError, SinkFencedError
from pidlease.spark.partition_offsets import OffsetRange
from pidlease.spark.pyspark_versions import DataSourceStreamArrowWriter
from pidlease.spark.sink.name_leases import ending_soon
from pidlease.spark.sink.query_shape import find_columns
from pidlease.spark.sink.row_batches import RecordEncoder, RowNumbering
from pidlease.spark.sink.run_preparation import connect
from pidlease.spark.sink.run_start import begin_stream_run
from pidlease.spark.sink.run_state import RunState, RunStore
from pidlease.spark.sink.settings import SinkSettings, read_settings
from pidlease.spark.sink.spark_checkpoint import (
    MicroBatch,
    check_forward,
    query_id,
    read_micro_batch,
)
from pidlease.spark.sink.start_note import StartNotes
from pidlease.spark.sink.table_writes import end_table
from pidlease.spark.sink.task_sender import TaskResult, TaskSender

_log = logging.getLogger(__name__)
_NO_RUN = (
    "df.write.format('pidlease') alone cannot be exact: Spark does not show the sink which offsets"
    " each task has, so rows could be lost. Write the table as"
    " pidlease.spark.exactly_once_table(df, options).save(), which looks first"
)
#: The run id of a streaming query, in the tasks of its micro-batches.
_SPARK_RUN = "spark.jobGroup.id"


class _TaskWriter:
    """Writes a task's rows; Spark sends it to the tasks."""

    def __init__(self, run: "_PreparedRun", batch: MicroBatch, spark_run: str = "") -> None:
        state = run.state
        self._settings = run.settings
        self._columns = run.columns
        self._spark_run = spark_run
        self._sources = {source: state.sources[source] for source in batch.ranges}
        self._ranges = dict(batch.ranges)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Send a task's rows.

        Raises:
            SinkError: the rows cannot be sent.
        """
        self._check_start()
        settings = self._settings
        topics = {source.topic: settings.renamed(source.topic) for source in self._ranges}
        numbering = RowNumbering(self._columns, settings.rows_max, topics, self._ranges)
        encoder = RecordEncoder(self._columns, settings.compression, settings.batch_bytes)

        async def send() -> TaskResult:
            delivery_s = settings.delivery_timeout_ms / 1000
            sender = TaskSender(settings.producer(), delivery_s, self._sources, numbering, encoder)
            return await sender.run(iterator)

        return asyncio.run(send())

    def _check_start(self) -> None:
        """Check that the note of the start is of the start that this task works for.

        Raises:
            SinkError: it is of another one.
        """
        context = TaskContext.get()
        actual = None if context is None else context.getLocalProperty(_SPARK_RUN)
        if self._spark_run and actual != self._spark_run:
            raise SinkError(
                f"the application saw the start {self._spark_run} of this query, and the task is"
                f" of {actual}: was its listener removed? Start the query as"
                " pidlease.spark.exactly_once(df, options).start()"
            )


class _PreparedRun:
    """A run that was begun, in the driver.

    Parameters:
        name: the run's name in the sink's state.

    Raises:
        SinkError: its state cannot be read.
    """

    def __init__(self, settings: SinkSettings, schema: StructType, name: str) -> None:
        self.settings = settings
        self.name = name
        self.columns = find_columns(schema)
        self.store = RunStore(settings.state)
        self.state = self.store.read(name)

    def prepare(self, batch: MicroBatch) -> None:
        """Lease what a micro-batch needs, once, before any of its rows is written.

        Raises:
            SinkFencedError: another run has begun.
            SinkError: a lease is refused or unavailable, or the source was cut.
        """
        if batch.number <= self.state.prepared:
            return  # Spark creates the sink again to commit the micro-batch
        self.store.check_newest(self.name)
        state = self.state
        # A partition that was gone for a time is not in the preceding micro-batch. For the others
        # the sink may know more than the checkpoint, if both come from a backup.
        check_forward(batch, {
            source: producer.high_sequence // self.settings.rows_max + 1
            for source, producer in state.sources.items()
            if source in batch.ranges and batch.ranges[source].start < 0
        })  # fmt: skip
        if batch.ranges.keys() - state.sources.keys() or ending_soon(state.sources, _now_ms()):
            state = asyncio.run(self._leased(batch))
        query = query_id(self.settings.checkpoint)
        # Saved before the first row is sent: a restart must know of new leases.
        self._save(replace(state, prepared=batch.number, query_id=query))

    async def _leased(self, batch: MicroBatch) -> RunState:
        before = self.store.before(self.name)
        async with connect(self.settings) as preparation:
            return await preparation.renew(await preparation.grow(self.state, batch, before))

    def commit(self, messages: list[WriterCommitMessage | None], batch: int) -> None:
        """Save the results of all tasks.

        Parameters:
            batch: the micro-batch; -1: a table.

        Raises:
            SinkError: two tasks had rows of one source partition, or the state cannot be saved.
        """
        state = replace(self.state, batch=max(batch, self.state.batch))
        seen: set[TopicPartition] = set()
        for message in messages:
            if not isinstance(message, TaskResult) or message.source is None:
                continue
            if message.source in seen:
                raise SinkError(
                    f"two tasks had rows of {message.source} of the source: some may be missing at"
                    " the destination. Compare both sides, and begin with a new checkpoint and a"
                    " new topic"
                )
            seen.add(message.source)
            state = _with_result(state, message.source, message)
        self._save(state if batch >= 0 else end_table(state))

    def _save(self, state: RunState) -> None:
        if state != self.state:
            self.store.write(self.name, state)
            self.state = state


def _now_ms() -> int:
    return int(time.time() * 1000)


def _with_result(state: RunState, source: TopicPartition, result: TaskResult) -> RunState:
    known = state.sources[source]
    new = replace(
        known,
        chains={**known.chains, **result.chains},
        sent=known.sent + result.sent,
        duplicates=known.duplicates + result.duplicates,
    )
    ends = {
        destination: max(end, result.ends.get(destination, 0))
        for destination, end in state.ends.items()
    }
    return replace(state.with_source(source, new), ends=ends)


class StreamSink(DataSourceStreamArrowWriter):
    """Writes micro-batches.

    If exactly-once is not possible, `write` and `commit` raise SinkError.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = dict(options)
        self._schema = schema
        self._task: _TaskWriter | None = None
        self._refused = ""
        self._fenced = False
        try:
            self._task = self._prepared()
        except SinkError as error:
            # Raised later, in the tasks: Spark creates a writer to abort a micro-batch, too, and an
            # error here would hide the reason of the failure.
            self._refused, self._fenced = str(error), isinstance(error, SinkFencedError)

    def _prepared(self) -> _TaskWriter:
        settings = read_settings(self._options)
        if not settings.checkpoint:
            raise SinkError("option checkpointLocation is missing: a restart could not resume")
        name, spark_run = self._begun(settings)
        run = _PreparedRun(settings, self._schema, name)
        batch = read_micro_batch(settings.checkpoint)
        if batch is None:
            raise SinkError(f"there is no micro-batch in checkpoint {settings.checkpoint}")
        run.prepare(batch)
        return _TaskWriter(run, batch, spark_run)

    def _begun(self, settings: SinkSettings) -> tuple[str, str]:
        """Return the run of this start of the query; begin it before the first micro-batch.

        Returns:
            The run's name, and Spark's run id; that is empty if `exactly_once` began the run.

        Raises:
            SinkError: exactly-once is not possible.
        """
        if settings.run:
            return settings.run, ""
        notes, query = StartNotes.of_worker(os.environ), query_id(settings.checkpoint)
        note = notes.read(query)
        if note.problem:
            raise (SinkFencedError if note.fenced else SinkError)(note.problem)
        if not note.run:
            try:
                note = replace(note, run=begin_stream_run(settings, find_columns(self._schema)))
            except SinkError as error:
                # Noted: the writer that aborts the micro-batch must not begin a run.
                fenced = isinstance(error, SinkFencedError)
                notes.write(query, replace(note, problem=str(error), fenced=fenced))
                raise
            # Spark creates the sink twice for each micro-batch; from now on this is its run.
            notes.write(query, note)
        return note.run, note.spark_run

    def _usable(self) -> _TaskWriter:
        if self._task is None:
            raise (SinkFencedError if self._fenced else SinkError)(self._refused)
        return self._task

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._usable().write(iterator)

    @override
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._usable()
        settings = read_settings(self._options)
        name, _ = self._begun(settings)
        _PreparedRun(settings, self._schema, name).commit(messages, batchId)

    @override
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        # What was sent stays: the micro-batch is repeated, and its rows are duplicates then.
        _log.warning("micro-batch %s failed; %s tasks were done", batchId, _count(messages))


class BatchSink(DataSourceArrowWriter):
    """Writes the rows of a query that is no stream.

    Raises:
        SinkError: the query was not prepared, or its state cannot be read.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise SinkError("a log is not overwritten: use mode append")
        self._settings = read_settings(options)
        self._schema = schema
        if not self._settings.run:
            raise SinkError(_NO_RUN)
        run = self._run()
        ranges = {}
        for partition, source in run.state.sources.items():
            if source.tables and not source.tables[-1].whole:
                start, end, _ = source.tables[-1]
                ranges[partition] = OffsetRange(start, end)
        self._task = _TaskWriter(run, MicroBatch(-1, ranges, -1))

    def _run(self) -> _PreparedRun:
        return _PreparedRun(self._settings, self._schema, self._settings.run)

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._task.write(iterator)

    @override
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._run().commit(messages, -1)

    @override
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        # What was sent stays: the query, prepared again, finds it at the destination.
        _log.warning("the query failed; %s tasks were done", _count(messages))


def _count(messages: list[WriterCommitMessage | None]) -> int:
    return sum(message is not None for message in messages)
