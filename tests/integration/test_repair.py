"""`pidlease repair` as an operator runs it, on what a killed server left."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pidlease.kafka.records.identity_header import Identity
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.__main__ import cli
from tests.http_api.appending import path_of
from tests.http_api.lives import append, ask
from tests.integration.damaged_log import (
    COMMITTED,
    NAME,
    PRODUCER_ID,
    RECORDS,
    Written,
    copied,
    flip,
    lease,
    segments,
    write,
)
from tests.integration.test_cli_verify import tree, verify
from tests.integration.test_stopped_partition import STORAGE, Damaged
from tests.kafka_listener.batches import batch, identified, records_of
from tests.kafka_listener.client import WireClient

GAP = 45


def repair(path: Path, *options: str) -> tuple[int, str, str]:
    """Run the command in this process; exit code, stdout and stderr."""
    done = CliRunner().invoke(cli, ["repair", "--data-dir", str(path), *options])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def report(path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    code, out, complaint = repair(path, "--json", *options)
    assert code != 2, complaint
    return code, json.loads(out)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Written]:
    return {
        "one segment": write(tmp_path_factory.mktemp("one")),
        "many": write(tmp_path_factory.mktemp("many"), segment_bytes="1024"),
        "snapshot": write(
            tmp_path_factory.mktemp("snapshot"), snapshot_at=200, segment_bytes="4096"
        ),
        "durable": write(
            tmp_path_factory.mktemp("durable"), snapshot_at=290, segment_bytes="4096", fsync="batch"
        ),
    }


def test_a_whole_log_has_nothing_to_repair(written: dict[str, Written], tmp_path: Path) -> None:
    server = copied(written["many"], tmp_path)
    before = tree(server.data_dir)
    code, out, _ = repair(server.data_dir)
    assert (code, "2 partitions, 0 damaged" in out) == (0, True)
    code, out, _ = repair(server.data_dir, "--cut", "t/0")
    assert (code, "t/0 is not damaged: nothing to cut" in out) == (0, True)
    after = tree(server.data_dir)
    assert {name: each[1] for name, each in after.items() if not name.endswith("lock")} == {
        name: each[1] for name, each in before.items() if not name.endswith("lock")
    }


@pytest.mark.parametrize(
    ("name", "cut"),
    [("one segment", 90), ("one segment", 0), ("one segment", 290), ("many", 90), ("many", 0),
     ("snapshot", 90)],
)  # fmt: skip
def test_what_is_shown_changes_nothing_and_is_true(
    written: dict[str, Written], tmp_path: Path, name: str, cut: int
) -> None:
    each = written[name]
    server = copied(each, tmp_path)
    log, position = flip(server.data_dir, cut)
    before = tree(server.data_dir)
    code, found = report(server.data_dir)
    assert repair(server.data_dir)[0] == 1
    assert tree(server.data_dir) == before
    (damage,) = found["damaged"]
    assert code == 1
    assert (damage["topic"], damage["partition"], damage["offset"]) == ("t", 0, cut)
    assert (damage["file"], damage["position"]) == (
        str(log.relative_to(server.data_dir)), position,
    )  # fmt: skip
    assert (damage["can_be_cut"], damage["kept"]) == (True, None)
    assert damage["offsets_lost"] == (RECORDS if cut < 290 else cut + 10) - cut or cut == 290
    after = damage["intact_after"]
    assert after["records"] == RECORDS - cut - 10
    assert after["batches"] * 10 == after["records"]
    if after["records"]:
        assert (after["first_offset"], after["end_offset"]) == (cut + 10, RECORDS)
    _check_producers(each, cut, damage)
    beyond = cut < COMMITTED
    assert damage["groups_beyond"] == ([{"group": "g", "offset": COMMITTED}] if beyond else [])


def _check_producers(each: Written, cut: int, damage: dict[str, Any]) -> None:
    """Even batches are the Kafka client's, odd ones the name's; ten sequences each."""
    found = {row["pid"]: row for row in damage["producers"]}
    for parity, pid in ((0, each.kafka_pid), (1, each.named_pid)):
        numbers = range(parity, RECORDS // 10, 2)
        after = [number for number in numbers if number > cut // 10]
        if not after:
            assert pid not in found
            continue
        row = found[pid]
        kept = [number for number in numbers if number < cut // 10]
        assert row["sequence_after_cut"] == (len(kept) * 10 - 1)
        assert row["known_sequence"] == RECORDS // 2 - 1
        assert row["intact_records_after"] == len(after) * 10
        first = numbers.index(after[0]) * 10
        ranges = [(each["first"], each["last"]) for each in row["intact_sequences_after"]]
        assert ranges == [(first, RECORDS // 2 - 1)]
        assert row["name"] == (NAME if parity else "")
        assert row["policy"] == ("strict" if parity else "kafka")


@pytest.mark.parametrize(
    ("name", "cut"),
    [("one segment", 90), ("one segment", 0), ("many", 90), ("many", 0), ("snapshot", 90)],
)
def test_a_cut(written: dict[str, Written], tmp_path: Path, name: str, cut: int) -> None:
    each = written[name]
    server = copied(each, tmp_path)
    flip(server.data_dir, cut)
    damaged = {path.name: path.read_bytes() for path in segments(server.data_dir)}
    code, found = report(server.data_dir, "--cut", "t/0")
    (told,) = found["damaged"]
    assert code == 0

    kept = Path(told["kept"])
    assert kept.parent == server.data_dir / "repair"
    for path in kept.glob("*.log"):
        assert path.read_bytes() == damaged.pop(path.name)
    # What was before is as it was.
    for path in segments(server.data_dir):
        assert path.read_bytes() == damaged.pop(path.name, path.read_bytes())
    assert damaged == {}
    stored = json.loads((kept / "report.json").read_text())
    assert stored == {name: value for name, value in told.items() if name != "kept"}

    code, answer, _ = verify(server.data_dir)
    assert (code, answer["findings"]) == (0, [])
    assert repair(server.data_dir)[0] == 0
    _look_after_the_cut(server, each, cut)


def _look_after_the_cut(server: Any, each: Written, cut: int) -> None:
    with server:
        assert "partition stopped" not in server.log_text()
        found = Damaged(server, each, cut)
        assert found.listed(-1) == (0, cut)
        assert found.fetch(RECORDS).code == 1
        assert server.get("/readyz") == (200, '{"status":"ready"}')
        sent = -(-cut // 20) * 10, cut // 20 * 10
        _go_on(found, sent)
        # What is known of the other partition's producers has not changed.
        headers = {"producer-id": PRODUCER_ID, "producer-epoch": "0"}
        status, answer = append(server, b"2", headers | {"producer-seq": "2"}, 1)
        assert (status, answer["duplicate"]) == (200, True)
        assert append(server, b"3", headers | {"producer-seq": "3"}, 1)[0] == 200
        server.stop()
    code, answer, _ = verify(server.data_dir)
    assert (code, answer["findings"], answer["clean_stop"]) == (0, [], True)


def _go_on(found: Damaged, sent: tuple[int, int]) -> None:
    """Producers that go on where they were get a gap; those that ask go on at the cut."""
    by_kafka, by_name = sent
    written, cut = found.written, found.offset

    async def produce(data: bytes) -> tuple[int, int]:
        async with await WireClient.connect(LOOPBACK, found.server.kafka_port) as client:
            answer = await client.produce("t", data)
            return answer.code, answer.offset

    def kafka(first: int) -> tuple[int, int]:
        return asyncio.run(produce(batch([b"k"], written.kafka_pid, 0, first)))

    assert kafka(RECORDS // 2)[0] == GAP
    assert kafka(by_kafka) == (0, cut)
    status, lost = lease(found.server, name=NAME)
    assert (status, lost["pid"], lost["sequence_number"]) == (200, written.named_pid, by_name)

    def named(first: int) -> tuple[int, int]:
        who = Identity(lost["pid"], "", lost["generation"], first, first)
        return asyncio.run(produce(identified([b"n"], who)))

    assert named(RECORDS // 2)[0] == GAP
    assert named(by_name) == (0, cut + 1)
    values = [int(each.offset) for each in records_of(found.fetch(cut).data)]
    assert values == [cut, cut + 1]


def test_a_log_that_lost_its_end(written: dict[str, Written], tmp_path: Path) -> None:
    """The durable mark says that there was more; the server stops, and a cut settles it."""
    server = copied(written["durable"], tmp_path)
    log = segments(server.data_dir)[-1]
    with log.open("r+b") as file:
        file.truncate(0)
    with server:
        found = Damaged(server, written["durable"], 0)
        assert found.listed(-1)[0] == STORAGE
        server.kill9()
    code, told = report(server.data_dir)
    assert (code, told["damaged"][0]["acknowledged_to"]) == (1, RECORDS)
    base = int(log.stem)
    assert told["damaged"][0]["offset"] == base
    code, told = report(server.data_dir, "--cut", "t/0")
    assert (code, told["damaged"][0]["snapshots_beyond"] != []) == (0, True)
    code, answer, _ = verify(server.data_dir)
    assert (code, answer["findings"]) == (0, [])
    with server:
        assert Damaged(server, written["durable"], 0).listed(-1) == (0, base)
        server.kill9()


def test_what_cannot_be_cut(written: dict[str, Written], tmp_path: Path) -> None:
    server = copied(written["many"], tmp_path)
    (server.data_dir / "logs" / "t-0" / "log-start").write_bytes(b"x" * 12)
    code, told = report(server.data_dir)
    assert (code, told["damaged"][0]["can_be_cut"]) == (1, False)
    code, _, complaint = repair(server.data_dir, "--cut", "t/0")
    assert (code, "cannot be cut" in complaint) == (2, True)
    # Nothing that may have been deleted is read meanwhile, and no group is reset.
    with server:
        found = Damaged(server, written["many"], 0)
        assert found.listed(-1)[0] == found.listed(-2)[0] == found.listed(0)[0] == STORAGE
        for offset in (0, 90, RECORDS):
            assert found.fetch(offset).code == STORAGE
            assert ask(server, "GET", path_of("t", 0) + f"?offset={offset}")[0] == 503
        server.kill9()


def test_bad_orders(written: dict[str, Written], tmp_path: Path) -> None:
    server = copied(written["many"], tmp_path)
    flip(server.data_dir, 90)
    before = tree(server.data_dir)
    for order in ("t", "t/", "/0", "t/x", "t/-1", "t/2", "u/0", "t-0", ""):
        code, _, complaint = repair(server.data_dir, "--cut", order)
        assert code == 2, order
        assert complaint.startswith("pidlease: ")
    code, _, complaint = repair(tmp_path / "nothing")
    assert (code, "is no data directory" in complaint) == (2, True)
    code, _, complaint = repair(tmp_path / "nothing", "--cut", "t/0")
    assert (code, (tmp_path / "nothing").exists()) == (2, False)
    after = tree(server.data_dir)
    assert {name for name in after if after[name][1] != before[name][1]} <= {
        str(server.data_dir / "lock")
    }
    with server:
        for options in ((), ("--cut", "t/0")):
            code, _, complaint = repair(server.data_dir, *options)
            assert (code, "in use" in complaint) == (2, True), complaint
        server.kill9()
