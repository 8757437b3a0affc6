"""Errors of requests to a Kafka cluster.

UpstreamError
|-- UpstreamAwayError       no broker answers; it may be tried again
|   `-- UpstreamLostError   a connection ended before the answer came: what became of it is unknown
|-- UpstreamRefusedError    a broker answers, and does not let us in: an operator has to act
`-- UpstreamNonsenseError   an invalid response
"""


class UpstreamError(Exception):
    """Something between here and Kafka."""


class UpstreamAwayError(UpstreamError):
    """No broker answers. Nothing was sent."""


class UpstreamLostError(UpstreamAwayError):
    """The connection ended after the request went out, and before its answer came."""


class UpstreamRefusedError(UpstreamError):
    """Authentication failed, a certificate is not trusted, a version or a right is missing.

    Attributes:
        code: Kafka's error code, where it gave one; else 0.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class UpstreamNonsenseError(UpstreamError):
    """The response is invalid, or is none to the request."""
