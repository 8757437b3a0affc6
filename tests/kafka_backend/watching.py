"""What goes by between clients and the server: requests, and answers that name Kafka's brokers."""

import struct
from collections.abc import Iterable
from random import Random
from typing import Final

from tests.crash.relay import Relay, Weather
from tests.servers.kafka import KafkaServer

_HEAD: Final = struct.Struct(">hh")


class WatchingRelay(Relay):
    """Loses nothing, and looks at everything.

    Parameters:
        target_port: of the server.
        hidden: addresses, HOST:PORT, that no answer may name.

    Attributes:
        requests: keys and versions of the requests that clients have sent.
        answered: how many answers there were,
        naming: and those that named one of the addresses.
    """

    def __init__(self, target_port: int, hidden: Iterable[str]) -> None:
        super().__init__(target_port, Weather(Random(0)))
        self.requests: Final[set[tuple[int, int]]] = set()
        self.answered = 0
        self.naming: Final[list[bytes]] = []
        self._hidden: Final = [form for address in hidden for form in _forms(address)]

    def asks(self, request: bytes) -> None:
        """See `Relay`."""
        self.requests.add(_HEAD.unpack_from(request))

    def answers(self, answer: bytes) -> None:
        """See `Relay`."""
        self.answered += 1
        if any(form in answer for form in self._hidden):
            self.naming.append(answer)

    @property
    def keys(self) -> set[int]:
        """Of the requests."""
        return {key for key, _ in self.requests}


def addresses(kafka: KafkaServer) -> list[str]:
    """Those of a broker, and of the controller in it."""
    return [kafka.bootstrap, kafka.voter.partition("@")[2]]


def _forms(address: str) -> Iterable[bytes]:
    """As text, and as the protocol writes a host and a port behind it."""
    host, port = address.rsplit(":", 1)
    return address.encode(), host.encode() + int(port).to_bytes(4, "big")
