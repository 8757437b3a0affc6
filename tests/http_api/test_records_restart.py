"""What is known of HTTP's producers outlives the server: by replay, by snapshot, and by both."""

import socket
from pathlib import Path
from typing import Any

from pidlease.testing.loopback_ports import LOOPBACK
from tests.crash.lives import server_in
from tests.crash.readback import check_directory
from tests.http_api.appending import path_of, producer
from tests.http_api.lives import append, make_topic, read_back
from tests.servers.pidlease import PidleaseServer

#: No snapshot but at a clean stop.
SETTINGS = {"snapshot_batches": "1000000", "snapshot_seconds": "100000", "log_level": "warning"}
NAMES = ("p", "ö\u00e4", "x" * 256)


def headers(name: str, epoch: int, seq: int) -> dict[str, Any]:
    return producer(name.encode(), epoch, seq)


def write(server: PidleaseServer, epoch: int, first: int, end: int) -> dict[tuple[str, int], int]:
    """Requests of all producers to both partitions; the offsets in the first."""
    offsets = {}
    for seq in range(first, end):
        for name in NAMES:
            for partition in (0, 1):
                content = f"{len(name)}/{epoch}/{seq}".encode()
                status, answer = append(server, content, headers(name, epoch, seq), partition)
                assert (status, answer["duplicate"]) == (200, False), answer
                if partition == 0:
                    offsets[name, seq] = answer["offset"]
    return offsets


def look(server: PidleaseServer, epoch: int, end: int, offsets: dict[tuple[str, int], int]) -> None:
    """Everything is known as it was."""
    for name in NAMES:
        for seq in range(max(end - 5, 0), end):
            status, answer = append(server, b"again", headers(name, epoch, seq))
            assert status == 200
            assert answer == {"offset": offsets[name, seq], "duplicate": True}
        for partition in (0, 1):
            status, answer = append(server, b"x", headers(name, epoch, end + 1), partition)
            assert (status, answer["expected_seq"]) == (409, end)
        status, answer = append(server, b"x", headers(name, epoch - 1, end))
        assert (status, answer["current_epoch"]) == (409, epoch)
        status, answer = append(server, b"x", headers(name, epoch + 1, end))
        assert (status, answer["expected_seq"]) == (409, 0)


def test_a_restart_keeps_what_is_known(tmp_path: Path) -> None:
    with server_in(tmp_path) as server:
        server.restart(SETTINGS)
        make_topic(server, 2)
        offsets = write(server, 1, 0, 7)
        assert not list((server.data_dir / "snapshots").glob("*/manifest.json"))
        server.kill9()
        server.restart(SETTINGS)  # by replay
        look(server, 1, 7, offsets)
        assert server.stop() == 0
        assert list((server.data_dir / "snapshots").glob("*/manifest.json"))
        server.restart(SETTINGS)  # by snapshot
        look(server, 1, 7, offsets)
        offsets |= write(server, 1, 7, 10)
        server.kill9()
        server.restart(SETTINGS)  # by a snapshot, and what came behind it
        look(server, 1, 10, offsets)
        offsets = write(server, 5, 0, 2)
        server.kill9()
        server.restart(SETTINGS)  # with another epoch behind it
        look(server, 5, 2, offsets)
        for partition in (0, 1):
            found = read_back(server, partition)
            for name in NAMES:
                size = len(name)
                assert [each for each in found if each.startswith(f"{size}/")] == [
                    *(f"{size}/1/{seq}" for seq in range(10)),
                    *(f"{size}/5/{seq}" for seq in range(2)),
                ]
        assert server.stop() == 0
        check_directory(server.data_dir)


def test_a_stop_does_not_wait_for_readers(tmp_path: Path) -> None:
    """Those that wait for records are told that there are none, and it is over."""
    with server_in(tmp_path) as server:
        server.restart(SETTINGS)
        make_topic(server)
        waiting = [poll(server) for _ in range(3)]
        slow = half_a_request(server)
        for _ in range(5):  # by then those before are under way
            read_back(server)
        assert server.stop(20) == 0
        for each in waiting:
            data = b""
            while part := each.recv(65536):
                data += part
            assert data.startswith(b"HTTP/1.1 200 "), data
            each.close()
        slow.close()


def poll(server: PidleaseServer) -> socket.socket:
    return speak(server, b"GET %s?wait_ms=60000 HTTP/1.1\r\nHost: x\r\n\r\n")


def half_a_request(server: PidleaseServer) -> socket.socket:
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n"
    return speak(server, head + b"Content-Length: 10\r\n\r\nhalf")


def speak(server: PidleaseServer, data: bytes) -> socket.socket:
    connection = socket.create_connection((LOOPBACK, server.http_port), 20)
    connection.sendall(data % path_of().encode())
    return connection
