"""A client under way: a child process whose output grows in a file."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

_ROOT = Path(__file__).resolve().parents[2]
_POLL_S = 0.01


@dataclass
class Child:
    """A program that was started; ended by its pid, at the latest with the `with` block."""

    name: str
    out: Path
    process: subprocess.Popen[bytes]
    _seen_bytes: int = field(default=0, init=False)
    _seen_lines: int = field(default=0, init=False)

    @classmethod
    def start(
        cls, name: str, command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
    ) -> Self:
        """Start it; what it prints goes into `folder`, under its name."""
        folder.mkdir(parents=True, exist_ok=True)
        out = folder / f"{name}.out"
        with out.open("wb") as stdout, (folder / f"{name}.err").open("wb") as stderr:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=_ROOT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        return cls(name, out, process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def lines(self) -> list[str]:
        """All whole lines so far."""
        text = self.out.read_bytes().decode()
        return text[: text.rfind("\n") + 1].splitlines()

    def line_count(self) -> int:
        """How many there are so far; reads only what is new."""
        with self.out.open("rb") as file:
            file.seek(self._seen_bytes)
            new = file.read()
        self._seen_bytes += len(new)
        self._seen_lines += new.count(b"\n")
        return self._seen_lines

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None

    def told(self) -> str:
        """The end of what it said on standard error, for a message."""
        return self.out.with_suffix(".err").read_text(errors="replace")[-3000:]

    def check_running(self) -> None:
        """Raise if it ended with an error."""
        code = self.process.poll()
        assert code in (None, 0), f"{self.name} ended with {code}:\n{self.told()}"

    def finish(self, timeout_s: float) -> list[str]:
        """Wait for a good end, and return what it printed."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.name} hangs after {self.line_count()} lines:\n{self.told()}"
            ) from None
        self.check_running()
        return self.lines()


def wait_for(
    happened: Callable[[], bool], what: str, timeout_s: float, children: Iterable[Child]
) -> None:
    """Wait until something happened; raise if a child fails meanwhile."""
    deadline = time.monotonic() + timeout_s
    while not happened():
        for child in children:
            child.check_running()
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(_POLL_S)
