"""The batches that a topic allows: deduplication on or off, policies, first sequence numbers.

Pulsar switches deduplication by namespace and topic (`isDeduplicationEnabled`); allowed policies
and the rule for the first batch are ours.
"""

from dataclasses import dataclass
from typing import Final

from pidlease.core.pid import Policy, policy_of
from pidlease.core.rules import RULES

_COMPACTED: Final = (
    "the topic's cleanup.policy is compact, or unknown: compaction removes records, and with them"
    " the identity headers of producers; use a topic that is not compacted"
)
#: Stands for batches without a PID, in a set of policies' numbers.
NO_PID: Final = 0


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """The batches that one topic allows.

    Attributes:
        deduplication: False: every batch is appended. The producers' states are kept all the
            same, so that validation continues from them when deduplication is on again.
        allowed: the numbers of the allowed policies; `NO_PID` if batches without a PID are allowed.
        starts_at_zero: a producer without state must begin at sequence number 0, even if its policy
            lets it begin anywhere.
        compacted: compaction may remove records with identity headers, so only policies that need
            nothing but the batch header are allowed.
    """

    deduplication: bool = True
    allowed: frozenset[int] = frozenset((NO_PID, *map(int, RULES)))
    starts_at_zero: bool = False
    compacted: bool = False

    @property
    def takes_all(self) -> bool:
        """Whether batches of every policy, and without a PID, are allowed."""
        return len(self.allowed) == len(RULES) + 1 and not self.compacted

    def refusal(self, pid: int) -> str:
        """Return why a batch with this PID is not allowed; empty: it is."""
        policy = policy_of(pid) if pid > 0 else None
        what = f"of policy {policy.name.lower()}" if policy else "without a PID"
        if (int(policy) if policy else NO_PID) in self.allowed:
            if self.compacted and policy not in (None, Policy.KAFKA):
                return f"batches {what} are not taken here: {_COMPACTED}"
            return ""
        names = sorted(Policy(each).name.lower() if each else "none" for each in self.allowed)
        return f"batches {what} are not taken here; pidlease.policies = {','.join(names)}"
