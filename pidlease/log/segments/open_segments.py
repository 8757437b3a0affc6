"""Keeps segments open that are being read, so that what is in the page cache is read at once.

A thread opens a segment for its first read, and leaves it here. From then on the event loop reads
from it what is in the page cache, and removes it when it was not read for some seconds: an open
file keeps the disk space of a segment that was removed.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import structlog

from pidlease.log.segments.segment import SegmentFiles
from pidlease.storage.files import OpenFile
from pidlease.storage.io_pool import IoPool

#: A segment that is not read for so long is closed, at the latest after twice the time.
IDLE_SECONDS: Final = 5.0

_log = structlog.get_logger(__name__)


class OpenSegments:
    """The open segments of all partitions. Only the event loop uses and removes them.

    Parameters:
        pool: the threads that close files: the last close of a removed file may take long.
        limit: how many may be open; threads that open some at the same time may exceed it by one
            each.
    """

    def __init__(self, pool: IoPool, limit: int) -> None:
        self._pool = pool
        self._limit: Final = limit
        #: Threads add to it, by single operations.
        self._files: dict[SegmentFiles, OpenFile] = {}
        #: The segments that were read since the last look for idle ones.
        self._read: set[SegmentFiles] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._files)

    def get(self, segment: SegmentFiles) -> OpenFile | None:
        """Return an open segment, which is then read; None: it is not open."""
        file = None if self._closed else self._files.get(segment)
        if file is not None:
            self._read.add(segment)
        return file

    def keep(self, segment: SegmentFiles, file: OpenFile) -> bool:
        """Take a segment that a thread has opened, and has read; False: the thread closes it.

        At the limit no further segment is kept: readers of many more segments in turn would close
        and open one at each read, instead of finding some of them open.
        """
        if self._closed or len(self._files) >= self._limit:
            return False
        if self._files.setdefault(segment, file) is not file:
            return False
        self._read.add(segment)
        self._pool.call_from_thread(self._watch)
        return True

    def close(self) -> None:
        """Close all segments, and keep no others. Blocks."""
        self._closed = True
        while self._files:
            with suppress(KeyError):  # the event loop was faster
                _close([self._files.popitem()[1]])

    def _watch(self) -> None:
        if self._timer is None and self._files:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(IDLE_SECONDS, self._close_idle)

    def _close_idle(self) -> None:
        self._timer = None
        idle = [segment for segment in list(self._files) if segment not in self._read]
        self._read.clear()
        if idle:
            files = [file for each in idle if (file := self._files.pop(each, None)) is not None]
            self._pool.submit(partial(_close, files), _closed)
        self._watch()


def _close(files: Sequence[OpenFile]) -> None:
    for file in files:
        try:
            file.close()
        except OSError as error:
            _log.error("a segment could not be closed", error=str(error))


def _closed(result: object) -> None:
    if isinstance(result, BaseException):
        _log.error("segments could not be closed", error=repr(result))
