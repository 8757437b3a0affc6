"""The demo from its first row to its verdict."""

import asyncio
import logging
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console

from deploy.demo.audit import audit
from deploy.demo.behind import Behind
from deploy.demo.clients import AiokafkaClient, Client, LibrdkafkaClient, log_into
from deploy.demo.crashes import BROKER, PLAN, PLAN_IN_FRONT, Crasher
from deploy.demo.duplicates import DuplicateCounter
from deploy.demo.kept import save_metrics
from deploy.demo.ledger import Ledger
from deploy.demo.outcome import Outcome
from deploy.demo.pace import Pace, send_all
from deploy.demo.proxy_process import DemoError, Proxy
from deploy.demo.readback import read_back
from deploy.demo.rows import PARTITIONS, TOPICS, Record, load_records
from deploy.demo.screen import Screen
from deploy.demo.topics import create_topics

_SHOW_S: Final = 0.2
#: The whole demo; a hang is a failure, and one that says so.
_ALL_S: Final = 150.0


class _Run(NamedTuple):
    """How long sending lasts, where clients log, and the Kafka behind."""

    seconds: float
    log: logging.Logger
    behind: Behind | None


async def run_demo(
    console: Console, directory: Path, seconds: float, behind: Behind | None = None
) -> int:
    """Run it; the exit code.

    Parameters:
        console: where it is shown.
        directory: data and logs; what an earlier run left there is removed.
        seconds: how long sending is to last.
        behind: the Kafka behind the proxy; then that is killed, too, and read from. None: the log
            is the proxy's own.
    """
    log = _prepare(directory)
    records = load_records()
    proxy = Proxy(directory, *(behind.arguments if behind else ()))
    duplicates = DuplicateCounter()
    with Screen(console, {client: len(mine) for client, mine in records.items()}) as screen:
        try:
            async with asyncio.timeout(_ALL_S):
                run = _Run(seconds, log, behind)
                ledgers, crasher = await _produce(proxy, records, screen, duplicates, run)
                source = behind.bootstrap if behind else proxy.bootstrap
                whose = "from Kafka itself" if behind else "from the proxy"
                screen.tell(f"all acknowledged; reading everything back, {whose}")
                stored = await asyncio.to_thread(read_back, source)
                await save_metrics(proxy, directory)
                await proxy.stop()
        except TimeoutError:
            raise DemoError(f"not done within {_ALL_S:.0f} s; {proxy.tail()}") from None
        finally:
            await proxy.destroy()
    failures = [text for ledger in ledgers for text in ledger.failures]
    outcome = Outcome(
        audit(ledgers, stored), crasher.kills, duplicates.total, failures,
        broker_kills_min=PLAN_IN_FRONT.count(BROKER) if behind else 0,
    )  # fmt: skip
    return screen.report(outcome, duplicates)


def _prepare(directory: Path) -> logging.Logger:
    """An empty place for this run, with a file for what the clients have to say."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(directory / "data", ignore_errors=True)
    for name in ("proxy.log", "clients.log"):
        (directory / name).unlink(missing_ok=True)
    return log_into(directory / "clients.log")


async def _produce(
    proxy: Proxy,
    records: dict[str, list[Record]],
    screen: Screen,
    duplicates: DuplicateCounter,
    run: _Run,
) -> tuple[list[Ledger], Crasher]:
    """Send everything through all crashes, until every record has been reported on."""
    plan = PLAN_IN_FRONT if run.behind else PLAN
    took = await proxy.start(plan[0].fault)
    screen.tell(f"the proxy is ready after {took:.1f} s, pid {proxy.pid}, data {proxy.data_dir}")
    await asyncio.to_thread(create_topics, proxy.bootstrap, dict.fromkeys(TOPICS, PARTITIONS))
    clients: list[Client] = [
        LibrdkafkaClient(proxy.bootstrap, run.log),
        AiokafkaClient(proxy.bootstrap),
    ]
    ledgers = [client.ledger for client in clients]
    for client in clients:
        await client.start()
    crasher = Crasher(proxy, clients, screen.tell, plan, run.behind)
    pace = Pace(run.seconds, lambda: crasher.left)
    watchers = [
        asyncio.create_task(duplicates.watch(proxy)),
        asyncio.create_task(_show(screen, ledgers, duplicates)),
    ]
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(crasher.run())
            for client in clients:
                group.create_task(send_all(client, records[client.ledger.client], pace))
        for client in clients:
            await client.finish()
        await duplicates.look(proxy)
    except BaseException:
        for client in clients:
            await client.abandon()
        raise
    finally:
        await _cancel(watchers)
    return ledgers, crasher


async def _show(screen: Screen, ledgers: Sequence[Ledger], duplicates: DuplicateCounter) -> None:
    while True:
        screen.show(ledgers, duplicates.total)
        await asyncio.sleep(_SHOW_S)


async def _cancel(tasks: Sequence["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
