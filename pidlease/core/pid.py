"""Producer ids: ``policy << 48 | n``, with n from the one global sequence.

Kafka hands out its own ids from 0 upwards, so an id of ours never meets one of Kafka's; the
largest is below 2^53, so it survives JSON; and the policy can be read off the id alone, which
is how the replay, an audit and every proxy agree on the rule that a batch is under.
"""

import enum
from typing import Final

#: A batch with one of these carries no idempotence (Kafka's own value is -1).
NO_PIDS: Final = frozenset((0, -1))

#: Ids handed out at once, by one durable write.
BLOCK_SIZE: Final = 100

#: The bits below a PID's policy.
POLICY_SHIFT: Final = 48
#: The bits of a PID that are its number in the global sequence.
N_MASK: Final = (1 << POLICY_SHIFT) - 1


@enum.unique
class Policy(enum.IntEnum):
    """The rule that a PID is judged by."""

    STRICT = 1
    KAFKA = 2
    MONOTONIC = 3
    EPOCH = 4
    WRITER = 5


def make_pid(policy: Policy, n: int) -> int:
    """Join a policy and a number of the global sequence.

    Parameters:
        policy: the rule that the PID will be judged by.
        n: a number of the global sequence, from 1.

    Raises:
        ValueError: n is outside 1 .. 2^48 - 1.
    """
    if not 1 <= n <= N_MASK:
        raise ValueError(f"sequence number {n} is outside 1..{N_MASK}")
    return policy << POLICY_SHIFT | n


def policy_of(pid: int) -> Policy | None:
    """The policy of a PID; None for Kafka's own range, negative ids and policies unknown here."""
    return _POLICIES.get(pid >> POLICY_SHIFT) if pid & N_MASK else None


def policy_named(name: str) -> Policy:
    """Return the policy of a name, in lower case as users write it.

    Raises:
        KeyError: no policy has the name.
    """
    return Policy[name.upper()]


def number_of(pid: int) -> int:
    """The number that a PID has in the global sequence."""
    return pid & N_MASK


_POLICIES: Final = {int(policy): policy for policy in Policy}
