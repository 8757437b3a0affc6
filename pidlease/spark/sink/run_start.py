"""Begins a run of a query: its state follows those of the earlier runs, which it fences.

A run begins once for each start of a query: in the application (`exactly_once`), or before the
first micro-batch (`format("pidlease")` alone).
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pidlease.spark.errors import SinkError
from pidlease.spark.sink.query_shape import QueryColumns
from pidlease.spark.sink.run_preparation import connect
from pidlease.spark.sink.run_state import RunState, RunStore
from pidlease.spark.sink.settings import SinkSettings
from pidlease.spark.sink.spark_checkpoint import MicroBatch, query_id, read_micro_batch

Result = TypeVar("Result")
#: Makes the state of a run from those of the earlier runs, the newest first.
MakeState = Callable[[list[RunState]], RunState]


def begin_stream_run(settings: SinkSettings, columns: QueryColumns) -> str:
    """Begin a run of a streaming query, and return its name.

    Raises:
        SinkError: exactly-once is not possible. Nothing is written.
    """
    # Read before the state, so that the state is not older than the checkpoint.
    batch, query = read_micro_batch(settings.checkpoint), query_id(settings.checkpoint)

    def make(known: list[RunState]) -> RunState:
        _check_fits(settings, known, batch, query)
        return run_coroutine(prepared(settings, known, columns, batch, "stream"))

    return begin_run(settings, make)


def begin_run(settings: SinkSettings, make: MakeState) -> str:
    """Begin a run, and return its name.

    Raises:
        SinkError: the run cannot begin.
    """
    store = RunStore(settings.state)
    name = store.reserve()
    try:
        store.write(name, make(store.before(name)))
        store.check_alone(name)
    except SinkError:
        store.release(name)
        raise
    store.forget_old()
    return name


def run_coroutine(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine, even in a thread with a running event loop, as in a notebook."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


async def prepared(
    settings: SinkSettings,
    known: list[RunState],
    columns: QueryColumns,
    batch: MicroBatch | None,
    kind: str,
) -> RunState:
    """Return the state that a run begins with.

    Parameters:
        known: states of earlier runs, the newest first.
        batch: the micro-batch or table to begin with; None: not known yet.
        kind: "stream" or "table".

    Raises:
        SinkError: the run cannot begin.
    """
    query = {"kind": kind, "topic": settings.topic, "rows": settings.rows_max}
    async with connect(settings) as preparation:
        state = await preparation.prepare(known, query, spread=bool(columns.partition))
        return state if batch is None else await preparation.grow(state, batch, known)


def _check_fits(
    settings: SinkSettings, known: list[RunState], batch: MicroBatch | None, query: str
) -> None:
    """Check that the sink's state is of this checkpoint, and contains all that Spark committed.

    Raises:
        SinkError: it is not, or does not.
    """
    if not known:
        saved, ids = -1, set()
    else:
        ours = [each for each in known if each.name == known[0].name]
        # The last commit of a run that was replaced is in that run's own state.
        saved, ids = max(each.batch for each in ours), {each.query_id for each in ours} - {""}
    other = ids - {query} if query or saved >= 0 else set()
    if batch is not None and not batch.committed <= saved <= batch.number:
        at = batch.committed if batch.committed > saved else batch.number
        problem = f"is at micro-batch {at}, and the sink's state at {saved}"
    elif other:
        problem = f"is of query {query or '(none yet)'}, and the sink's state of {other.pop()}"
    elif batch is None and saved >= 0:
        problem = f"has no micro-batch, and the sink's state {saved}"
    else:
        return
    raise SinkError(
        f"Spark's checkpoint {settings.checkpoint} {problem} ({settings.state}): they do not"
        " belong together, or one was deleted or not restored with the other. Restore both, or"
        " begin with a new checkpoint and a new topic"
    )
