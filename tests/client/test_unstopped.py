"""Programs that never stop their producer: their records are delivered, or their loss is named."""

import signal
import subprocess
import sys
from textwrap import dedent

import pytest

from pidlease.testing.loopback_ports import LOOPBACK
from tests.client.harness import World
from tests.client.test_blocking import served
from tests.servers.waiting import WAIT_S

#: Python's exit code for buffered data that could not be flushed at the end.
UNFLUSHED = 120


def server_of(all_: World) -> dict[str, str]:
    """The addresses, by a name that is to be resolved."""
    return {
        "bootstrap_servers": all_.broker.bootstrap.replace(LOOPBACK, "localhost"),
        "leases": all_.leases.url.replace(LOOPBACK, "localhost"),
    }


def run(all_: World, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a program; `SERVER` are the addresses."""
    program = f"SERVER = {server_of(all_)!r}\n" + dedent(script)
    command = [sys.executable, *options, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


SENDS = """
    from pidlease.client import BlockingProducer
    producer = BlockingProducer(**SERVER, delivery_timeout_ms=TIMEOUT)
    producer.start()
    for number in range(1000):
        producer.send("t", b"%d" % number)
"""


@pytest.mark.parametrize(
    "end", ["", "raise SystemExit(0)", "import atexit; atexit.register(producer.flush)"]
)
def test_records_are_delivered_at_the_end_of_the_program(end: str) -> None:
    with served() as all_:
        ended = run(all_, SENDS.replace("TIMEOUT", "20_000") + f"    {end}\n")
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
        assert all_.broker.values() == [b"%d" % number for number in range(1000)]


def test_what_is_not_delivered_in_time_is_named() -> None:
    with served() as all_:
        all_.leases.away = 1_000_000
        ended = run(all_, SENDS.replace("TIMEOUT", "500"))
        assert all_.leases.away < 1_000_000
        assert ended.returncode == UNFLUSHED
        (line,) = [each for each in ended.stderr.splitlines() if each.startswith("pidlease:")]
        assert "not stopped, and records are lost: t-0: never sent, not delivered" in line
        assert line.endswith("without a look at their futures: 1000 DeliveryTimeoutError")
        assert "Traceback" not in ended.stderr
        assert not all_.broker.values()


def test_records_that_failed_before_are_named() -> None:
    script = SENDS.replace("TIMEOUT", "300") + "    import time; time.sleep(1.5)\n"
    with served() as all_:
        all_.leases.away = 1_000_000
        ended = run(all_, script)
        assert all_.leases.away < 1_000_000
        assert ended.returncode == UNFLUSHED
        assert "1000 DeliveryTimeoutError" in ended.stderr


def test_later_handlers_and_the_log_work_after_a_loss() -> None:
    script = """
        import atexit, logging, sys
        logging.basicConfig(stream=sys.stdout)
        atexit.register(lambda: print("last", file=sys.stderr))
    """ + SENDS.replace("TIMEOUT", "500").replace("\n", "\n    ")
    with served() as all_:
        all_.leases.away = 1_000_000
        ended = run(all_, script)
        assert all_.leases.away < 1_000_000
        assert ended.returncode == UNFLUSHED
        assert ended.stderr.splitlines()[-1] == "last"
        assert "not stopped, and records are lost" in ended.stderr
        assert "ERROR:pidlease.client.unstopped_producers:a producer was not" in ended.stdout


def test_a_callback_that_never_returns_does_not_keep_the_program() -> None:
    script = SENDS.replace("TIMEOUT", "500") + (
        "    import threading\n"
        '    producer.send("t", b"last").add_done_callback(lambda _: threading.Event().wait())\n'
    )
    with served() as all_:
        ended = run(all_, script)
        assert ended.returncode == UNFLUSHED
        assert "a callback of a future does not return" in ended.stderr


def test_ctrl_c_ends_the_wait_and_the_loss_is_named() -> None:
    with served() as all_:
        all_.leases.away = 1_000_000
        handled = "    import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        script = SENDS.replace("TIMEOUT", "600_000") + handled
        program = f"SERVER = {server_of(all_)!r}\n" + dedent(script)
        command = [sys.executable, "-Wdefault::ResourceWarning", "-c", program]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
            assert running.stderr is not None
            while "ResourceWarning" not in running.stderr.readline():
                pass
            running.send_signal(signal.SIGINT)
            _, errors = running.communicate(timeout=WAIT_S)
        assert running.returncode == UNFLUSHED
        assert "1000 ProducerClosedError" in errors
        assert "Traceback" not in errors


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_of_multiprocessing_deliver(method: str) -> None:
    script = f"""
        import multiprocessing
        from tests.client.sending_process import send_in_process
        context = multiprocessing.get_context({method!r})
        work = context.Process(target=send_in_process, args=(SERVER,))
        work.start()
        work.join()
        raise SystemExit(work.exitcode)
    """
    with served() as all_:
        ended = run(all_, script)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert all_.broker.values() == [b"%d" % number for number in range(100)]
        all_.leases.away = 1_000_000
        ended = run(all_, script)
        assert all_.leases.away < 1_000_000
        assert ended.returncode != 0
        assert "100 DeliveryTimeoutError" in ended.stderr


ASYNC = """
    import asyncio
    from pidlease.client import LeasedProducer
    async def main():
        producer = LeasedProducer(**SERVER)
        await producer.start()
        for number in range(1000):
            await producer.send("t", b"%d" % number)
"""


@pytest.mark.parametrize("alive", [True, False])
def test_an_asyncio_producer_says_what_is_lost(alive: bool) -> None:
    script = ASYNC + ("        return producer\n" if alive else "")
    script += "    kept = asyncio.run(main())\n"
    with served() as all_:
        all_.leases.away = 1_000_000
        ended = run(all_, script, "-Wdefault::ResourceWarning")
        assert ended.returncode == UNFLUSHED
        assert "records are lost: 1,000 without an outcome; call stop(), or" in ended.stderr
        assert "ResourceWarning: a producer was not stopped" in ended.stderr


def test_an_asyncio_producer_that_is_collected_says_what_is_lost() -> None:
    script = ASYNC + '    asyncio.run(main())\n    import gc; gc.collect(); print("later")\n'
    with served() as all_:
        all_.leases.away = 1_000_000
        ended = run(all_, script + "    import sys; sys.stderr.write('later')\n")
        assert ended.returncode == UNFLUSHED
        assert ended.stderr.count("records are lost") == 1
        assert ended.stderr.index("records are lost") < ended.stderr.index("later")


def test_an_asyncio_producer_without_pending_records_only_warns() -> None:
    script = ASYNC + "        await producer.flush()\n    asyncio.run(main())\n"
    with served() as all_:
        ended = run(all_, script, "-Wdefault::ResourceWarning")
        assert ended.returncode == 0
        assert "ResourceWarning: a producer was not stopped" in ended.stderr
        assert "lost" not in ended.stderr
        assert len(all_.broker.values()) == 1000
