"""What the demo has found."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deploy.demo.compared import Compared


@dataclass(frozen=True)
class Verdict(Compared):
    """The figures.

    Attributes:
        kills: how often the application was killed,
        server_kills: and the server.
        duplicates: rows that came again, and were there.
        zombie: how the application that was stopped, and replaced, ended.
        fenced: whether that was as it should be.
        audited: the exit code of the audit.
        report: what it has written.
    """

    kills: int
    server_kills: int
    duplicates: int
    zombie: str
    fenced: bool
    audited: int
    report: Path

    def problems(self) -> list[str]:
        """Why it is a failure; empty where it is none."""
        return [text for text, wrong in self._checks() if wrong]

    def _checks(self) -> Iterator[tuple[str, bool]]:
        yield from self.wrong()
        yield f"the zombie was not fenced: {self.zombie}", not self.fenced
        yield "nothing came twice: the kills proved nothing", not self.duplicates
        yield f"the audit ended with {self.audited}", self.audited != 0
        yield f"the audit has written no {self.report}", not self.report.is_file()

    def summary(self) -> str:
        """The figures in one line."""
        source, copy, lost, doubled, disordered = self.totals()
        return (
            f"demo, Spark: source {source}, copy {copy}, kills {self.kills} of the application and"
            f" {self.server_kills} of the server, duplicates caught {self.duplicates}, zombie"
            f" {'fenced' if self.fenced else 'NOT fenced'}, lost {lost}, doubled {doubled}, out of"
            f" order {disordered}; audit {'clean' if not self.audited else 'NOT clean'}:"
            f" {self.report}"
        )
