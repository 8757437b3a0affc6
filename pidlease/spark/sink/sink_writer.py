"""The sink as Spark sees it: created in the driver for each micro-batch, and sent to its tasks."""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from pidlease.core.topic_partition import TopicPartition
from pidlease.spark.errors import NoLeaseError, SinkError, SinkFencedError
from pidlease.spark.partition_offsets import OffsetRange
from pidlease.spark.sink.name_leases import ending_soon
from pidlease.spark.sink.query_shape import QueryColumns, find_columns
from pidlease.spark.sink.row_batches import RecordEncoder, RowNumbering
from pidlease.spark.sink.run_preparation import connect
from pidlease.spark.sink.run_state import RunState, RunStore
from pidlease.spark.sink.settings import SinkSettings, read_settings
from pidlease.spark.sink.spark_checkpoint import MicroBatch, query_id, read_micro_batch
from pidlease.spark.sink.table_writes import end_table
from pidlease.spark.sink.task_sender import TaskResult, TaskSender

_log = logging.getLogger(__name__)
_NO_RUN = (
    "the query was not prepared: start it as pidlease.spark.exactly_once(df, options).start(),"
    " which leases its PIDs and fences the run before; format('pidlease') alone cannot, because"
    " Spark creates it again for each micro-batch"
)


class _TaskWriter:
    """Writes a task's rows; Spark sends it to the tasks."""

    def __init__(
        self, settings: SinkSettings, columns: QueryColumns, state: RunState, batch: MicroBatch
    ) -> None:
        self._settings = settings
        self._columns = columns
        self._sources = {source: state.sources[source] for source in batch.ranges}
        self._ranges = dict(batch.ranges)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Send a task's rows.

        Raises:
            SinkError: the rows cannot be sent.
        """
        settings = self._settings
        topics = {source.topic: settings.renamed(source.topic) for source in self._ranges}
        numbering = RowNumbering(self._columns, settings.rows_max, topics, self._ranges)
        encoder = RecordEncoder(self._columns, settings.compression, settings.batch_bytes)

        async def send() -> TaskResult:
            delivery_s = settings.delivery_timeout_ms / 1000
            sender = TaskSender(settings.producer(), delivery_s, self._sources, numbering, encoder)
            return await sender.run(iterator)

        return asyncio.run(send())


class _PreparedRun:
    """The run that `exactly_once` has prepared, in the driver.

    Raises:
        SinkError: no run was prepared, or its state cannot be read.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.settings = read_settings(options)
        if not self.settings.run:
            raise SinkError(_NO_RUN)
        self.columns = find_columns(schema)
        self.store = RunStore(self.settings.state)
        self.state = self.store.read(self.settings.run)

    def prepare(self, batch: MicroBatch) -> None:
        """Lease what a micro-batch needs, once, before any of its rows is written.

        Raises:
            SinkFencedError: another run has begun.
            SinkError: a lease is refused or unavailable.
        """
        if batch.number <= self.state.prepared:
            return  # Spark creates the sink again to commit the micro-batch
        self.store.check_newest(self.settings.run)
        state = self.state
        if batch.ranges.keys() - state.sources.keys() or ending_soon(state.sources, _now_ms()):
            state = asyncio.run(self._leased(batch))
        query = query_id(self.settings.checkpoint)
        # Saved before the first row is sent: a restart must know of new leases.
        self._save(replace(state, prepared=batch.number, query_id=query))

    async def _leased(self, batch: MicroBatch) -> RunState:
        before = self.store.before(self.settings.run)
        async with connect(self.settings) as preparation:
            state = await preparation.grow(self.state, batch, before)
            try:
                return await preparation.renew(state)
            except NoLeaseError as error:
                # The leases may last for this micro-batch; if not, its tasks fail.
                _log.warning("the leases are not renewed yet: %s", error)
                return state

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
            self.store.write(self.settings.run, state)
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

    If the query was not prepared, or its state cannot be read, `write` and `commit` raise
    SinkError.
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
        run = _PreparedRun(self._options, self._schema)
        batch = read_micro_batch(run.settings.checkpoint)
        if batch is None:
            raise SinkError(f"there is no micro-batch in checkpoint {run.settings.checkpoint}")
        run.prepare(batch)
        return _TaskWriter(run.settings, run.columns, run.state, batch)

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
        _PreparedRun(self._options, self._schema).commit(messages, batchId)

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
        self._options = dict(options)
        self._schema = schema
        run = _PreparedRun(options, schema)
        ranges = {}
        for partition, source in run.state.sources.items():
            if source.tables and not source.tables[-1].whole:
                start, end, _ = source.tables[-1]
                ranges[partition] = OffsetRange(start, end)
        self._task = _TaskWriter(run.settings, run.columns, run.state, MicroBatch(-1, ranges, -1))

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._task.write(iterator)

    @override
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _PreparedRun(self._options, self._schema).commit(messages, -1)

    @override
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        # What was sent stays: the query, prepared again, finds it at the destination.
        _log.warning("the query failed; %s tasks were done", _count(messages))


def _count(messages: list[WriterCommitMessage | None]) -> int:
    return sum(message is not None for message in messages)
