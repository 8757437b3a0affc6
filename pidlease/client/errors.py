"""What a producer's future, or its next `send`, may end with.

Nothing here is tried again by the client: whatever could be, was, until `delivery_timeout_ms`.
"""


class ProducerError(Exception):
    """A producer failed; the text is the server's where the server refused."""


class SessionEndedError(ProducerError):
    """The producer takes no more records; on a future: this record was never sent.

    A new producer may send it again without fear of a double.
    """


class LeaseEndedError(SessionEndedError):
    """The server knows the PID no more."""


class ProducerClosedError(SessionEndedError):
    """The producer was stopped, or was never started."""


class OutcomeUnknownError(ProducerError):
    """The record was sent, and may or may not stand in the log; it is never sent again.

    With a name, the next producer's `last_sequence_id` tells which of both it is.
    """


class DeliveryTimeoutError(ProducerError):
    """The record could not be sent within `delivery_timeout_ms`; it does not stand in the log."""


class FencedError(ProducerError):
    """Another producer goes on under this PID or name. Final."""


class LeaseRefusedError(ProducerError):
    """The server grants no such lease.

    Attributes:
        status: the HTTP status.
        field: which part of the request it is about; None: none in particular.
    """

    def __init__(self, text: str, status: int, field: str | None = None) -> None:
        super().__init__(text, status, field)
        self.text = text
        self.status = status
        self.field = field

    def __str__(self) -> str:
        return f"{self.text} (HTTP {self.status})"


class LeaseUnavailableError(ProducerError):
    """No lease can be had now: the server is away, recovers, or is full. Try again."""


def copy_of(error: ProducerError) -> ProducerError:
    """One for each who gets it: its traceback would grow each time that it is raised."""
    return type(error)(*error.args)
