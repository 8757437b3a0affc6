"""A figure that was measured."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One figure.

    Attributes:
        name: what was measured.
        value: how much.
        unit: of what.
        target: what is wanted; None: only reported.
        wanted: whether the figure may be at most, or must be at least, the target.
    """

    name: str
    value: float
    unit: str
    target: float | None = None
    wanted: Literal["at most", "at least"] = "at most"

    @property
    def met(self) -> bool | None:
        """Whether it is as wanted; None where nothing is."""
        if self.target is None:
            return None
        if self.wanted == "at most":
            return self.value <= self.target
        return self.value >= self.target
