"""Producer ids: ``policy << 48 | n``, with n from the one global sequence.

Kafka assigns its own ids from 0 upwards, so a leased PID never equals one of Kafka's. The largest
PID is below 2^53, so it survives JSON. The PID alone contains the policy, so a replay, an audit and
every proxy agree on the rule of a batch.
"""

import enum
from typing import Final

#: The producer ids of a batch without a producer (Kafka's own value is -1).
NO_PIDS: Final = frozenset((0, -1))

#: How many PIDs one durable write reserves.
BLOCK_SIZE: Final = 100

#: The bits below a PID's policy.
POLICY_SHIFT: Final = 48
#: The bits of a PID that are its number in the global sequence.
N_MASK: Final = (1 << POLICY_SHIFT) - 1


@enum.unique
class Policy(enum.IntEnum):
    """The rule by which a PID's batches are judged."""

    STRICT = 1
    KAFKA = 2
    MONOTONIC = 3
    EPOCH = 4
    WRITER = 5


def make_pid(policy: Policy, n: int) -> int:
    """Join a policy and a number of the global sequence.

    Parameters:
        policy: the rule by which the PID's batches are judged.
        n: a number of the global sequence, from 1.

    Raises:
        ValueError: n is outside 1 .. 2^48 - 1.
    """
    if not 1 <= n <= N_MASK:
        raise ValueError(f"sequence number {n} is outside 1..{N_MASK}")
    return policy << POLICY_SHIFT | n


def policy_of(pid: int) -> Policy | None:
    """Return a PID's policy; None for Kafka's own range, negative ids and unknown policies."""
    return _POLICIES.get(pid >> POLICY_SHIFT) if pid & N_MASK else None


def policy_named(name: str) -> Policy:
    """Return the policy of a name, in lower case as users write it.

    Raises:
        KeyError: no policy has the name.
    """
    return Policy[name.upper()]


def number_of(pid: int) -> int:
    """Return a PID's number in the global sequence."""
    return pid & N_MASK


_POLICIES: Final = {int(policy): policy for policy in Policy}
