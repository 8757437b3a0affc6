"""Topics are made as any user would."""

from collections.abc import Mapping
from typing import Final

# Its stubs forget to export NewTopic.
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

#: For librdkafka, as syslog counts: it would write about its own housekeeping to the screen.
_ERRORS_ONLY: Final = 3
_CREATE_S: Final = 15.0


def create_topics(bootstrap: str, partitions: Mapping[str, int]) -> None:
    """Make topics. Blocks.

    Parameters:
        bootstrap: HOST:PORT of the server.
        partitions: how many each has.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": _ERRORS_ONLY})
    wanted = [NewTopic(topic, num_partitions=count) for topic, count in partitions.items()]
    for created in admin.create_topics(wanted, request_timeout=_CREATE_S).values():
        created.result()
