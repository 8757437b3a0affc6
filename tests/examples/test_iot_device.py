"""examples/iot_device.sh: each reading once, over kill -9 of it and of the server."""

import http.client
import shutil
from pathlib import Path

import pytest

from tests.crash.readback import consume
from tests.crash.seeds import new_random
from tests.examples.programs import EXAMPLES, check_once, outcome, program, wait_for_records
from tests.servers.pidlease import PidleaseServer

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
_READINGS = 60


def _command(server: PidleaseServer, readings: Path) -> tuple[str, ...]:
    url = f"{server.http_url}/v1/topics/readings/partitions/0/records"
    return (str(EXAMPLES / "iot_device.sh"), "sensor-7", str(readings), url)


def _check(server: PidleaseServer, readings: Path) -> None:
    stored = [each.value for each in consume(server.bootstrap, "readings", 1)]
    due = readings.read_bytes().splitlines()
    check_once(stored, due)
    assert stored == due


def test_each_reading_once_over_kill_9(tmp_path: Path) -> None:
    random = new_random("iot-device")
    readings = tmp_path / "readings.txt"
    readings.write_text(
        "".join(f"{number} {21.5 + number / 10} C\n" for number in range(_READINGS))
    )
    killed = 0
    with PidleaseServer(tmp_path / "server", settings={"default_partitions": "1"}) as server:
        for _ in range(2):
            with program(*_command(server, readings)) as device:
                wait_for_records(server, "readings", random.randint(1, _READINGS // 3))
                if random.random() < 0.5:  # after the append, and before the state
                    server.kill9()
                device.kill()
                killed += device.wait() == -9
            if not server.alive:
                server.restart()
        assert killed, "it had ended before each kill"
        # As after a power failure between the append and the state: the last request comes again.
        state = tmp_path / "readings.txt.state"
        epoch, before, stored = map(int, state.read_text().split())
        state.write_text(f"{epoch} {before} {stored - 1}\n")
        with program(*_command(server, readings)) as device:
            assert outcome(device) == (0, f"{_READINGS} readings stored\n", "")
        with readings.open("a") as file:
            file.write("a torn line")
        with program(*_command(server, readings)) as device:
            assert outcome(device) == (0, f"{_READINGS} readings stored\n", "")
        readings.write_bytes(readings.read_bytes().removesuffix(b"a torn line"))
        _check(server, readings)


def test_a_device_that_the_server_has_forgotten(tmp_path: Path) -> None:
    readings = tmp_path / "readings.txt"
    readings.write_text("1\n2\n")
    with PidleaseServer(tmp_path / "server", settings={"default_partitions": "1"}) as server:
        with program(*_command(server, readings)) as device:
            assert outcome(device) == (0, "2 readings stored\n", "")
        # To the server, a device that it has forgotten is one that it has never known.
        client = http.client.HTTPConnection(server.http_url.removeprefix("http://"))
        client.request("DELETE", "/v1/topics/readings")
        assert client.getresponse().status == 204
        readings.write_text("1\n2\n3\n")
        with program(*_command(server, readings)) as device:
            assert outcome(device) == (0, "3 readings stored\n", "")
        assert (tmp_path / "readings.txt.state").read_text() == "1 2 3\n"
        assert [each.value for each in consume(server.bootstrap, "readings", 1)] == [b"3"]


def test_two_devices_of_one_id(tmp_path: Path) -> None:
    readings = tmp_path / "readings.txt"
    readings.write_text("1\n2\n3\n")
    with PidleaseServer(tmp_path / "server", settings={"default_partitions": "1"}) as server:
        with program(*_command(server, readings)) as device:
            assert outcome(device) == (0, "3 readings stored\n", "")
        readings.write_text("1\n2\n3\n4\n5\n6\n")
        (tmp_path / "readings.txt.state").write_text("0 0 5\n")
        with program(*_command(server, readings)) as device:
            code, output, errors = outcome(device)
        assert (code, output) == (1, "")
        assert '"expected_seq":3' in errors
