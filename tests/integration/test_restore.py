"""A backup is put back: what it has is served, and nothing of what came after is taken as known."""

import shutil
from pathlib import Path

from kio.schema.errors import ErrorCode

from tests.crash.readback import consume
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import WireClient
from tests.servers.pidlease import PidleaseServer
from tests.unit.cli.datadir import run

_LEASED_BEHIND_THE_BACKUP = 250
_TOPIC = "restored"


async def test_a_backup_is_put_back(tmp_path: Path) -> None:
    """As docs/operate/operations.md says."""
    with PidleaseServer(tmp_path) as server:
        data = server.data_dir
        async with await WireClient.connect("127.0.0.1", server.kafka_port) as client:
            await client.create(_TOPIC)
            known = await client.lease()
            await _produce(client, known, range(3), ErrorCode.none)
        assert server.stop() == 0
        shutil.copytree(data, tmp_path / "backup")

        server.start()
        async with await WireClient.connect("127.0.0.1", server.kafka_port) as client:
            await _produce(client, known, range(3, 5), ErrorCode.none)
            lost = [await client.lease() for _ in range(_LEASED_BEHIND_THE_BACKUP)]
            await _produce(client, lost[0], range(2), ErrorCode.none)
        assert server.stop() == 0

        shutil.rmtree(data)
        shutil.copytree(tmp_path / "backup", data)
        skipped = run("skip-pids", "--data-dir", str(data), "--count", "1000")
        assert skipped.exit_code == 0, skipped.output
        assert run("verify", "--data-dir", str(data)).exit_code == 0
        server.start()
        async with await WireClient.connect("127.0.0.1", server.kafka_port) as client:
            fresh = {await client.lease() for _ in range(_LEASED_BEHIND_THE_BACKUP)}
            assert not fresh & {known, *lost}
            # Those that went on behind the backup are told so, and change nothing.
            gap = ErrorCode.out_of_order_sequence_number
            await _produce(client, known, range(5, 6), gap)
            for pid in (lost[0], lost[-1]):
                await _produce(client, pid, range(2, 3), ErrorCode.unknown_producer_id)
                await _produce(client, pid, range(1), ErrorCode.unknown_producer_id)
            await _produce(client, known, range(3, 4), ErrorCode.none)
        stored = consume(server.bootstrap, _TOPIC, 1)
        assert [each.value for each in stored] == [f"{known}-{n}".encode() for n in range(4)]
        assert server.stop() == 0


async def _produce(client: WireClient, pid: int, numbers: range, code: ErrorCode) -> None:
    for number in numbers:
        data = batch([f"{pid}-{number}".encode()], pid=pid, epoch=0, first=number)
        assert (await client.produce(_TOPIC, data)).code == code.value, (pid, number)
