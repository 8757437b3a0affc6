"""The producer's process: sends the numbers of its partitions, from where its name has come to.

It keeps no file. What it says on its standard output is for whoever watches the demo:

    resumed PARTITION NUMBER PID     where its name goes on
    acknowledged COUNT               so many by now, in this life
    done | fenced
"""

import asyncio
import sys
from typing import Final

from pidlease.client import FencedError, LeasedProducer, Sent

#: Its exit code when a successor has its name.
FENCED_EXIT: Final = 3
_TOLD_EVERY: Final = 20
#: Records that are sent before others get their turn, and how long that is: to be killed halfway.
_AT_ONCE: Final = 10
_PAUSE_S: Final = 0.004
#: What it has under way at most: it goes no further while the proxy is down.
_UNACKNOWLEDGED_MAX: Final = 300


async def produce(bootstrap: str, leases: str, name: str, topic: str, counts: list[int]) -> None:
    """Send each partition's numbers up to its count, each once, whatever happened before."""
    acknowledged = 0
    room = asyncio.Semaphore(_UNACKNOWLEDGED_MAX)

    def count(future: asyncio.Future[Sent]) -> None:
        nonlocal acknowledged
        room.release()
        if not future.cancelled() and future.exception() is None:
            acknowledged += 1
            if acknowledged % _TOLD_EVERY == 0:
                tell(f"acknowledged {acknowledged}")

    async with LeasedProducer(
        bootstrap_servers=bootstrap, leases=leases, name=name, linger_ms=2
    ) as producer:
        following = []
        for partition in range(len(counts)):
            await producer.lease(topic, partition)
            following.append(producer.last_sequence_id(topic, partition) + 1)
            tell(f"resumed {partition} {following[-1]} {producer.pid}")
        while any(number < count for number, count in zip(following, counts, strict=True)):
            for partition, total in enumerate(counts):
                first = following[partition]
                for number in range(first, min(first + _AT_ONCE, total)):
                    await room.acquire()
                    value = b"%d/%d" % (partition, number)
                    future = await producer.send(topic, value, partition=partition)
                    future.add_done_callback(count)
                    following[partition] = number + 1
            await asyncio.sleep(_PAUSE_S)
        await producer.flush()
    tell("done")


def tell(text: str) -> None:
    """Say something to whoever watches."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run it: BOOTSTRAP LEASES NAME TOPIC COUNT..."""
    bootstrap, leases, name, topic, *counts = sys.argv[1:]
    try:
        asyncio.run(produce(bootstrap, leases, name, topic, [int(each) for each in counts]))
    except FencedError as error:
        tell(f"fenced {error}")
        return FENCED_EXIT
    return 0


if __name__ == "__main__":
    sys.exit(main())
