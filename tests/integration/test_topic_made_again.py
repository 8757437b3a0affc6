"""A topic is deleted, and made again, under a producer that runs on."""

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

TIMEOUT_S = WAIT_S


@pytest.fixture
def sent() -> tuple[list[int], list[str], Callable[..., None]]:
    """Offsets and errors, and the callback that notes them."""
    offsets: list[int] = []
    errors: list[str] = []

    def note(error: object, message: object) -> None:
        if error is not None:
            errors.append(str(error))
        else:
            offsets.append(message.offset())  # type: ignore[attr-defined]

    return offsets, errors, note


@pytest.mark.parametrize("explicit", [True, False])
def test_an_idempotent_producer_goes_on(
    tmp_path: Path, sent: tuple[list[int], list[str], Callable[..., None]], *, explicit: bool
) -> None:
    """Its sequence goes on where it was; librdkafka takes a gap for fatal."""
    offsets, errors, note = sent
    with PidleaseServer(tmp_path, settings={"fsync": "never"}) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        producer = Producer(
            {"bootstrap.servers": server.bootstrap, "enable.idempotence": True, "linger.ms": 0}
        )
        for number in range(10):
            producer.produce("t", b"%d" % number, on_delivery=note)
            producer.flush(TIMEOUT_S)
        assert offsets == list(range(10))
        admin.delete_topics(["t"])["t"].result(TIMEOUT_S)
        if explicit:
            admin.create_topics([NewTopic("t", 1)])["t"].result(TIMEOUT_S)
        offsets.clear()
        for number in range(10):
            producer.produce("t", b"%d" % number, on_delivery=note)
        assert producer.flush(TIMEOUT_S) == 0
        assert errors == []
        assert offsets == list(range(10))
