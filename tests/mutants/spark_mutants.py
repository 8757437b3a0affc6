"""A broken sink: rows of a source that goes back, the ends of a destination."""

from typing import Final

from tests.mutants.mutant import Mutant

_CHECKPOINT: Final = "pidlease/spark/sink/spark_checkpoint.py"

_STATE: Final = ("tests/spark/sink/test_run_state.py",)

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
)
