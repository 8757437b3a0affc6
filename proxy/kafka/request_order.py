"""The types of handlers that keep the order of a connection's requests.

Kafka's broker handles one request of a connection at a time. A handler here has the same effect: it
makes the request's change before it returns, and only the response may come later. The exception is
a LeaveGroup of many members: its changes take a while. Only a tool sends one, and waits.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from pidlease.kafka.codec.primitives import RequestHeader
from proxy.kafka.client_connection import Slot

#: A response, or a coroutine that returns it (None: it has filled the slot itself).
Answered = bytes | Coroutine[Any, Any, bytes | None]
Ordered = Callable[[RequestHeader, bytearray, Slot], Answered]
