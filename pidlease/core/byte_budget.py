"""A limit on bytes in memory that requests or records share."""

from typing import Final


class ByteBudget:
    """Counts bytes in use, up to a limit.

    A request of any size is admitted while nothing else is held. So a limit below the largest
    request slows requests down, but never blocks one for ever.

    Parameters:
        limit: how many bytes may be in use.

    Attributes:
        used: the bytes in use; above the limit after `add`, or while one large request is alone.
    """

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit: Final = limit
        self.used: int = 0

    @property
    def exhausted(self) -> bool:
        """Whether nothing more should be admitted."""
        return self.used >= self.limit

    def reserve(self, size: int, *, own: int = 0) -> bool:
        """Reserve bytes if they are free; False: they are not.

        Parameters:
            size: how many bytes.
            own: bytes that the caller holds already. If no other caller holds any, it gets them.
        """
        if self.used > own and self.used + size > self.limit:
            return False
        self.used += size
        return True

    def add(self, size: int) -> None:
        """Count bytes that are in memory already, even above the limit."""
        self.used += size

    def release(self, size: int) -> None:
        """Release bytes."""
        self.used -= size
