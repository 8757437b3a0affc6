"""A restored backup serves its records, and nothing that came after it counts as known."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from kio.schema.errors import ErrorCode

from tests.crash.readback import consume
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import WireClient
from tests.servers.pidlease import PidleaseServer

_PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "operate" / "back-up.md"
_LEASED_AFTER_THE_BACKUP: Final = 250
_TOPIC: Final = "restored"


def _section(title: str) -> list[str]:
    """The commands of one section of the page."""
    _, _, text = _PAGE.read_text(encoding="utf-8").partition(f"\n## {title}\n")
    run = re.sub(
        r"^<!-- not run.*?^```bash\n.*?^```", "", text.partition("\n## ")[0], flags=re.M | re.S
    )
    (block,) = re.findall(r"^```bash\n(.*?)^```", run, re.M | re.S)
    return str(block).splitlines()


def _run_section(title: str, server: PidleaseServer, backups: Path) -> None:
    """Run the commands of a section, with this server as the page's service."""
    for command in _section(title):
        if command == "systemctl stop pidlease":
            assert server.stop() == 0
        elif command == "systemctl start pidlease":
            server.start()
        else:
            here = command.replace("/var/lib/pidlease", str(server.data_dir))
            here = here.replace("/backup/", f"{backups}/")
            script = f'pidlease() {{ {sys.executable} -m pidlease "$@"; }}\nset -e\n{here}\n'
            # A later command has the variable.
            script += 'printf %s "$backup" > "$VARIABLE"'
            file = backups.parent / "variable"
            file.touch()
            done = subprocess.run(
                ["bash", "-c", script], check=False, capture_output=True, text=True,
                env=os.environ | {"backup": file.read_text(), "VARIABLE": str(file)},
            )  # fmt: skip
            assert done.returncode == 0, (command, done)


async def test_a_backup_is_put_back(tmp_path: Path) -> None:
    """By the commands of docs/operate/back-up.md."""
    backups = tmp_path / "backup"
    backups.mkdir()
    with PidleaseServer(tmp_path / "server") as server:
        async with await WireClient.connect("127.0.0.1", server.kafka_port) as client:
            await client.create(_TOPIC)
            known = await client.lease()
            await _produce(client, known, range(3), ErrorCode.none)
        _run_section("Back up", server, backups)

        async with await WireClient.connect("127.0.0.1", server.kafka_port) as client:
            await _produce(client, known, range(3, 5), ErrorCode.none)
            lost = [await client.lease() for _ in range(_LEASED_AFTER_THE_BACKUP)]
            await _produce(client, lost[0], range(2), ErrorCode.none)

        _run_section("Restore", server, backups)
        async with await WireClient.connect("127.0.0.1", server.kafka_port) as client:
            fresh = {await client.lease() for _ in range(_LEASED_AFTER_THE_BACKUP)}
            assert not fresh & {known, *lost}
            # Producers that wrote after the backup get an error, and change nothing.
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
