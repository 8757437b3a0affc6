"""Trace which functions of ours a request calls, in all threads."""

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pidlease
import proxy

_OURS: Final = tuple(f"{Path(each).resolve()}/" for each in (*pidlease.__path__, *proxy.__path__))
_TESTS: Final = f"{Path(__file__).resolve().parents[1]}/"

#: What runs from time to time, whether or not there is a request.
_PERIODIC: Final = ("pidlease.observability.loop_lag", "pidlease.engine.maintenance")

#: Each call as "module:qualname", in order.
Calls = list[str]


class Tracer:
    """Record each call of a function defined in a file of `pidlease` or `proxy`.

    Resuming a coroutine or generator is not a call. Comprehensions, generator expressions and
    lambdas are parts of the function around them. Calls made by a test itself, or by periodic
    work, are left out.

    Threads that start while the tracer is entered are traced. The recording thread is traced
    between the marks only.
    """

    def __init__(self) -> None:
        self._calls: Calls | None = None

    def __enter__(self) -> "Tracer":
        threading.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        threading.setprofile(None)
        self._calls = None

    @contextmanager
    def recording(self) -> Iterator[Calls]:
        """Record what is called between entry and exit, the two marks."""
        calls = self._calls = Calls()
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            yield calls
        finally:
            sys.setprofile(before)
            self._calls = None

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        calls, code = self._calls, frame.f_code
        if calls is None or event != "call" or not code.co_filename.startswith(_OURS):
            return
        if code.co_name.startswith("<") or not _begins(frame):
            return
        module, caller = frame.f_globals["__name__"], frame.f_back
        if caller is not None and caller.f_code.co_filename.startswith(_TESTS):
            return
        called_by = "" if caller is None else caller.f_globals["__name__"]
        if module not in _PERIODIC and called_by not in _PERIODIC:
            calls.append(f"{module}:{code.co_qualname}")


def _begins(frame: FrameType) -> bool:
    """Whether the frame starts, and is not resumed: the operand of RESUME is 0 then."""
    return frame.f_code.co_code[frame.f_lasti + 1] & 3 == 0


def modules_of(calls: Calls) -> Counter[str]:
    """The calls of each module; modules in order of first entry."""
    return Counter(each.partition(":")[0] for each in calls)
