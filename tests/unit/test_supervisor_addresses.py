"""A supervisor waits until its addresses are free; another error ends it at once."""

import socket
import threading

import pytest

from pidlease.testing.loopback_ports import LOOPBACK
from proxy.workers.supervisor import wait_until_free
from tests.servers.waiting import WAIT_S


@pytest.fixture
def listener() -> socket.socket:
    listener = socket.socket()
    listener.bind((LOOPBACK, 0))
    listener.listen()
    return listener


def test_a_listener_that_ends_is_waited_for(listener: socket.socket) -> None:
    address = f"{LOOPBACK}:{listener.getsockname()[1]}"
    waiting = threading.Thread(target=wait_until_free, args=(address, "--kafka-listen", WAIT_S))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    listener.close()
    waiting.join(WAIT_S)
    assert not waiting.is_alive()


def test_a_listener_that_stays_is_an_error(listener: socket.socket) -> None:
    with listener:
        address = f"{LOOPBACK}:{listener.getsockname()[1]}"
        with pytest.raises(OSError, match=f"--kafka-listen {address}.*in use"):
            wait_until_free(address, "--kafka-listen", 0.1)


def test_another_error_is_not_waited_for() -> None:
    with pytest.raises(OSError, match=r"192\.0\.2\.1"):
        wait_until_free("192.0.2.1:9092", "--kafka-listen", WAIT_S)
