"""Idempotency keys outlive the server: by replay, by snapshot, by both; and by kill -9."""

import time
from pathlib import Path
from random import Random

import pytest

from tests.crash.lives import SETTINGS, server_in, verify
from tests.crash.readback import check_directory
from tests.crash.seeds import SOAK, new_random
from tests.http_api.lives import answered, append, make_topic, read_back, send_only
from tests.servers.pidlease import PidleaseServer

#: No snapshot but at a clean stop.
_NO_SNAPSHOTS = {"snapshot_batches": "1000000", "snapshot_seconds": "100000"}
_DISKS = ("", "", "slow=0.001 before fsync *.log 1", "slow=0.001 after write *.log 1")
_KILLS = 1000 if SOAK else 10
#: Requests that a kill meets.
_AT_ONCE = 6
_DELAY_S = 0.004


def keyed(number: int) -> dict[str, str]:
    return {"Idempotency-Key": f'"order {number}"' if number % 2 else f"order-{number}"}


def test_keys_outlive_restarts(tmp_path: Path) -> None:
    offsets: list[int] = []

    def store(server: PidleaseServer, count: int) -> None:
        for number in range(len(offsets), len(offsets) + count):
            status, answer = append(server, b"%d" % number, keyed(number))
            assert (status, answer["duplicate"]) == (200, False), answer
            offsets.append(answer["offset"])

    def look(server: PidleaseServer) -> None:
        for number, offset in enumerate(offsets):
            same = append(server, b"%d" % number, keyed(number))
            assert same == (200, {"offset": offset, "duplicate": True})
            for other in (b"x", b"y", b"z"):
                status, answer = append(server, other, keyed(number))
                assert (status, answer["code"]) == (422, "idempotency_key_reused")

    with server_in(tmp_path) as server:
        server.restart(_NO_SNAPSHOTS)
        make_topic(server)
        store(server, 8)
        assert not list((server.data_dir / "snapshots").glob("*/manifest.json"))
        server.kill9()
        server.restart(_NO_SNAPSHOTS)  # by replay
        look(server)
        assert server.metric("pidlease_idempotency_keys") == 8
        assert server.stop() == 0
        assert list((server.data_dir / "snapshots").glob("*/manifest.json"))
        server.restart(_NO_SNAPSHOTS)  # by snapshot
        look(server)
        store(server, 3)
        server.kill9()
        server.restart(_NO_SNAPSHOTS)  # by a snapshot, and what came behind it
        look(server)
        server.kill9()
        few = {**_NO_SNAPSHOTS, "idempotency_keys_max": "5"}
        server.restart(few)  # what is known stays, beyond the capacity
        look(server)
        assert append(server, b"x", keyed(100))[1]["code"] == "idempotency_keys_full"
        assert read_back(server) == [str(number) for number in range(11)]
        assert server.stop() == 0
        verify(server.data_dir)


@pytest.mark.timeout(7200 if SOAK else 300)
def test_kill_9_under_requests_with_keys(tmp_path: Path) -> None:
    random = new_random("idempotency-keys")
    due: dict[int, str] = {}
    hits = {"not stored": 0, "stored, not answered": 0, "answered": 0}
    scale = 1.0
    with server_in(tmp_path) as server:
        server.restart({**SETTINGS, "fsync": "batch"})
        make_topic(server)
        number = 0
        for kill in range(_KILLS + 20):
            if kill >= _KILLS and hits["not stored"] and hits["stored, not answered"]:
                break
            numbers = range(number, number + random.randint(1, _AT_ONCE))
            number = numbers.stop
            found = _round(server, numbers, due, random, scale * random.random() * _DELAY_S)
            for each in found:
                hits[each] += 1
            # Not everywhere does this reach from before a write to behind it.
            scale *= 1.15 if found[-1] == "not stored" else 0.9
            scale = min(max(scale, 0.2), 20.0)
        print(f"{kill} kills: {hits}")
        assert hits["not stored"] > 0, "every kill came too late"
        assert hits["stored, not answered"] + hits["answered"] > 0, "every kill came too early"
        assert read_back(server) == [due[offset] for offset in range(len(due))]
        assert len(set(due.values())) == len(due) == number
        assert server.stop() == 0
        check_directory(server.data_dir)
        verify(server.data_dir)


def _round(
    server: PidleaseServer, numbers: range, due: dict[int, str], random: Random, delay_s: float
) -> list[str]:
    """One kill under some requests, which are sent again then; where it hit them."""
    sent = [send_only(server, b"v%d" % each, keyed(each)) for each in numbers]
    time.sleep(delay_s)
    server.kill9()
    were_answered = [answered(connection) for connection in sent]
    settings = {**SETTINGS, "fsync": "batch"}
    disk = random.choice(_DISKS)
    server.restart({**settings, "faults": disk} if disk else settings)
    hits = []
    for number, was_answered in zip(numbers, were_answered, strict=True):
        content = b"v%d" % number
        status, answer = append(server, content, keyed(number))
        assert status == 200, answer
        assert answer["duplicate"] or not was_answered, "it was answered, and is gone"
        assert due.setdefault(answer["offset"], content.decode()) == content.decode()
        again = append(server, content, keyed(number))
        assert again == (200, {"offset": answer["offset"], "duplicate": True})
        assert append(server, b"w%d" % number, keyed(number))[0] == 422
        stored = "stored, not answered" if answer["duplicate"] else "not stored"
        hits.append("answered" if was_answered else stored)
    return hits
