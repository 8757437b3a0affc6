"""The sink as Spark sees it: made in the driver for each micro-batch, and sent to its tasks."""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pidlease.spark.errors import SinkError, SinkFencedError
from pidlease.spark.sink.driver.name_grants import NoLeaseError, near_their_end
from pidlease.spark.sink.driver.sink_runs import reached
from pidlease.spark.sink.driver.spark_checkpoint import MicroBatch, query_id, read_micro_batch
from pidlease.spark.sink.driver.table_writes import done
from pidlease.spark.sink.query_columns import Columns, find_columns
from pidlease.spark.sink.run_state import Place, RunState, RunStore
from pidlease.spark.sink.settings import SinkSettings, read_settings
from pidlease.spark.sink.task.record_encoder import Encoder
from pidlease.spark.sink.task.row_numbers import Numbering
from pidlease.spark.sink.task.task_sender import Sending, Told

_log = logging.getLogger(__name__)
_NO_RUN = (
    "the query was not prepared: start it as pidlease.spark.exactly_once(df, options).start(),"
    " which leases its PIDs and fences the run before; format('pidlease') alone cannot, for Spark"
    " makes it anew with each micro-batch"
)


@dataclass
class TaskTold(WriterCommitMessage):
    """What a task tells the driver."""

    told: Told


class _Task:
    """What tasks are sent.

    Parameters:
        settings: the sink's.
        columns: of the query.
        state: the run's,
        batch: and the micro-batch.
    """

    def __init__(
        self, settings: SinkSettings, columns: Columns, state: RunState, batch: MicroBatch
    ) -> None:
        self._settings = settings
        self._columns = columns
        self._sources = {place: state.sources[place] for place in batch.ends}
        self._spans = {
            place: (batch.starts.get(place, -1), end) for place, end in batch.ends.items()
        }

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskTold:
        """Send a task's rows.

        Raises:
            SinkError: they cannot be sent.
        """
        settings = self._settings
        topics = {place.topic: settings.renamed(place.topic) for place in self._spans}
        numbering = Numbering(self._columns, settings.rows_max, topics, self._spans)
        encoder = Encoder(self._columns, settings.compression, settings.batch_bytes)

        async def send() -> Told:
            delivery_s = settings.delivery_timeout_ms / 1000
            sending = Sending(settings.producer(), delivery_s, self._sources, numbering, encoder)
            return await sending.run(iterator)

        return TaskTold(asyncio.run(send()))


class _Driver:
    """What is done in the driver."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.settings = read_settings(options)
        if not self.settings.run:
            raise SinkError(_NO_RUN)
        self.columns = find_columns(schema)
        self.store = RunStore(self.settings.state)
        self.state = self.store.read(self.settings.run)

    def prepare(self, batch: MicroBatch) -> None:
        """Lease what a micro-batch needs, once, before anything of it is written.

        Raises:
            SinkFencedError: another run has begun.
            SinkError: it cannot be leased.
        """
        if batch.number <= self.state.prepared:
            return  # it is made anew for the commit, too
        self.store.check_newest(self.settings.run)
        state = self.state
        if batch.ends.keys() - state.sources.keys() or near_their_end(state.sources, _now_ms()):
            state = asyncio.run(self._leased(batch))
        query = query_id(self.settings.checkpoint)
        # A restart must know of it.
        self._save(replace(state, prepared=batch.number, query_id=query))

    async def _leased(self, batch: MicroBatch) -> RunState:
        before = self.store.before(self.settings.run)
        async with reached(self.settings) as runs:
            state = await runs.grow(self.state, batch, before)
            try:
                return await runs.renew(state)
            except NoLeaseError as error:
                # What there is may last: the tasks are told if it does not.
                _log.warning("the leases are not renewed yet: %s", error)
                return state

    def committed(self, messages: list[WriterCommitMessage | None], batch: int) -> None:
        """Note what tasks have told.

        Raises:
            SinkError: two tasks had rows of one partition, or it cannot be noted.
        """
        state = replace(self.state, batch=max(batch, self.state.batch))
        seen: set[Place] = set()
        for message in messages:
            told = message.told if isinstance(message, TaskTold) else None
            if told is None or told.source is None:
                continue
            if told.source in seen:
                raise SinkError(
                    f"two tasks had rows of {told.source} of the source: some may be missing at"
                    " the destination. Compare both sides, and begin with a new checkpoint and a"
                    " new topic"
                )
            seen.add(told.source)
            state = _noted(state, told.source, told)
        self._save(state if batch >= 0 else done(state))

    def _save(self, state: RunState) -> None:
        if state != self.state:
            self.store.write(self.settings.run, state)
            self.state = state


def _now_ms() -> int:
    return int(time.time() * 1000)


def _noted(state: RunState, source: Place, told: Told) -> RunState:
    known = state.sources[source]
    noted = replace(
        known,
        chains={**known.chains, **told.chains},
        sent=known.sent + told.sent,
        duplicates=known.duplicates + told.duplicates,
    )
    ends = {place: max(end, told.ends.get(place, 0)) for place, end in state.ends.items()}
    return replace(state.with_source(source, noted), ends=ends)


class StreamSink(DataSourceStreamArrowWriter):
    """Writes micro-batches.

    Where the query was not prepared, or its state cannot be read, `write` and `commit` raise
    SinkError.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = dict(options)
        self._schema = schema
        self._task: _Task | None = None
        self._refused = ""
        self._fenced = False
        try:
            self._task = self._prepared()
        except SinkError as error:
            # Told by the tasks: Spark makes a writer to abort a micro-batch, too, and where that
            # fails, why the micro-batch had failed is not told any more.
            self._refused, self._fenced = str(error), isinstance(error, SinkFencedError)

    def _prepared(self) -> _Task:
        driver = _Driver(self._options, self._schema)
        batch = read_micro_batch(driver.settings.checkpoint)
        if batch is None:
            raise SinkError(f"there is no micro-batch in checkpoint {driver.settings.checkpoint}")
        driver.prepare(batch)
        return _Task(driver.settings, driver.columns, driver.state, batch)

    def _usable(self) -> _Task:
        if self._task is None:
            raise (SinkFencedError if self._fenced else SinkError)(self._refused)
        return self._task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """See `DataSourceStreamArrowWriter`; in a task."""
        return self._usable().write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """See `DataSourceStreamArrowWriter`; in the driver."""
        self._usable()
        _Driver(self._options, self._schema).committed(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """What was sent stays: the same micro-batch comes again, and finds it there."""
        _log.warning("micro-batch %s failed; %s tasks were done", batchId, _done(messages))


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
        driver = _Driver(options, schema)
        spans = {
            place: source.spans[-1]
            for place, source in driver.state.sources.items()
            if source.spans and not source.spans[-1].whole
        }
        starts = {place: span.first for place, span in spans.items()}
        table = MicroBatch(-1, starts, {place: span.end for place, span in spans.items()}, -1)
        self._task = _Task(driver.settings, driver.columns, driver.state, table)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """See `DataSourceArrowWriter`; in a task."""
        return self._task.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """See `DataSourceArrowWriter`; in the driver."""
        _Driver(self._options, self._schema).committed(messages, -1)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was sent stays: the same query, prepared again, finds it there."""
        _log.warning("the query failed; %s tasks were done", _done(messages))


def _done(messages: list[WriterCommitMessage | None]) -> int:
    return sum(message is not None for message in messages)
