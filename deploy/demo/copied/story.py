"""The third part from its first record to its verdict."""

import asyncio
import http
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console

from deploy.demo.clients import log_into
from deploy.demo.copied.copier import Copier
from deploy.demo.copied.filler import Filler
from deploy.demo.copied.verdict import Verdict
from deploy.demo.duplicates import DuplicateCounter, counted
from deploy.demo.proxy_process import DemoError, Proxy
from deploy.demo.readback import Stored, read_topics
from deploy.demo.rows import PARTITIONS, TOPICS
from deploy.demo.screen import Screen
from deploy.demo.topics import create_topics
from deploy.demo.verdicts import conclude

_COPY: Final = ".copy"
#: Exit code of a copier that another one has replaced.
_FENCED: Final = 3
_ALL_S: Final = 180.0
_MORE_S: Final = 45.0
_LOOK_S: Final = 0.05
#: Records that are to arrive before something happens.
_PART: Final = 500
_APPENDED: Final = "pidlease_appended_records_total"


async def run_copied(console: Console, directory: Path) -> int:
    """Run it; the exit code.

    Parameters:
        console: where it is shown.
        directory: data and logs; what an earlier run left there is removed.
    """
    await asyncio.to_thread(_empty, directory)
    with Screen(console, {}) as screen:
        try:
            async with asyncio.timeout(_ALL_S):
                verdict = await _Story(directory, screen).run()
        except TimeoutError:
            raise DemoError(f"part three was not done within {_ALL_S:.0f} s") from None
    return conclude(console, verdict)


class _Story:
    def __init__(self, directory: Path, screen: Screen) -> None:
        self._directory = directory
        self._source = Proxy(directory / "source")
        self._target = Proxy(directory / "destination")
        self._screen = screen
        self._copiers: list[Copier] = []
        self._kills = 0
        self._copier_kills = 0
        self._duplicates = DuplicateCounter()

    async def run(self) -> Verdict:
        try:
            await self._source.start()
            await self._target.start()
            topics = dict.fromkeys(TOPICS, PARTITIONS)
            await asyncio.to_thread(create_topics, self._source.bootstrap, topics)
            log = log_into(self._directory / "clients.log")
            return await self._run(Filler(self._source.bootstrap, log))
        finally:
            for copier in self._copiers:
                await copier.destroy()
            await self._source.destroy()
            await self._target.destroy()

    async def _run(self, filler: Filler) -> Verdict:
        async with asyncio.TaskGroup() as group:
            group.create_task(filler.run())
            copier = await self._kill_everything()
            zombie, copier = await self._replace(copier)
            filler.stop()
        copier.send_signal(signal.SIGTERM)
        await self._well(copier)
        await self._well(await self._begin("--once"))
        verified = await (await self._begin("--verify")).ended() == 0
        source = await asyncio.to_thread(_read, self._source.bootstrap, "")
        copy = await asyncio.to_thread(_read, self._target.bootstrap, _COPY)
        await self._duplicates.look(self._target)
        await self._source.stop()
        await self._target.stop()
        return Verdict(
            sent=filler.sent, source=source, copy=copy,
            kills=self._kills, copier_kills=self._copier_kills, duplicates=self._duplicates.total,
            zombie=zombie.last_line, fenced=await zombie.ended() == _FENCED, verified=verified,
        )  # fmt: skip

    # ------------------------------------------------------------------ what happens

    async def _kill_everything(self) -> Copier:
        copier = await self._begin()
        await self._more_arrives(copier)
        await self._kill(copier)
        copier = await self._begin()
        await self._more_arrives(copier)
        await self._duplicates.look(self._target)
        await self._kill_proxy(self._target, "the destination")
        await self._more_arrives(copier)
        await self._kill(copier)
        await self._kill_proxy(self._source, "the source")
        copier = await self._begin()
        await self._more_arrives(copier)
        await self._kill(copier)
        copier = await self._begin()
        await self._more_arrives(copier)
        return copier

    async def _replace(self, zombie: Copier) -> tuple[Copier, Copier]:
        zombie.send_signal(signal.SIGSTOP)
        self._screen.tell("the copier is stopped in the middle (SIGSTOP); another one takes over")
        copier = await self._begin()
        await self._more_arrives(copier)
        zombie.send_signal(signal.SIGCONT)
        await zombie.ended()
        self._screen.tell(f"the zombie woke up: {zombie.last_line}")
        await self._more_arrives(copier)
        return zombie, copier

    async def _begin(self, *options: str) -> Copier:
        log = self._directory / f"copier-{len(self._copiers) + 1}.log"
        copier = await Copier.start(log, self._source, self._target, *options)
        self._copiers.append(copier)
        return copier

    async def _kill(self, copier: Copier) -> None:
        copier.send_signal(signal.SIGKILL)
        await copier.ended()
        self._kills += 1
        self._copier_kills += 1
        self._screen.tell(f"kill -9 of the copier, {await self._arrived():,} records are copied")

    async def _kill_proxy(self, proxy: Proxy, what: str) -> None:
        proxy.kill_now()
        await proxy.ended()
        self._kills += 1
        self._screen.tell(f"kill -9 of {what}")
        await proxy.start()

    async def _more_arrives(self, copier: Copier) -> None:
        """Wait until the destination takes more.

        Raises:
            DemoError: it does not.
        """
        wanted = await self._arrived() + _PART
        try:
            async with asyncio.timeout(_MORE_S):
                while await self._arrived() < wanted:
                    if not copier.alive:
                        raise DemoError(f"the copier ended early; {copier.tail()}")
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise DemoError(f"nothing arrives any more; {copier.tail()}") from None

    async def _arrived(self) -> int:
        """How many records the destination has taken in its life."""
        status, page = await self._target.get("/metrics")
        if status != http.HTTPStatus.OK:
            raise DemoError(f"the destination's metrics: HTTP {status}")
        return counted(page, _APPENDED)

    async def _well(self, copier: Copier) -> None:
        if (code := await copier.ended()) != 0:
            raise DemoError(f"a copier ended with {code}; {copier.tail()}")


def _read(bootstrap: str, suffix: str) -> list[Stored]:
    """All records, under the source's names."""
    found = read_topics(bootstrap, {topic + suffix: PARTITIONS for topic in TOPICS})
    return [replace(each, topic=each.topic.removesuffix(suffix)) for each in found]


def _empty(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    for name in ("source", "destination"):
        (directory / name).mkdir(parents=True)
