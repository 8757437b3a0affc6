"""librdkafka, by confluent-kafka."""

from __future__ import annotations

import sys

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from tests.clients.programs import Options, identity, librdkafka_login, parse, value

_BACKLOG_MAX = 10_000


def _produce(options: Options) -> None:
    errors: list[str] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        content, partition, offset = message.value(), message.partition(), message.offset()
        assert isinstance(content, bytes)
        number = identity(content).partition(".")[2]
        if error is not None:
            errors.append(f"record {number}: {error}")
        else:
            print("acked", number, partition, offset)

    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap,
            **librdkafka_login(),
            "enable.idempotence": True,
            "compression.type": options.codec,
            "batch.num.messages": 100,  # many batches on their way when the server dies
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
            # What it retries by itself is told here as well.
            "error_cb": lambda error: errors.append(str(error)) if error.fatal() else None,
        }
    )
    for number in range(options.count):
        while len(producer) >= _BACKLOG_MAX:
            producer.poll(0.1)
        producer.produce(options.topic, value(options.stream, number), on_delivery=on_delivery)
        producer.poll(0)
    while len(producer) and not errors:
        producer.poll(0.1)
    if errors:
        raise SystemExit("\n".join(errors[:5]))


def _consume(options: Options) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            **librdkafka_login(),
            "group.id": options.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([options.topic])
    left = options.count
    while left > 0:
        for message in consumer.consume(1000, timeout=1):
            if message.error():
                raise KafkaException(message.error())
            content = message.value()
            assert isinstance(content, bytes)
            print("read", identity(content), message.partition(), message.offset())
            left -= 1
    consumer.commit(asynchronous=False)
    consumer.close()


if __name__ == "__main__":
    print("client", confluent_kafka.__version__)
    _options = parse()
    {"produce": _produce, "consume": _consume}[_options.action](_options)
    print("done")
    sys.stdout.flush()
