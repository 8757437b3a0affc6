"""Creates topics through a server, as a patient operator does."""

import time
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.servers.waiting import WAIT_S

_NO_RESPONSE: Final = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT)


def create_topic(bootstrap: str, topic: NewTopic) -> None:
    """Create a topic; if there is no response, once more.

    Kafka's controller waits for the disk: on a busy one longer than a server waits for Kafka.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    latest = time.monotonic() + WAIT_S
    tried = False
    while True:
        try:
            admin.create_topics([topic])[topic.topic].result(WAIT_S)
        except KafkaException as error:
            code = error.args[0].code()
            if tried and code == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            if code not in _NO_RESPONSE or time.monotonic() > latest:
                raise
            tried = True
        else:
            return
