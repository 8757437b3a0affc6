"""What the third part has found."""

from collections.abc import Iterator
from dataclasses import dataclass

from deploy.demo.compared import Compared


@dataclass(frozen=True)
class Verdict(Compared):
    """The figures.

    Attributes:
        kills: how often anything was killed,
        copier_kills: and of these, a copier.
        duplicates: records that came again, and were there.
        zombie: how the copier that was stopped, and replaced, ended.
        fenced: whether that was as it should be.
        verified: whether `pidlease copy --verify` finds both sides equal.
    """

    kills: int
    copier_kills: int
    duplicates: int
    zombie: str
    fenced: bool
    verified: bool

    def problems(self) -> list[str]:
        """Why it is a failure; empty where it is none."""
        return [text for text, wrong in self._checks() if wrong]

    def _checks(self) -> Iterator[tuple[str, bool]]:
        yield from self.wrong()
        yield "pidlease copy --verify finds a difference", not self.verified
        yield f"the zombie was not fenced: {self.zombie}", not self.fenced
        yield "nothing came twice: the kills proved nothing", not self.duplicates

    def summary(self) -> str:
        """The figures in one line."""
        source, copy, lost, doubled, disordered = self.totals()
        return (
            f"demo, part three: source {source}, copy {copy}, kills {self.kills}"
            f" ({self.copier_kills} of the copier), duplicates caught {self.duplicates}, zombie"
            f" {'fenced' if self.fenced else 'NOT fenced'}, lost {lost}, doubled {doubled},"
            f" out of order {disordered}"
        )
