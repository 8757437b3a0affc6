"""`pidlease produce` and `pidlease consume` against a real server."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition
from typer.testing import CliRunner, Result

from pidlease.kafka.records.record_batch import HEADER_BYTES, read_header
from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from proxy.__main__ import cli
from proxy.cli.client_login import command_security
from proxy.cli.consume_command import _Printer, _Request
from proxy.cli.kafka_topics import KafkaListener
from tests.kafka_listener.batches import batch, changed
from tests.kafka_listener.client import WireClient
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PidleaseServer]:
    """One for all; each test has a topic of its own."""
    settings = {"default_partitions": "3", "fsync": "never"}
    with PidleaseServer(tmp_path_factory.mktemp("server"), settings=settings) as running:
        yield running


def addresses(server: PidleaseServer) -> dict[str, str]:
    return {"PIDLEASE_SERVERS": server.bootstrap, "PIDLEASE_URL": server.http_url}


def run(server: PidleaseServer, *words: str, stdin: bytes = b"") -> Result:
    """Run a command in this process: its own start costs more than all the rest."""
    return CliRunner().invoke(cli, list(words), input=stdin, env=addresses(server))


def consumed(server: PidleaseServer, topic: str, *options: str) -> list[str]:
    found = run(server, "consume", topic, "--from-beginning", "--exit-at-end", *options)
    assert (found.exit_code, found.stderr) == (0, ""), found.output
    return found.stdout.splitlines()


def process(server: PidleaseServer, *words: str, **options: object) -> "subprocess.Popen[bytes]":
    env = os.environ | addresses(server) | {"PYTHONPATH": str(_ROOT)}
    return subprocess.Popen([sys.executable, "-m", "proxy", *words], env=env, **options)  # type: ignore[call-overload, no-any-return]


def test_keys_and_headers(server: PidleaseServer) -> None:
    done = run(server, "produce", "keys", "--key-separator", ":", "--header", "from=a file",
               stdin=b"a:1\nb:2:3\n\xc3\xa4:")  # fmt: skip
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "3 records stored\n")
    shown = consumed(server, "keys", "--key-separator", "=", "--headers")
    assert sorted(shown) == sorted(f"from=a file\t{each}" for each in ("a=1", "b=2:3", "ä="))
    assert sorted(consumed(server, "keys")) == ["", "1", "2:3"]


def test_only_the_lf_of_a_line_goes(server: PidleaseServer) -> None:
    lines = b"a\r\n\r\n\nb\r"
    assert run(server, "produce", "crlf", "--partition", "0", stdin=lines).exit_code == 0
    found = run(server, "consume", "crlf", "--from-beginning", "--exit-at-end")
    assert found.stdout_bytes == lines + b"\n"
    json_lines = b'{"value": "x"}\r\n'
    assert run(server, "produce", "crlf-json", "--json", stdin=json_lines).exit_code == 0


def test_any_time_that_is_read_can_be_written(server: PidleaseServer) -> None:
    times = (-(2**63), -5, -1, 0, 2**53, 2**63 - 1)
    lines = "".join(f'{{"value": "x", "timestamp_ms": {each}}}\n' for each in times)
    words = ("--json", "--partition", "1")
    assert run(server, "produce", "times", *words, stdin=lines.encode()).exit_code == 0
    shown = consumed(server, "times", "--json")
    assert [json.loads(each)["timestamp_ms"] for each in shown] == [*times]
    again = run(server, "produce", "times2", "--json", stdin="\n".join(shown).encode())
    assert again.exit_code == 0, again.stderr
    assert consumed(server, "times2", "--json") == shown
    wrong = run(server, "produce", "times", "--json", stdin=b'{"value": "x", "timestamp_ms": 1e19}')
    assert (wrong.exit_code, "line 1: timestamp_ms: " in wrong.stderr) == (1, True)


def test_a_line_that_was_skipped_is_skipped_again(server: PidleaseServer, tmp_path: Path) -> None:
    lines = b"1\n" + b"x" * 1_200_000 + b"\n3\n"
    words = ("produce", "skipped", "--name", "skipping", "--skip-invalid", "--partition", "0",
             "--plan", str(tmp_path / "plan"))  # fmt: skip
    for counts in ("2 records stored", "0 records stored, 2 were in the log before"):
        done = run(server, *words, stdin=lines)
        assert done.exit_code == 1
        assert done.stderr.startswith("pidlease: skipped line 2: a record of 1200000 bytes;")
        assert done.stderr.endswith(f"\n{counts}, 1 lines skipped\n")
    assert sorted(consumed(server, "skipped")) == ["1", "3"]


def shell(server: PidleaseServer, command: str, stdin: bytes = b"") -> tuple[int, str, str]:
    """Run a command of bash, where PIDLEASE is the program."""
    env = os.environ | addresses(server) | {"PYTHONPATH": str(_ROOT)}
    program = command.replace("PIDLEASE", f"{sys.executable} -m proxy")
    ended = subprocess.run(
        ["bash", "-c", program], env=env, input=stdin, capture_output=True, timeout=WAIT_S,
        check=False,
    )  # fmt: skip
    return ended.returncode, ended.stdout.decode(), ended.stderr.decode()


@pytest.mark.parametrize(
    "words",
    ["consume out --from-beginning --exit-at-end", "topics list", "status --json", "--help"],
)
def test_a_full_and_a_closed_stdout_cost_one_line(server: PidleaseServer, words: str) -> None:
    assert run(server, "produce", "out", stdin=b"x\n" * 1000).exit_code == 0
    for to, problem in ((">/dev/full", "No space left on device"), (">&-", "it is closed")):
        line = f"pidlease: stdout cannot be written: {problem}\n"
        assert shell(server, f"PIDLEASE {words} {to}") == (1, "", line)


def test_a_reader_that_is_gone_costs_no_line(server: PidleaseServer) -> None:
    code = "echo ${PIPESTATUS[0]}"
    assert shell(server, f"PIDLEASE --help | true; {code}") == (0, "1\n", "")
    assert shell(server, f"PIDLEASE topics list | true; {code}") == (0, "1\n", "")


def test_a_closed_stdin_costs_one_line(server: PidleaseServer) -> None:
    line = "pidlease: stdin is closed: give the input by a pipe, or by < FILE\n"
    assert shell(server, "PIDLEASE produce closed <&-") == (1, "", line)
    user = "PIDLEASE users add a --data-dir /nonexistent <&-"
    assert "Traceback" not in shell(server, user)[2]


def test_a_command_that_prints_nothing_needs_no_stdout(server: PidleaseServer) -> None:
    stored = shell(server, "PIDLEASE produce nothing >&-", b"x\n")
    assert stored == (0, "", "1 records stored\n")


def test_json_comes_back_as_it_is(server: PidleaseServer) -> None:
    records: list[dict[str, Any]] = [
        {"value": "x", "key": None, "headers": [], "timestamp_ms": 1, "partition": 2},
        {"value": None, "key": "k", "headers": [{"key": "h", "value": {"base64": "/w=="}}],
         "timestamp_ms": 2, "partition": 0},
        {"value": {"base64": "/wo="}, "key": "", "headers": [{"key": "h", "value": None}],
         "timestamp_ms": 3, "partition": 1},
    ]  # fmt: skip
    lines = "".join(json.dumps(each) + "\n" for each in records)
    assert run(server, "produce", "json", "--json", stdin=lines.encode()).exit_code == 0
    shown = consumed(server, "json", "--json")
    found: list[dict[str, Any]] = [json.loads(each) for each in shown]
    found.sort(key=lambda each: int(each["timestamp_ms"]))
    assert found == [{**each, "offset": 0} for each in records]
    again = run(server, "produce", "json2", "--json", stdin="\n".join(shown).encode())
    assert again.exit_code == 0, again.stderr
    assert sorted(consumed(server, "json2", "--json")) == sorted(shown)


def test_where_to_begin_and_end(server: PidleaseServer) -> None:
    lines = b"".join(b"%d\n" % number for number in range(100))
    assert run(server, "produce", "ends", "--partition", "1", stdin=lines).exit_code == 0
    assert consumed(server, "ends", "--max", "3") == ["0", "1", "2"]
    assert consumed(server, "ends", "--partition", "1") == [str(each) for each in range(100)]
    assert consumed(server, "ends", "--partition", "0") == []
    from_there = run(
        server, "consume", "ends", "--partition", "1", "--offset", "98", "--exit-at-end"
    )
    assert from_there.stdout == "98\n99\n"
    assert run(server, "consume", "ends", "--exit-at-end").stdout == ""
    for words, reason in (
        (["--offset", "101", "--partition", "1"], "ends-1 has no offset 101"),
        (["--partition", "3"], "3 partitions, and no 3"),
    ):
        refused = run(server, "consume", "ends", *words)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert reason in refused.stderr
    missing = run(server, "consume", "missing")
    assert (missing.exit_code, missing.stderr) == (1, "pidlease: there is no topic missing\n")
    assert "missing" not in run(server, "topics", "list").stdout, "it is not created"


_GOOD = batch([b"good"] * 2)
_PLAIN = batch([b"x"] * 2)
_DAMAGED = {
    "not compressed": changed(_PLAIN, attributes=1),
    "no records": changed(_PLAIN[:HEADER_BYTES] + b"\xff" * 20, batch_length=HEADER_BYTES + 8),
    "fewer records": changed(_PLAIN, records=5, last_offset_delta=4),
    "more records": changed(_PLAIN, records=1, last_offset_delta=0),
}


async def stored(server: PidleaseServer, topic: str, *batches: bytes) -> None:
    """Have batches in partition 1 of a new topic."""
    async with await WireClient.connect(LOOPBACK, server.kafka_port) as client:
        await client.create(topic, partitions=3)
        for each in batches:
            assert (await client.produce(topic, each, partition=1)).code == 0


@pytest.mark.parametrize("what", _DAMAGED)
def test_a_batch_that_cannot_be_read(server: PidleaseServer, what: str) -> None:
    topic = what.replace(" ", "-")
    damaged = _DAMAGED[what]
    following = 4 + read_header(damaged).records
    asyncio.run(stored(server, topic, _GOOD, _GOOD, damaged, _GOOD))
    assert run(server, "produce", topic, "--partition", "0", stdin=b"other\n").exit_code == 0
    words = ("consume", topic, "--from-beginning", "--exit-at-end")
    found = run(server, *words, "--partition", "1")
    assert (found.exit_code, found.stdout) == (1, "good\n" * 4)
    assert found.stderr.count("\n") == 1
    assert f"{topic}-1, offset 4: the batch up to offset {following - 1} is damaged" in found.stderr
    assert f"continue with --partition 1 --offset {following} (" in found.stderr
    after = run(server, "consume", topic, "--exit-at-end", "--partition", "1",
                "--offset", str(following))  # fmt: skip
    assert (after.exit_code, after.stdout) == (0, "good\n" * 2)
    both = run(server, *words)
    assert both.exit_code == 1
    assert both.stderr == found.stderr
    assert both.stdout.splitlines().count("good") == 4
    some = run(server, *words, "--partition", "1", "--max", "4")
    assert (some.exit_code, some.stdout, some.stderr) == (0, "good\n" * 4, "")


async def test_what_came_after_the_end_hides_no_batch_that_cannot_be_read(
    server: PidleaseServer,
) -> None:
    """Once the command found the one after the end again and again."""
    topic = "two-damaged"
    async with await WireClient.connect(LOOPBACK, server.kafka_port) as client:
        await client.create(topic, partitions=2)
        damaged = _DAMAGED["no records"]
        for partition, data in ((0, damaged), (1, _GOOD), (1, damaged)):
            assert (await client.produce(topic, data, partition=partition)).code == 0
    places = [TopicPartition(topic, number) for number in range(2)]
    request = _Request(topic, None, True, None, None, True, False, None, False)
    consumer = AIOKafkaConsumer(bootstrap_servers=server.bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign(places)
        starts = dict.fromkeys(places, 0)
        for place in places:
            consumer.seek(place, 0)
        listener = KafkaListener(server.bootstrap, command_security(None))
        ends = dict(zip(places, (0, 4), strict=True))
        printer = _Printer(listener, consumer, request, starts, ends)
        with pytest.raises(typer.Exit):
            await asyncio.wait_for(printer.run(), WAIT_S)
    finally:
        await consumer.stop()


def test_it_follows_until_it_is_stopped(server: PidleaseServer) -> None:
    assert run(server, "produce", "follow", stdin=b"before\n").exit_code == 0
    words = ("consume", "follow", "--from-beginning")
    with process(server, *words, stdout=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"before\n"
        assert run(server, "produce", "follow", stdin=b"after\n").exit_code == 0
        assert follower.stdout.readline() == b"after\n"
        follower.send_signal(signal.SIGINT)
        assert follower.wait(20) == 0


def test_a_broken_pipe_is_a_clean_end(server: PidleaseServer) -> None:
    lines = b"".join(b"%d\n" % number for number in range(20_000))
    assert run(server, "produce", "pipe", "--partition", "0", stdin=lines).exit_code == 0
    words = ("consume", "pipe", "--from-beginning", "--exit-at-end")
    with process(server, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"0\n"
        reader.stdout.close()
        assert reader.wait(20) == 0
        assert reader.stderr is not None
        assert reader.stderr.read() == b""


def test_a_crash_in_the_middle_loses_and_doubles_nothing(
    server: PidleaseServer, tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number % 7}:{number}\n" for number in range(30_000)))
    plan = tmp_path / "plan.json"
    words = ("produce", "crash", "--key-separator", ":", "--name", "a load", "--plan", str(plan))
    with lines.open() as stdin, process(server, *words, stdin=stdin) as first:
        give_up = time.monotonic() + 60
        while not plan.exists() or json.loads(plan.read_bytes())["stored"] == []:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        first.kill()
    # More partitions now: each key stays in its own.
    assert run(server, "topics", "alter", "crash", "--partitions", "5").exit_code == 0
    for _ in range(2):
        judged = server.metric("pidlease_batches_judged_total", topic="crash")
        with (
            lines.open() as stdin,
            process(server, *words, stdin=stdin, stderr=subprocess.PIPE) as again,
        ):
            assert again.stderr is not None
            assert b"were in the log before" in again.stderr.read()
        assert again.returncode == 0
    unsent = server.metric("pidlease_batches_judged_total", topic="crash") == judged > 0
    assert unsent, "stored lines are not sent once more"
    found = Counter(consumed(server, "crash"))
    assert found == Counter(str(number) for number in range(30_000))

    # Another input under the same name, or without the plan, would be taken for this one.
    other = run(server, *words, stdin=b"0:0\n")
    assert (other.exit_code, "bytes was" in other.stderr) == (2, True), other.stderr
    plan.unlink()
    with lines.open() as stdin:
        unknown = process(server, *words, stdin=stdin, stderr=subprocess.PIPE)
        assert b"another input" in unknown.communicate()[1]
    assert unknown.returncode == 2


def test_lines_that_are_no_records(server: PidleaseServer) -> None:
    text = ("produce", "bad", "--key-separator", ":")
    stops = run(server, *text, stdin=b"a:1\nb\nc:3\n")
    assert stops.exit_code == 1
    assert "not finished: line 2: has no key" in stops.stderr
    skips = run(server, *text, "--skip-invalid", stdin=b"b\nc:4\n")
    assert (skips.exit_code, "1 lines skipped" in skips.stderr) == (1, True)
    assert sorted(consumed(server, "bad")) == ["1", "4"]
    for line in (b"{", b'{"value": 1}', b'{"colour": "red"}', b'{"value": "x", "partition": 3}'):
        wrong = run(server, "produce", "bad", "--json", stdin=line)
        assert (wrong.exit_code, "line 1: " in wrong.stderr) == (1, True), wrong.stderr
    assert sorted(consumed(server, "bad")) == ["1", "4"]


def test_what_does_not_fit(server: PidleaseServer) -> None:
    free_address = f"{LOOPBACK}:{free_ports(1)[0]}"
    for words in (
        ["produce", "x", "--json", "--key-separator", ":"],
        ["produce", "x", "--header", "novalue"],
        ["produce", "x", "--plan", "p"],
        ["produce", "a/b"],
        ["produce", "x", "--url", f"http://{free_address}"],
        ["produce", "x", "--servers", free_address],
        ["consume", "a/b"],
        ["consume", "x", "--from-beginning", "--offset", "1"],
        ["consume", "x", "--json", "--headers"],
        ["consume", "x", "--servers", free_address],
    ):
        done = run(server, *words, stdin=b"x\n")
        assert (done.exit_code, done.stdout) == (2, ""), words
        assert done.stderr.startswith("pidlease: "), words
        assert done.stderr.count("\n") == 1, done.stderr
