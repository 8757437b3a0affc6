"""The producer's process: sends numbers to its partitions, from where its name resumes.

It keeps no file. The demo reads its standard output:

    resumed PARTITION NUMBER PID     the first number that it sends
    acknowledged COUNT               by this process, so far
    done | fenced
"""

import asyncio
import sys
from typing import Final

from pidlease.client import FencedError, LeasedProducer, Sent

#: The exit code when a successor has taken over the name.
FENCED_EXIT: Final = 3
_SHOWN_EVERY: Final = 20
#: Records between two pauses; the pauses make sending slow enough to be killed halfway.
_AT_ONCE: Final = 10
_PAUSE_S: Final = 0.004
#: The most unacknowledged records: sending stops while the proxy is down.
_UNACKNOWLEDGED_MAX: Final = 300


async def produce(bootstrap: str, leases: str, name: str, topic: str, counts: list[int]) -> None:
    """Send each partition's numbers up to its count, each once, from where the name resumes."""
    acknowledged = 0
    room = asyncio.Semaphore(_UNACKNOWLEDGED_MAX)

    def count(future: asyncio.Future[Sent]) -> None:
        nonlocal acknowledged
        room.release()
        if not future.cancelled() and future.exception() is None:
            acknowledged += 1
            if acknowledged % _SHOWN_EVERY == 0:
                show(f"acknowledged {acknowledged}")

    async def send(partition: int, number: int) -> None:
        await room.acquire()
        value = b"%d/%d" % (partition, number)
        (await producer.send(topic, value, partition=partition)).add_done_callback(count)

    async with LeasedProducer(
        bootstrap_servers=bootstrap, leases=leases, name=name, linger_ms=2
    ) as producer:
        left = []
        for partition, total in enumerate(counts):
            await producer.lease(topic, partition)
            first = producer.last_sequence_id(topic, partition) + 1
            left.append(range(first, total))
            show(f"resumed {partition} {first} {producer.pid}")
        while any(left):
            for partition, numbers in enumerate(left):
                for number in numbers[:_AT_ONCE]:
                    await send(partition, number)
            left = [numbers[_AT_ONCE:] for numbers in left]
            await asyncio.sleep(_PAUSE_S)
        await producer.flush()
    show("done")


def show(line: str) -> None:
    """Write a line that the demo reads."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the producer; arguments: BOOTSTRAP LEASES NAME TOPIC COUNT..."""
    bootstrap, leases, name, topic, *counts = sys.argv[1:]
    try:
        asyncio.run(produce(bootstrap, leases, name, topic, [int(each) for each in counts]))
    except FencedError as error:
        show(f"fenced {error}")
        return FENCED_EXIT
    return 0


if __name__ == "__main__":
    sys.exit(main())
