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
#: What a batch without a PID counts as, beside the numbers of the policies.
NO_PID: Final = 0


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """One topic's.

    Attributes:
        deduplication: off lets every batch through. It is known of all the same, so that judging
            goes on from there when it is on again.
        allowed: numbers of the policies with allowed batches, and `NO_PID`.
        starts_at_zero: a producer of which nothing is known begins at 0, also where its policy
            would let it begin anywhere.
        compacted: whether records are removed by their keys: then those with identity headers
            might go, and only what stands in a batch's header is kept.
    """

    deduplication: bool = True
    allowed: frozenset[int] = frozenset((NO_PID, *map(int, RULES)))
    starts_at_zero: bool = False
    compacted: bool = False

    @property
    def takes_all(self) -> bool:
        """Whether nothing is refused for its policy."""
        return len(self.allowed) == len(RULES) + 1 and not self.compacted

    def refusal(self, pid: int) -> str:
        """Why a batch of a PID is not taken; empty where it is."""
        policy = policy_of(pid) if pid > 0 else None
        what = f"of policy {policy.name.lower()}" if policy else "without a PID"
        if (int(policy) if policy else NO_PID) in self.allowed:
            if self.compacted and policy not in (None, Policy.KAFKA):
                return f"batches {what} are not taken here: {_COMPACTED}"
            return ""
        names = sorted(Policy(each).name.lower() if each else "none" for each in self.allowed)
        return f"batches {what} are not taken here; pidlease.policies = {','.join(names)}"
