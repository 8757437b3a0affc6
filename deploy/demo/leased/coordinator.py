"""Where the PIDs of the demo come from: a real ZooKeeper where Java is, else a file."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from deploy.demo.screen import Screen
from tests.servers.zookeeper import ZooKeeperServer, unavailable_reason

_CHROOT = "pidlease"


@asynccontextmanager
async def coordinator(directory: Path, screen: Screen) -> AsyncIterator[tuple[str, str]]:
    """A name for it, and ZooKeeper's address (empty: there is none); told on the screen.

    Parameters:
        directory: for its data.
        screen: where it is told which one it is.
    """
    reason = unavailable_reason()
    server = None
    if reason is None:
        try:
            server = await _started(directory)
        except RuntimeError as error:  # its jars cannot be fetched, or it does not start
            reason = str(error).partition("\n")[0].rstrip(":")
    if server is None:
        screen.tell(f"PIDs come from the file sequence: no ZooKeeper here ({reason})")
        yield "a file", ""
        return
    try:
        screen.tell(f"PIDs come from a real ZooKeeper at {server.hosts}/{_CHROOT}")
        yield "ZooKeeper", f"{server.hosts}/{_CHROOT}"
    finally:
        await asyncio.to_thread(server.kill9)


async def _started(directory: Path) -> ZooKeeperServer:
    """A ZooKeeper.

    Raises:
        RuntimeError: it cannot be had.
    """
    await asyncio.to_thread(directory.mkdir, parents=True)
    server = ZooKeeperServer(directory)
    await asyncio.to_thread(server.start)
    return server
