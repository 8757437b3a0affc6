"""A bound on bytes in memory, which requests or records share."""

from typing import Final


class ByteBudget:
    """Bytes in use, out of a limit.

    A request is admitted whatever its size if nothing else is held: a limit below the largest
    request slows down, but never blocks for ever.

    Parameters:
        limit: in bytes.

    Attributes:
        used: bytes in use now; above the limit after `add`, or a request that was alone.
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
        """Take bytes if they are free.

        Parameters:
            size: in bytes.
            own: bytes that the caller holds already; only those of others count against it.
        """
        if self.used > own and self.used + size > self.limit:
            return False
        self.used += size
        return True

    def add(self, size: int) -> None:
        """Take bytes that are in memory already."""
        self.used += size

    def release(self, size: int) -> None:
        """Give bytes back."""
        self.used -= size
