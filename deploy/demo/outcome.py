"""The demo's verdict: the one-line summary, and everything that speaks against success."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from deploy.demo.audit import Audit
from deploy.demo.crashes import Kill
from deploy.demo.rows import ROWS

_KILLS_MIN: Final = 5
_FAULT_KILLS_MIN: Final = 2


@dataclass(frozen=True)
class Outcome:
    """All figures of a run.

    Attributes:
        audit: the count.
        kills: the crashes with batches in flight.
        duplicates: caught by the server, over all its lives.
        failures: deliveries that a client gave up.
        rows: how many records there were to send.
        broker_kills_min: so many of the kills are to be of the Kafka behind, and none at a fault
            point; 0: there is none.
    """

    audit: Audit
    kills: Sequence[Kill]
    duplicates: int
    failures: Sequence[str]
    rows: int = ROWS
    broker_kills_min: int = 0

    @property
    def broker_kills(self) -> int:
        """Kills of the Kafka behind."""
        return sum(1 for kill in self.kills if kill.crash.of_broker)

    @property
    def fault_kills(self) -> int:
        """Crashes at a fault point."""
        return sum(1 for kill in self.kills if kill.crash.fault)

    def problems(self) -> list[str]:
        """Why this run is a failure; empty where it is none."""
        return [text for text, wrong in self._checks() if wrong]

    def summary(self) -> str:
        """The figures in one line."""
        total = self.audit.total
        of_them = f"{self.fault_kills} between append and answer"
        if self.broker_kills_min:
            of_them = f"{self.broker_kills} of Kafka"
        return (
            f"demo: sent {total.sent}, stored {total.stored}, kills {len(self.kills)}"
            f" ({of_them}), duplicates caught"
            f" {self.duplicates}, lost {total.lost}, doubled {total.doubled},"
            f" out of order {total.out_of_order}"
        )

    def _checks(self) -> Iterator[tuple[str, bool]]:
        total = self.audit.total
        yield f"{total.lost} records lost", total.lost > 0
        yield f"{total.doubled} records doubled", total.doubled > 0
        yield f"{total.out_of_order} records out of order", total.out_of_order > 0
        yield f"{self.audit.foreign} records stored that nobody sent so", self.audit.foreign > 0
        yield f"{self.audit.misplaced} at another offset than told", self.audit.misplaced > 0
        yield "no duplicate was caught: the kills proved nothing", self.duplicates == 0
        yield f"sent {total.sent} of {self.rows} rows", total.sent != self.rows
        missing = total.sent - total.acknowledged
        yield f"{missing} records never acknowledged", missing > 0
        yield f"failed deliveries: {'; '.join(self.failures[:5])}", bool(self.failures)
        yield f"only {len(self.kills)} kills hit batches in flight", len(self.kills) < _KILLS_MIN
        idle = sum(1 for kill in self.kills if not kill.in_flight)
        yield f"{idle} kills with nothing in flight", idle > 0
        if self.broker_kills_min:
            few = self.broker_kills < self.broker_kills_min
            yield f"only {self.broker_kills} kills of Kafka", few
            return
        few = self.fault_kills < _FAULT_KILLS_MIN
        yield f"only {self.fault_kills} crashes between append and answer", few
