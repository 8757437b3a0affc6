"""Requests that take effect in the order in which a connection brings them.

Kafka's broker works on one request of a connection at a time. What is answered at once, or begins
at once and is only waited for, keeps that order, too.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from pidlease.kafka.codec.primitives import RequestHeader
from proxy.kafka.client_connection import Slot

#: An answer, or one that is still to come (None: it fills its slot itself); what the request
#: changes has begun.
Answered = bytes | Coroutine[Any, Any, bytes | None]
#: Takes header, frame, and the place of the answer.
Ordered = Callable[[RequestHeader, bytearray, Slot], Answered]
