"""The rules of the policies as a table of data, the only one that `judge` and `fold` read.

Sources: KIP-98 and Kafka's ProducerAppendInfo for KAFKA; Pulsar's MessageDeduplication for
MONOTONIC; HTTP appends with Producer-Id / Producer-Epoch / Producer-Seq for EPOCH; the
idempotent-producer proposal (dense sequence numbers that continue across generations) for STRICT.
"""

import enum
from dataclasses import dataclass
from typing import Final

from pidlease.core.pid import N_MASK, POLICY_SHIFT, Policy


@enum.unique
class Start(enum.Enum):
    """The sequence number at which a producer without state may start."""

    AT_ZERO = "at zero, else gap(0)"
    ANYWHERE = "anywhere"
    NOWHERE = "nowhere: unknown"


@dataclass(frozen=True, slots=True)
class Rules:
    """One policy's row of the table.

    Attributes:
        policy: the policy of this row.
        sequence_max: the largest sequence number.
        generation_max: the largest generation.
        wraps: sequence_max is followed by 0 (Kafka's 31-bit numbers).
        restarts: a higher generation, by any step, starts at 0 again; otherwise the numbers
            continue, and the generation may only be one higher, or granted.
        holes: gaps are allowed: a sequence number beyond H + 1 is admitted.
        ranges: a batch may hold fewer records than its range has numbers: a copier's source has
            gaps, and so have ids that a producer takes from another system.
        low_mark: a sequence number below the lowest one admitted in this generation is a gap, not
            a duplicate.
        start_young: where a PID may start while its block is younger than the lease.
        start_old: where a PID may start if its block is older. (A PID of no recorded block is
            unknown, except for producers with a producer name.)
    """

    policy: Policy
    sequence_max: int
    generation_max: int
    wraps: bool
    restarts: bool
    holes: bool
    ranges: bool
    low_mark: bool
    start_young: Start
    start_old: Start


_INT64_MAX: Final = 2**63 - 1

STRICT: Final = Rules(
    Policy.STRICT,
    sequence_max=_INT64_MAX,
    generation_max=_INT64_MAX,
    wraps=False,
    restarts=False,
    holes=False,
    ranges=True,
    low_mark=False,
    start_young=Start.AT_ZERO,
    start_old=Start.NOWHERE,
)
KAFKA: Final = Rules(
    Policy.KAFKA,
    sequence_max=2**31 - 1,
    generation_max=2**15 - 1,
    wraps=True,
    restarts=True,
    holes=False,
    ranges=False,
    low_mark=True,
    start_young=Start.AT_ZERO,
    start_old=Start.ANYWHERE,
)
MONOTONIC: Final = Rules(
    Policy.MONOTONIC,
    sequence_max=_INT64_MAX,
    generation_max=_INT64_MAX,
    wraps=False,
    restarts=False,
    holes=True,
    ranges=True,
    low_mark=False,
    start_young=Start.ANYWHERE,
    start_old=Start.ANYWHERE,
)
EPOCH: Final = Rules(
    Policy.EPOCH,
    sequence_max=2**53 - 1,
    generation_max=2**53 - 1,
    wraps=False,
    restarts=True,
    holes=False,
    ranges=False,
    low_mark=True,
    start_young=Start.AT_ZERO,
    start_old=Start.AT_ZERO,
)

#: The policies of the batches that listeners submit. The writer is the proxy's own, and is never
#: judged.
RULES: Final = {rules.policy: rules for rules in (STRICT, KAFKA, MONOTONIC, EPOCH)}

# By plain numbers: hashing a member of an enum calls Python, and each batch looks its policy up.
_BY_POLICY: Final = {int(policy): rules for policy, rules in RULES.items()}


def rules_of(pid: int) -> Rules | None:
    """Return the row of a PID's policy; None: no listener may submit batches of such a PID."""
    return _BY_POLICY.get(pid >> POLICY_SHIFT) if pid & N_MASK else None
