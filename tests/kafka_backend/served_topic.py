"""The topic of the coordinator's rows, as tests need it."""

from confluent_kafka.admin import AdminClient

from pidlease.kafka.client.transactions import SERVED_TOPIC
from tests.servers.kafka import KafkaServer
from tests.servers.waiting import WAIT_S, until


def is_served(kafka: KafkaServer) -> bool:
    """Whether the topic exists: a server has served the cluster."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    return SERVED_TOPIC in admin.list_topics(timeout=WAIT_S).topics


def delete_served_topic(kafka: KafkaServer) -> None:
    """Delete the topic, which exists."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([SERVED_TOPIC])[SERVED_TOPIC].result(WAIT_S)
    until(lambda: not is_served(kafka), "deleted")
