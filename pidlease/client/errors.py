"""The errors of a producer's futures, and of its next `send`.

    ProducerError                 the server refuses the record; the text has its reason
    |-- SessionEndedError         never sent; a new producer may send the record again
    |   |-- LeaseEndedError       the server has forgotten the PID
    |   `-- ProducerClosedError   the producer was stopped, or was never started
    |-- DeliveryTimeoutError      never sent, and not in the log; the text has the reason
    |-- OutcomeUnknownError       sent, and may be in the log: do not send the record again blindly
    |-- FencedError               another producer has taken over the PID or the name
    |-- LeaseRefusedError         the server refused a lease; has `status` and `field`
    `-- LeaseUnavailableError     no lease now; of `LeaseClient` alone, a producer waits for one

They are final: the client has already retried what can be retried, until `delivery_timeout_ms`.
Arguments of a wrong type or value raise TypeError and ValueError.
"""


class ProducerError(Exception):
    """A producer failed; if the server refused, the text is the server's."""


class SessionEndedError(ProducerError):
    """The producer accepts no more records; on a future: this record was never sent.

    A new producer may send it again: that makes no duplicate.
    """


class LeaseEndedError(SessionEndedError):
    """The lease has ended: the server has forgotten the PID."""


class ProducerClosedError(SessionEndedError):
    """The producer was stopped, or was never started."""


class OutcomeUnknownError(ProducerError):
    """The record was sent, and may or may not be in the log; it is never sent again.

    With a name, the next producer's `last_sequence_id` shows whether it is.
    """


class DeliveryTimeoutError(ProducerError):
    """The record could not be sent within `delivery_timeout_ms`; it is not in the log."""


class FencedError(ProducerError):
    """Another producer has taken over this PID or name."""


class LeaseRefusedError(ProducerError):
    """The server refused a lease.

    Attributes:
        status: the HTTP status.
        field: the field of the request that is wrong; None: none in particular.
    """

    def __init__(self, text: str, status: int, field: str | None = None) -> None:
        super().__init__(text, status, field)
        self.text = text
        self.status = status
        self.field = field

    def __str__(self) -> str:
        return f"{self.text} (HTTP {self.status})"


class LeaseUnavailableError(ProducerError):
    """The server cannot lease now: it is away, recovers, or is full. Try again."""


def copy_of(error: ProducerError) -> ProducerError:
    """Copy an error for each receiver: its traceback grows each time that it is raised."""
    return type(error)(*error.args)
