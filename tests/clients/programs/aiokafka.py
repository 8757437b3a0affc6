"""aiokafka, and with it plain asyncio."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from tests.clients.programs import Options, aiokafka_login, identity, parse, value

_OPEN_MAX = 2000


async def _produce(options: Options) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=options.bootstrap,
        **aiokafka_login(),
        enable_idempotence=True,
        acks="all",
        compression_type=None if options.codec == "none" else options.codec,
        max_batch_size=10_000,  # many batches on their way when the server dies
    )
    await producer.start()
    room = asyncio.Semaphore(_OPEN_MAX)
    errors: list[str] = []

    def report(number: int, done: asyncio.Future[Any]) -> None:
        room.release()
        if (error := done.exception()) is not None:
            errors.append(f"record {number}: {error}")
        else:
            print("acked", number, done.result().partition, done.result().offset)

    for number in range(options.count):
        await room.acquire()
        future = await producer.send(options.topic, value(options.stream, number))
        future.add_done_callback(lambda done, number=number: report(number, done))
    await producer.flush()
    await producer.stop()
    if errors:
        raise SystemExit("\n".join(errors[:5]))


async def _consume(options: Options) -> None:
    consumer = AIOKafkaConsumer(
        options.topic,
        bootstrap_servers=options.bootstrap,
        **aiokafka_login(),
        group_id=options.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    left = options.count
    while left > 0:
        for partition, records in (await consumer.getmany(timeout_ms=1000)).items():
            for record in records:
                print("read", identity(record.value), partition.partition, record.offset)
            left -= len(records)
    await consumer.commit()
    await consumer.stop()


if __name__ == "__main__":
    print("client", version("aiokafka"))
    _options = parse()
    asyncio.run({"produce": _produce, "consume": _consume}[_options.action](_options))
    print("done")
