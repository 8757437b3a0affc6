"""Why requests for records are refused, before the log is asked.

RefusedError
|-- WhoError          what the request says of its producer makes no sense
|-- WrongTypeError    a body of a kind that is not taken
|-- BodyTooLongError  a body, or the batch made of it, is longer than a batch may be
|-- BodyTooSlowError  a body did not go on coming
`-- NoRoomError       what is in flight takes all the memory there is for it
"""

from typing import ClassVar


class RefusedError(Exception):
    """A request that is refused.

    Attributes:
        status: the HTTP status.
        field: the part of the request that it is about; None: about no part.
    """

    status: ClassVar[int]
    field: str | None = None


class WhoError(RefusedError):
    """What a request says of its producer makes no sense."""

    status = 400

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")
        self.field = field


class WrongTypeError(RefusedError):
    """A body of a kind that is not taken."""

    status = 415

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")
        self.field = field


class BodyTooLongError(RefusedError):
    """A body, or the batch made of it, is longer than a batch may be."""

    status = 413
    field = "body"


class BodyTooSlowError(RefusedError):
    """A body did not go on coming."""

    status = 408
    field = "body"


class NoRoomError(RefusedError):
    """What is in flight takes all the memory there is for it."""

    status = 503
