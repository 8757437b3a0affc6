"""Errors of requests to a Kafka cluster, and of the options of its clients.

UpstreamError
|-- UpstreamAwayError       no broker responds; try again
|   `-- UpstreamLostError   a connection ended before the response: the outcome is unknown
|-- UpstreamRefusedError    a broker refuses this client: an operator has to act
|   |-- UpstreamLoginError  TLS or the login of the client does not fit the broker
|   `-- NotPidleaseError    it is a broker of Kafka, where only a server of pidlease will do
`-- UpstreamNonsenseError   an invalid response
OptionError (a ValueError)    an option of Kafka's Java client cannot be used
"""


class UpstreamError(Exception):
    """A request to Kafka failed."""


class UpstreamAwayError(UpstreamError):
    """No broker responds. Nothing was sent."""


class UpstreamLostError(UpstreamAwayError):
    """The connection ended after the request was sent, and before its response."""


class UpstreamRefusedError(UpstreamError):
    """Authentication failed, a certificate is not trusted, a version or a right is missing.

    Attributes:
        code: Kafka's error code; 0: there is none.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class UpstreamLoginError(UpstreamRefusedError):
    """TLS or the login of the client does not fit the broker; trying again does not help."""


class NotPidleaseError(UpstreamRefusedError):
    """A broker is no server of pidlease; trying again does not help."""


class UpstreamNonsenseError(UpstreamError):
    """A response is invalid, or does not belong to its request."""


class OptionError(ValueError):
    """An option is unknown, invalid, or contradicts another one."""
