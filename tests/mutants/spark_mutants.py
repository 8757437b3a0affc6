"""A broken sink, source or audit: rows of a source that goes back, the ends of a destination."""

from typing import Final

from tests.mutants.mutant import Mutant

_CHECKPOINT: Final = "pidlease/spark/sink/spark_checkpoint.py"

_PREPARATION: Final = "pidlease/spark/sink/run_preparation.py"

_STATE: Final = ("tests/spark/sink/test_run_state.py",)

_STREAM: Final = "tests/spark/source/test_stream.py"

_AUDIT: Final = "tests/spark/audit/test_command.py"

SPARK: Final = (
    Mutant(
        "rows of a source that was cut count as stored before",
        _CHECKPOINT,
        "    check_forward(batch, starts)\n",
        "",
        _STATE,
    ),
    Mutant(
        "rows of a source that was recreated count as stored before",
        "pidlease/spark/sink/sink_writer.py",
        "            source: producer.high_sequence // self.settings.rows_max + 1\n",
        "            source: 0\n",
        _STATE,
    ),
    Mutant(
        "the last batch of a PID may land after its log was searched",
        _PREPARATION,
        """        leased = await self._names(state).grant(wanted)
        old_highs = await self._logs.last_of_old_pids(state, leased)
""",
        """        logs = await self._logs.ranges(state)
        leased = await self._names(state).grant(wanted)

        async def earlier(_: RunState) -> dict[TopicPartition, OffsetRange]:
            return logs

        setattr(self._logs, "ranges", earlier)
        old_highs = await self._logs.last_of_old_pids(state, leased)
""",
        ("tests/spark/sink/test_replaced_runs.py",),
    ),
    Mutant(
        "records without a PID count as checked",
        "pidlease/spark/audit/log_audit.py",
        'F.when(~has_pid, F.col("records"))',
        "F.lit(0)",
        (f"{_AUDIT}::test_records_that_cannot_be_checked_are_not_called_sound",),
    ),
    Mutant(
        "a deleted topic of a pattern is passed over",
        "pidlease/spark/source/stream_reader.py",
        "            self._report_gone(partition)\n            if partition in begin:",
        "            if partition in begin:",
        (f"{_STREAM}::test_a_deleted_topic_of_a_pattern_is_a_loss",),
    ),
    Mutant(
        "a topic that is deleted before its first micro-batch is passed over",
        "pidlease/spark/source/stream_reader.py",
        "(begin.keys() | (self._target or {}).keys())",
        "begin.keys()",
        (f"{_STREAM}::test_a_topic_that_is_deleted_during_a_query_of_what_is_there_is_a_loss",),
    ),
    Mutant(
        "a pattern matches whole names",
        "pidlease/spark/source/source_logs.py",
        "re.search(",
        "re.fullmatch(",
        ("tests/spark/source/test_options.py::test_a_pattern_is_searched_for_in_the_names",),
    ),
)
