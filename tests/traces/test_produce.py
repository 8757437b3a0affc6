"""One Produce of one batch, from the socket to the segment and back, fsynced."""

from pathlib import Path

from tests.traces.batch_traces import traces_of_batches
from tests.traces.record import RUNS, check
from tests.traces.server import traced


async def test_produce_to_the_embedded_log(tmp_path: Path) -> None:
    async with traced(tmp_path, fsync="batch") as server, await server.connect() as client:
        await client.create("t", RUNS)
        partitions = list(range(RUNS))
        empty = await traces_of_batches(server, client, "t", partitions)
        written = await traces_of_batches(server, client, "t", partitions)
    check("produce_first_of_the_partition", empty.first)
    check("produce_first_of_the_producer", written.first)
    check("produce_warm", written.warm)
