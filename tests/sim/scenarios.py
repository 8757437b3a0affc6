"""What happens in a world: by seed, and at every step of a short life."""

import asyncio
import errno
import gc
from collections import Counter
from collections.abc import Awaitable, Callable

from pidlease.storage.errors import LogError
from tests.sim.files import SimulatedCrash
from tests.sim.world import TOPIC, Life, Setup, Violation, World

LIVES_MAX = 14
#: Rounds after which a client that still has no answer is taken to hang.
ROUNDS_MAX = 3000


def run_seed(setup: Setup) -> Counter[str]:
    """Live many lives with crashes, then one in peace; and check everything.

    Raises:
        Violation: a guarantee does not hold; the message has the seed.
    """
    world = World(setup)
    try:
        for _ in range(world.random.randint(3, LIVES_MAX)):
            torn = world.random.random() < 0.5
            world.files.crash_at(world.random.choice([40, 120, 300]) + 1, torn=torn)
            steps = world.random.randint(1, world.random.choice([5, 40, 300]))
            if world.random.random() < 0.8:
                world.files.crash_at(world.random.randint(1, steps), torn=torn)
            world.live(busy)
            world.die(power=setup.power_cuts and world.random.random() < 0.5)
            world.check_clients()
        finish(world)
    except Exception as error:
        gc.collect()  # of thousands of crashes, before pytest makes its report (CPython 3.11)
        raise Violation(f"{error!r} (replay: seed {setup.seed})") from error
    return total(world)


def finish(world: World) -> None:
    """A life without faults: every client gets all its answers, and everything adds up."""
    world.live(serve_all)
    if not world.done:
        raise Violation("the last life ended before the clients were done")
    world.check_archive()
    world.die(power=world.setup.power_cuts)
    world.live()
    world.check_archive()


def total(world: World) -> Counter[str]:
    """What happened, over all lives."""
    counts = Counter(world.counts)
    for stream in world.streams:
        for status, count in stream.statuses.items():
            counts[str(status.value)] += count
    return counts


# ---------------------------------------------------------------------- what is done in a life


async def busy(life: Life) -> None:
    """Clients send, snapshots and retention come and go, disks fail, connections break."""
    world, random = life.world, life.random
    upkeep: set[asyncio.Task[None]] = set()
    for _ in range(random.choice([30, 100, 400])):
        if world.files.crashed:
            raise SimulatedCrash
        send(life)
        chance = random.random()
        if chance < 0.02:
            upkeep.add(asyncio.create_task(quietly(snapshot, life)))
        elif chance < 0.04:
            upkeep.add(asyncio.create_task(quietly(consume_and_retain, life)))
        elif chance < 0.06:
            random.choice(world.streams).connect()
        elif chance < 0.08:
            break_disk(life)
        elif chance < 0.09:
            world.now_ms += random.randint(0, 1000)
        await breathe(life)
        world.check_clients()
    for task in upkeep:
        task.cancel()
    if random.random() < 0.3 and not world.files.crashed:
        await stop(life)


async def serve_all(life: Life) -> None:
    """Serve until all clients are done, then stop properly."""
    for _ in range(ROUNDS_MAX):
        send(life)
        await breathe(life)
        life.world.check_clients()
        if life.world.done:
            break
    else:
        raise Violation("a client waits for ever")
    await life.consume()
    await stop(life)


def send(life: Life) -> None:
    """Let some clients send, and some of what they sent arrive."""
    random = life.random
    for stream in life.world.streams:
        if stream.pid < 0:
            stream.pid = life.lease()
        partition = life.engine.partition(TOPIC, stream.partition)
        if partition is not None and stream.pid >= 0:
            for _ in range(random.choice([0, 1, 1, 2, 5])):
                stream.send(random)
            for _ in range(random.choice([0, 1, 1, 2, 5])):
                stream.deliver(partition, random)


async def breathe(life: Life) -> None:
    """Let the engine work for a moment."""
    if life.world.setup.threads:
        await asyncio.sleep(0.0005)
        return
    for _ in range(life.random.choice([1, 1, 2, 6])):
        await asyncio.sleep(0)


def break_disk(life: Life) -> None:
    """Have an operation fail soon."""
    files, random = life.world.files, life.random
    operation = random.choice(["write", "fsync", "open", "fsync_folder", "rename", "remove"])
    pattern = random.choice(["*.log", "*.log", "*index", "*snapshot*", "*aside*", "*/blocks", "*"])
    files.fail_next(operation, pattern, random.choice([errno.EIO, errno.ENOSPC]))
    life.world.counts["disk faults"] += 1


async def quietly(work: Callable[[Life], Awaitable[None]], life: Life) -> None:
    """What the keeper does about errors: nothing but to try again later."""
    try:
        await work(life)
    except (OSError, LogError):
        life.world.counts["upkeep failed"] += 1


async def snapshot(life: Life) -> None:
    """Take a snapshot."""
    await life.engine.maintenance.snapshot()
    life.world.counts["snapshots"] += 1


async def consume_and_retain(life: Life) -> None:
    """Show everything to consumers, then let go of what is old."""
    await life.consume()
    before = [partition.log.start_offset for partition in life.partitions()]
    if all(p.readable_end == len(a) for p, a in zip(life.partitions(), life.world.archive,
                                                     strict=True)):  # fmt: skip
        await life.engine.maintenance.retain()
    after = [partition.log.start_offset for partition in life.partitions()]
    life.world.counts["partitions retained"] += sum(
        one != other for one, other in zip(before, after, strict=True)
    )


async def stop(life: Life) -> None:
    """Stop as on SIGTERM: the doors are closed, what is in flight is waited for."""
    for stream in life.world.streams:
        stream.connect(server_died=True)
    for _ in range(ROUNDS_MAX):
        if not any(partition.in_flight for partition in life.partitions()):
            break
        if life.world.files.crashed:
            raise SimulatedCrash
        await breathe(life)
    else:
        raise Violation("what is in flight never lands")
    await quietly(stop_engine, life)


async def stop_engine(life: Life) -> None:
    await life.engine.stop()
    life.world.counts["proper stops"] += 1


# ---------------------------------------------------------------------- every step


async def short(life: Life) -> None:
    """A short life in which everything happens once: batches, rolls, snapshots, retention."""
    for turn in range(2):
        for _ in range(5):
            if life.world.files.crashed:
                raise SimulatedCrash
            send(life)
            await breathe(life)
        if turn == 0:
            await snapshot(life)
            await consume_and_retain(life)
    await stop(life)


def count_short_steps(seed: int) -> int:
    """How many changes a short life makes."""
    world = World(short_setup(seed))
    world.live(short)
    return len(world.files.trace)


def short_setup(seed: int) -> Setup:
    """A world for a short life."""
    return Setup(seed, streams=2, partitions=2, batches=8)


def run_step(setup: Setup, step: int, *, torn: bool, power: int | None) -> Counter[str]:
    """A short life that dies at one step, by kill -9 or by one of many power cuts; then peace.

    Raises:
        Violation: a guarantee does not hold.
    """
    world = World(setup)
    how = f"step {step}, torn {torn}, power cut {power}, seed {setup.seed}"
    world.files.crash_at(step, torn=torn)
    try:
        world.live(short)
        world.check_crashed()
        world.die(power=power is not None, seed=power)
        world.check_clients()
        finish(world)
    except Exception as error:
        gc.collect()
        raise Violation(f"{error!r} (replay: {how})") from error
    return total(world)
