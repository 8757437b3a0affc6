"""What happened since the start, in plain numbers: the hot path is hot."""

from dataclasses import dataclass, field

from pidlease.core.pid import Policy
from pidlease.engine.outcome import Status


@dataclass(slots=True)
class Counts:
    """Over all partitions.

    Attributes:
        verdicts: outcomes other than appended, by policy (None: no PID, or none known).
        appended: batches appended, by the policy's number; 0: no PID. Apart from the others,
            for hashing members of an enum calls Python.
        batches: batches appended.
        records: records in them.
        bytes: bytes of them.
        appends: appends, each of one batch or more.
        joined: retries that waited for their original.
        differing: duplicates by their numbers, with other bytes.
    """

    verdicts: dict[tuple[Policy | None, Status], int] = field(default_factory=dict)
    appended: list[int] = field(default_factory=lambda: [0] * (len(Policy) + 1))
    batches: int = 0
    records: int = 0
    bytes: int = 0
    appends: int = 0
    joined: int = 0
    differing: int = 0

    def count(self, policy: Policy | None, status: Status) -> None:
        """Count an outcome."""
        key = (policy, status)
        self.verdicts[key] = self.verdicts.get(key, 0) + 1
