"""The demo's third part: topics copied from one server to another, each record once.

A client writes to the source all the time. Meanwhile the copier is killed, then the destination,
then the copier and the source at once. Then a copier is stopped (SIGSTOP), another one takes over,
and the first wakes up: a zombie with batches in flight. Finally both sides are compared.
"""

import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from rich.console import Console
from typing_extensions import override

from deploy.demo import DemoError
from deploy.demo.clients import Bursts, LibrdkafkaClient, log_into
from deploy.demo.rows import TOPICS, repeated
from deploy.demo.screen import Screen
from deploy.demo.story import SETTINGS, make_topics, read_topics
from deploy.demo.takeover import FENCED, PROGRESS_S, CopyVerdict, Lives, last_line
from tests.copier.sides import CopyProcess
from tests.crash.lives import Retries
from tests.servers.pidlease import PidleaseServer, not_started

COPY: Final = ".copy"
#: A copier that is silent for this time is replaced.
_SESSION_S: Final = 6
#: Records to be copied before each next step.
_PART: Final = 500
#: What a copier logs when it has copied records.
_COPIED: Final = re.compile(r"^[1-9][\d,]* records? copied", re.M)
_STEP_S: Final = 0.02
_PER_STEP: Final = 30


@dataclass(frozen=True, kw_only=True)
class Verdict(CopyVerdict):
    """The result; `verified`: whether `pidlease copy --verify` finds both sides equal."""

    verified: bool

    @override
    def checks(self) -> Iterator[tuple[str, bool]]:
        yield from super().checks()
        yield "pidlease copy --verify finds a difference", not self.verified

    @override
    def summary(self) -> str:
        return (
            f"demo, part three: source {self.total.sent}, copy {self.total.stored},"
            f" kills {self.kills + self.server_kills} ({self.kills} of the copier),"
            f" duplicates caught {self.duplicates}, {self.ending()}"
        )


def run_copied(console: Console, directory: Path) -> int:
    """Run the third part in an emptied directory; return the exit code."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    log_into(directory / "clients.log")
    with (
        Screen(console, {}) as screen,
        not_started(directory / "source", **SETTINGS) as source,
        not_started(directory / "destination", **SETTINGS) as target,
    ):
        copier = partial(_copier, directory, source, target)
        with Lives(screen, lambda number: copier(number).start()) as copiers:
            duplicates = Retries(target)
            source.start()
            duplicates.new_life()
            target.start()
            make_topics(source.bootstrap)
            filler = LibrdkafkaClient(source.bootstrap, _endless())
            filler.start()
            _kill_everything(copiers, source, duplicates, screen)
            zombie = copiers.replace(
                "the copier is stopped in the middle (SIGSTOP); another one takes over",
                lambda: _take_over(copiers),
            )
            copiers.progress(target, _PART)
            filler.finish(PROGRESS_S)
            if code := copiers.newest.process.stop(PROGRESS_S):
                raise DemoError(f"a copier ended with {code}{copiers.newest.process.tail()}")
        last = copier(len(copiers.all) + 1, "--once")
        if code := last.run(PROGRESS_S):
            raise DemoError(f"the last copier ended with {code}{last.process.tail()}")
        verified = copier(len(copiers.all) + 2, "--verify").run(PROGRESS_S) == 0
        duplicates.look()
        verdict = Verdict(
            sent=filler.ledger.given_count, source=read_topics(source.bootstrap),
            copy=read_topics(target.bootstrap, COPY), kills=copiers.kills, server_kills=2,
            duplicates=int(duplicates.total), verified=verified,
            zombie=last_line(zombie), fenced=zombie.process.returncode == FENCED,
        )  # fmt: skip
        source.stop()
        target.stop()
    return verdict.conclude(console)


def _endless() -> Bursts:
    """Yield all rows again and again."""
    rows, due = repeated(), time.monotonic()
    while True:
        due += _STEP_S
        yield due, list(islice(rows, _PER_STEP))


def _copier(
    directory: Path, source: PidleaseServer, target: PidleaseServer, number: int, *options: str
) -> CopyProcess:
    return CopyProcess(
        directory / f"copier-{number}", source.bootstrap, target, "--group", "demo",
        "--topics", ",".join(TOPICS), "--rename", "{topic}" + COPY,
        "--session-seconds", str(_SESSION_S), *options,
    )  # fmt: skip


def _begin(copiers: Lives[CopyProcess], target: PidleaseServer) -> None:
    copiers.begin()
    copiers.progress(target, _PART)


def _take_over(copiers: Lives[CopyProcess]) -> None:
    """Start the next copier, and wait until it copies itself.

    The destination's count of records would also rise by in-flight batches of the former one. If
    that one woke up within its session, it would go on, and not be fenced.
    """
    process = copiers.begin().process
    process.wait_until(lambda: bool(_COPIED.search(process.log_path.read_text())), PROGRESS_S)


def _kill_everything(
    copiers: Lives[CopyProcess], source: PidleaseServer, duplicates: Retries, screen: Screen
) -> None:
    target = duplicates.server

    def kill_copier() -> None:
        copiers.kill()
        copied = int(target.metric("pidlease_appended_records_total"))
        screen.log(f"kill -9 of the copier, {copied:,} records are copied")

    def kill_server(server: PidleaseServer, name: str) -> None:
        server.kill9()
        screen.log(f"kill -9 of {name}")
        server.start()

    _begin(copiers, target)
    kill_copier()
    _begin(copiers, target)
    duplicates.look()
    duplicates.new_life()
    kill_server(target, "the destination")
    copiers.progress(target, _PART)
    kill_copier()
    kill_server(source, "the source")
    _begin(copiers, target)
    kill_copier()
    _begin(copiers, target)
