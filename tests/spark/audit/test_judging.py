"""The validation of one producer's sends, against a naive audit."""

from random import Random

import pytest

from pidlease.core.pid import Policy
from pidlease.core.state import Batch
from pidlease.spark.audit.send_history import LogCompleteness, LoggedSend, SendHistory
from tests.property.profile import SCALE
from tests.spark.audit.histories import POLICIES, History, history
from tests.spark.audit.oracle import Oracle, OracleFinding


def judged(one: History, *, whole: bool, start: int = 0) -> list[OracleFinding]:
    policy = int(Policy[one.policy.upper()])
    sends, offset = [], start
    for send in one.sends:
        generation, first, last, records = send.wire(one.policy)
        numbers = last - first + 1 if one.producer_id else records
        batch = Batch(generation, first, last, numbers, 7)
        sends.append(LoggedSend(policy, offset, offset + records - 1, batch, records))
        offset += records
    places = {sent.offset: index for index, sent in enumerate(sends)}
    sent_history = SendHistory(LogCompleteness(whole))
    found = [each for sent in sends for each in sent_history.judge(sent)] + [*sent_history.end()]
    return [OracleFinding(places[each.sent.offset], each.kind, each.numbers) for each in found]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_findings_are_those_of_a_naive_audit(policy: str, whole: bool) -> None:
    kinds = set()
    for seed in range(1500 * SCALE):
        one = history(Random(seed), policy, 0, whole=whole)
        expected = Oracle(policy, whole).audit(one.sends)
        found = judged(one, whole=whole)
        assert found == expected, f"seed {seed}: {one.sends}"
        kinds |= {each.kind for each in found}
    assert {"duplicate", "fenced", "overlap", "late"} <= kinds
