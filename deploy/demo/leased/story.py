"""The second part from its first lease to its verdict."""

import asyncio
import shutil
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from rich.console import Console

from deploy.demo.behind import Behind
from deploy.demo.leased.coordinator import coordinator
from deploy.demo.leased.lives import Life
from deploy.demo.leased.producer import FENCED_EXIT
from deploy.demo.leased.verdict import Verdict
from deploy.demo.proxy_process import DemoError, Proxy
from deploy.demo.readback import Stored, read_topics
from deploy.demo.screen import Screen
from deploy.demo.topics import create_topics
from deploy.demo.verdicts import conclude

_NAME: Final = "demo/orders"
_TOPIC: Final = "leased"
_COUNTS: Final = [5_000, 5_000]
_ALL_S: Final = 120.0
#: Records that a life has acknowledged when something happens to it.
_PART: Final = 1_500
_DOWN_S: Final = 0.3


async def run_leased(console: Console, directory: Path, behind: Behind | None = None) -> int:
    """Run it; the exit code.

    Parameters:
        console: where it is shown.
        directory: data and logs; what an earlier run left there is removed.
        behind: the Kafka behind the proxy; None: the log is the proxy's own.
    """
    await asyncio.to_thread(_empty, directory)
    with Screen(console, {}) as screen:
        try:
            async with asyncio.timeout(_ALL_S), AsyncExitStack() as stack:
                if behind is not None:
                    story = _Story(directory, screen, "ZooKeeper", behind.arguments)
                else:
                    which = coordinator(directory / "zookeeper", screen)
                    source, hosts = await stack.enter_async_context(which)
                    arguments = ("--zookeeper", hosts) if hosts else ()
                    story = _Story(directory, screen, source, arguments)
                verdict = await story.run()
        except TimeoutError:
            raise DemoError(f"part two was not done within {_ALL_S:.0f} s") from None
    return conclude(console, verdict)


class _Story:
    def __init__(
        self, directory: Path, screen: Screen, source: str, arguments: tuple[str, ...]
    ) -> None:
        self._proxy = Proxy(directory, *arguments)
        self._log = directory / "producer.log"
        self._screen = screen
        self._source = source
        self._lives: list[Life] = []
        self._producer_kills = 0
        self._proxy_kills = 0

    async def run(self) -> Verdict:
        try:
            await self._proxy.start()
            await asyncio.to_thread(create_topics, self._proxy.bootstrap, {_TOPIC: len(_COUNTS)})
            return await self._run()
        finally:
            for life in self._lives:
                await life.kill()
            await self._proxy.destroy()

    async def _run(self) -> Verdict:
        life = await self._begin()
        await life.has_acknowledged(_PART)
        await self._kill_producer(life)
        life = await self._begin()
        await life.has_acknowledged(_PART)
        await self._kill_proxy()
        await self._proxy.start()
        await life.has_acknowledged(life.acknowledged + _PART // 2)
        await self._kill_producer(life, with_proxy=True)
        await self._proxy.start()
        life = await self._begin()
        await life.has_acknowledged(_PART // 2)
        zombie, life = life, await self._succeed(life)
        code = await self._wake(zombie)
        if (ended := await life.ended()) != 0:
            raise DemoError(f"the last producer ended with {ended}: {life.told[-3:]}")
        stored = await asyncio.to_thread(read_topics, self._proxy.bootstrap, {_TOPIC: len(_COUNTS)})
        await self._proxy.stop()
        return self._verdict(zombie, code, stored)

    # ------------------------------------------------------------------ what happens

    async def _begin(self) -> Life:
        life = await Life.start(self._proxy, self._log, _NAME, _TOPIC, _COUNTS)
        self._lives.append(life)
        await life.has_acknowledged(1)
        places = ", ".join(f"{number} of partition {each}" for each, number in life.resumed.items())
        how = "leased" if len(self._lives) == 1 else "came back by its name: goes on at"
        self._screen.tell(f"the producer {how} PID {life.pid}, {places}")
        return life

    async def _kill_producer(self, life: Life, *, with_proxy: bool = False) -> None:
        if with_proxy:
            self._proxy.kill_now()
            self._proxy_kills += 1
        life.send_signal(signal.SIGKILL)
        await life.ended()
        self._producer_kills += 1
        if with_proxy:
            await self._proxy.ended()
        also = " together with the proxy" if with_proxy else ""
        self._screen.tell(
            f"kill -9 of the producer{also}, {life.acknowledged} acknowledged in its life"
        )

    async def _kill_proxy(self) -> None:
        self._proxy.kill_now()
        await self._proxy.ended()
        self._proxy_kills += 1
        self._screen.tell("kill -9 of the proxy under the producer")
        await asyncio.sleep(_DOWN_S)

    async def _succeed(self, zombie: Life) -> Life:
        zombie.send_signal(signal.SIGSTOP)
        self._screen.tell(
            "the producer is stopped in the middle (SIGSTOP); another one takes its name"
        )
        return await self._begin()

    async def _wake(self, zombie: Life) -> int:
        zombie.send_signal(signal.SIGCONT)
        code = await zombie.ended()
        self._screen.tell(f"the zombie woke up: {zombie.told[-1]}")
        return code

    def _verdict(self, zombie: Life, code: int, stored: list[Stored]) -> Verdict:
        return Verdict(
            source=self._source,
            counts=_COUNTS,
            stored=stored,
            lives=len(self._lives),
            producer_kills=self._producer_kills,
            proxy_kills=self._proxy_kills,
            pids=frozenset(life.pid for life in self._lives),
            resumed=[number for life in self._lives[1:] for number in life.resumed.values()],
            zombie=zombie.told[-1] if zombie.told else "it said nothing",
            fenced=code == FENCED_EXIT,
        )


def _empty(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
