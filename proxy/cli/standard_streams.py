"""Errors of stdin and stdout as one line: a full disk, a closed stream, a reader that is gone."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from typing_extensions import Buffer, override

from proxy.cli.console import WRONG, refused


class OutputError(Exception):
    """Stdout accepts no more; not an OSError, which commands have for their own files."""


class _Output(io.RawIOBase):
    """Writes to a descriptor; after an error, to nowhere.

    Parameters:
        descriptor: None: stdout is closed, and another file may have its descriptor.

    Attributes:
        problem: why stdout accepts no more; empty: it does, or its reader is gone.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor: Final = descriptor
        self._has_failed = False
        self.problem = ""

    @override
    def writable(self) -> bool:
        return True

    @override
    def isatty(self) -> bool:
        return self._descriptor is not None and os.isatty(self._descriptor)

    @override
    def fileno(self) -> int:
        if self._descriptor is None:
            raise io.UnsupportedOperation("stdout is closed")
        return self._descriptor

    @override
    def write(self, data: Buffer, /) -> int:
        if self._has_failed:
            return memoryview(data).nbytes
        if self._descriptor is None:
            raise self._failed("it is closed")
        try:
            return os.write(self._descriptor, data)
        except BrokenPipeError:
            self._has_failed = True
            raise  # the reader has seen enough, like `head`
        except OSError as error:
            raise self._failed(error.strerror or str(error)) from None

    def _failed(self, problem: str) -> OutputError:
        self._has_failed, self.problem = True, problem
        return OutputError(problem)


@contextmanager
def one_line_for_output_errors() -> Iterator[None]:
    """End the command with one line on stderr if stdout accepts no more; without, if it is a pipe.

    The last bytes are written at the end of the block, not at the exit, where Python would print a
    traceback.
    """
    before = sys.stdout
    raw = _Output(None if before is None else before.fileno())
    stream = sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(before, "encoding", "utf-8"),
        errors=getattr(before, "errors", "strict"),
        line_buffering=raw.isatty(),
    )
    try:
        try:
            yield
        finally:
            stream.flush()
    except OutputError:
        pass  # `raw` has noted it
    except BrokenPipeError:
        raise SystemExit(WRONG) from None
    finally:
        if raw.problem:
            raise SystemExit(refused(f"stdout cannot be written: {raw.problem}").exit_code)


def stdin() -> TextIO:
    """Return stdin; end the command if it is closed."""
    if sys.stdin is None:
        raise refused("stdin is closed: give the input by a pipe, or by < FILE")
    return sys.stdin
