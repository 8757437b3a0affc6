"""What is counted, and how little of it there is."""

from pidlease.core.pid import Policy
from pidlease.engine.append_outcome import Status
from pidlease.engine.topic_counts import OTHERS, TOPICS_MAX, Counts


def test_topics_beyond_the_limit_share_one() -> None:
    """Those that came first keep their own."""
    counts = Counts()
    own = [counts.of(f"topic-{number}") for number in range(TOPICS_MAX)]
    assert len(set(map(id, own))) == TOPICS_MAX
    assert counts.of("one more") is counts.of("and another")
    assert counts.of("topic-0") is own[0]
    assert [name for name, _ in counts.topics()][-1] == OTHERS
    assert len(list(counts.topics())) == TOPICS_MAX + 1
    counts.of("one more").batches += 2
    own[0].batches += 1
    assert counts.batches == 3


def test_outcomes_by_policy() -> None:
    counts = Counts().of("t")
    counts.appended[0] += 1
    counts.appended[Policy.EPOCH] += 2
    counts.count(Policy.EPOCH, Status.GAP)
    assert counts.judged() == {
        (None, Status.APPENDED): 1,
        (Policy.EPOCH, Status.APPENDED): 2,
        (Policy.EPOCH, Status.GAP): 1,
    }
