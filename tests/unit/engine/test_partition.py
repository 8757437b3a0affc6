"""Judge, append, apply: what is answered while batches are in flight, and when appends fail."""

from random import Random

import pytest

from pidlease.core.judge import Age
from pidlease.core.packed import unpack
from pidlease.core.pid import Policy, make_pid
from pidlease.core.rules import KAFKA
from pidlease.core.state import Batch
from pidlease.engine import pending_batches as module
from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.appenders import group_appender
from pidlease.engine.appenders.failed_batches import FAILED_HOLD_MS
from pidlease.engine.batch_identity import batch_of
from pidlease.engine.pending_batches import Submitted
from pidlease.kafka.records.record_batch import read_header
from pidlease.storage.errors import LogStoppedError
from tests.sim.batches import make_batch
from tests.unit.engine.fakes import OTHER, PID, Bench, offsets, settle, statuses

APPENDED, DUPLICATE, FAILED, GAP = Status.APPENDED, Status.DUPLICATE, Status.FAILED, Status.GAP


async def test_pipelined_batches_are_admitted_before_the_first_is_on_the_disk() -> None:
    bench = Bench()
    told = [bench.send(first) for first in range(5)]
    await settle()
    assert told == [[]] * 5
    assert bench.partition.in_flight == 5
    await bench.flow()
    assert statuses(*told) == [APPENDED] * 5
    assert offsets(*told) == [0, 1, 2, 3, 4]
    assert unpack(KAFKA, bench.partition.producers[PID]).high == 4
    assert bench.partition.in_flight == 0
    assert not bench.partition.is_in_flight(PID)


async def test_a_producer_of_before_a_hole_may_go_on_after_it() -> None:
    """Records were removed before they were applied: its next ones may have been among them."""
    bench = Bench()
    sent = [bench.send(first, pid=pid) for pid in (PID, OTHER) for first in range(3)]
    await bench.flow()
    assert statuses(*sent) == [APPENDED] * 6
    table = bench.partition.table
    table.removed_end = bench.log.end_offset = table.next_offset = 10
    assert statuses(bench.send(2)) == [DUPLICATE]
    first = bench.send(7)
    assert statuses(bench.send(9)) == [GAP], "in flight, it shows gaps again"
    await bench.flow()
    assert statuses(first, bench.send(9), bench.send(7)) == [APPENDED, GAP, DUPLICATE]
    late = bench.send(3, pid=OTHER)
    await bench.flow()
    assert statuses(late) == [APPENDED]


async def test_what_arrives_during_an_append_goes_into_the_next_one_together() -> None:
    bench = Bench()
    first = bench.send(0)
    await settle()
    rest = [bench.send(index) for index in range(1, 8)]
    await bench.flow()
    assert bench.log.groups == [1, 7]
    assert offsets(first, *rest) == list(range(8))


async def test_a_group_is_bounded_in_batches_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr(module, "GROUP_BATCHES_MAX", 3)
    for first in range(7):
        bench.send(first)
    await bench.flow()
    assert bench.log.groups == [3, 3, 1]
    monkeypatch.setattr(module, "GROUP_BYTES_MAX", 500)
    told = [bench.send(7 + n, content=b"x" * size) for n, size in enumerate([100, 90, 900, 5])]
    await bench.flow()
    assert bench.log.groups[3:] == [2, 1, 1]
    assert statuses(*told) == [APPENDED] * 4


async def test_a_group_is_bounded_in_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the offsets of a segment; a header may claim any number of compressed records."""
    bench = Bench()
    monkeypatch.setattr(module, "GROUP_RECORDS_MAX", 2)
    told = [bench.send(first) for first in range(5)]
    await bench.flow()
    assert bench.log.groups == [2, 2, 1]
    assert statuses(*told) == [APPENDED] * 5


@pytest.mark.parametrize("last", [5, 10**9, 1_500_000_000, 4 * 10**9])
async def test_the_first_of_two_failed_ranges_is_admitted_again(last: int) -> None:
    """A copier's first range begins at 0, and its source's first record may have any offset."""
    bench, pid = Bench(), make_pid(Policy.STRICT, 9)

    def send(first: int, last: int) -> list[Outcome]:
        data = make_batch([b"r"], pid=-1)
        header = read_header(data)
        told: list[Outcome] = []
        batch = Batch(5, first, last, 1, header.crc)
        bench.partition.produce(Submitted(pid, header, data, batch, told.append))
        return told

    told = [send(0, last), send(last + 1, last + 1)]
    await bench.fail()
    assert statuses(*told) == [FAILED] * 2
    told = [send(0, last), send(last + 1, last + 1)]
    await bench.flow()
    assert statuses(*told) == [APPENDED] * 2


async def test_persisted_follows_the_log_and_not_what_was_pushed() -> None:
    bench = Bench()
    bench.send(0)
    await settle()
    bench.send(1)
    assert bench.partition.rows().producers == {}
    assert bench.partition.next_offset == 0
    bench.log.succeed()
    assert unpack(KAFKA, bench.partition.rows().producers[PID]).high == 0
    assert bench.partition.rows().next_offset == bench.partition.readable_end == 1
    await bench.flow()
    assert unpack(KAFKA, bench.partition.rows().producers[PID]).high == 1


# ---------------------------------------------------------------------- joined retries


async def test_a_retry_waits_for_its_original_and_gets_its_offset() -> None:
    bench = Bench()
    told = [bench.send(first, 2) for first in (0, 2, 4)]
    retries = [bench.send(first, 2) for first in (0, 2, 4)]
    await settle()
    assert retries == [[], [], []]
    await bench.flow()
    assert statuses(*told) == [APPENDED] * 3
    assert statuses(*retries) == [DUPLICATE] * 3
    assert offsets(*retries) == offsets(*told) == [0, 2, 4]
    assert bench.sequences() == list(range(6))
    assert bench.around.counts.joined == 3


async def test_a_retry_of_what_is_in_the_log_is_answered_at_once() -> None:
    bench = Bench()
    bench.send(0)
    await bench.flow()
    bench.send(1)
    await settle()
    assert [offsets(bench.send(0))] == [[0]]


async def test_a_retry_that_overlaps_what_is_in_flight_waits_for_it() -> None:
    bench = Bench()
    told = bench.send(0, 3)
    overlap = bench.send(1, 4)
    inner = bench.send(1, 2)
    await settle()
    assert (overlap, inner) == ([], [])
    await bench.flow()
    assert statuses(told, overlap, inner) == [APPENDED, Status.OVERLAP, DUPLICATE]
    assert overlap[0].expected == 3
    assert inner[0].offset == -1


async def test_a_joined_retry_gets_the_error_of_its_original() -> None:
    bench = Bench()
    told, retry = bench.send(0), bench.send(0)
    await bench.fail()
    assert statuses(told, retry) == [FAILED, FAILED]
    assert told == retry
    again = bench.send(0)
    await bench.flow()
    assert statuses(again) == [APPENDED]
    assert bench.sequences() == [0]


async def test_a_retry_joins_the_batch_of_its_own_generation() -> None:
    bench = Bench()
    old = bench.send(0, epoch=0)
    new = bench.send(0, epoch=1)
    retry = bench.send(0, epoch=1)
    await bench.flow()
    assert statuses(old, new, retry) == [APPENDED, APPENDED, DUPLICATE]
    # The retry is a duplicate of the second; it must not be tied to the first's fate.
    assert offsets(retry) == offsets(new) == [1]


async def test_a_retry_of_the_second_generation_is_not_answered_with_the_firsts_offset() -> None:
    bench = Bench()
    bench.send(0, epoch=0)
    await settle()  # the first one alone is on its way
    new, retry = bench.send(0, epoch=1), bench.send(0, epoch=1)
    bench.log.succeed()
    # Once a bug: it was joined to the older generation's batch, and told FAILED.
    await bench.flow()
    assert statuses(new, retry) == [APPENDED, DUPLICATE]


async def test_other_bytes_under_the_same_numbers_are_a_duplicate_and_counted() -> None:
    bench = Bench()
    bench.send(0)
    await bench.flow()
    assert statuses(bench.send(0, content=b"other")) == [DUPLICATE]
    assert bench.around.counts.differing == 1


# ---------------------------------------------------------------------- failed appends


async def test_everything_of_the_same_producer_behind_a_failed_append_fails_with_it() -> None:
    bench = Bench()
    first = bench.send(0)
    await settle()
    behind = [bench.send(1), bench.send(2)]
    others = [bench.send(0, pid=OTHER), bench.send(-1, pid=-1)]
    await bench.fail()
    assert statuses(first, *behind) == [FAILED] * 3
    await bench.flow()
    assert statuses(*others) == [APPENDED, APPENDED]
    assert bench.sequences() == []
    assert bench.sequences(OTHER) == [0]
    assert PID not in bench.partition.producers


async def test_successors_on_the_wire_get_the_same_error_until_the_first_comes_again() -> None:
    bench = Bench()
    bench.send(0)
    await bench.flow()
    bench.send(1)
    await bench.fail()
    held = [bench.send(2), bench.send(3), bench.send(2)]
    assert statuses(*held) == [FAILED] * 3
    assert {each[0].expected for each in held} == {1}
    assert statuses(bench.send(0)) == [DUPLICATE]
    again = [bench.send(1), bench.send(2), bench.send(3)]
    await bench.flow()
    assert statuses(*again) == [APPENDED] * 3
    assert bench.sequences() == [0, 1, 2, 3]
    assert statuses(bench.send(9)) == [GAP]


async def test_the_hold_ends_with_time() -> None:
    bench = Bench()
    bench.send(0)
    await bench.fail()
    bench.now_ms += FAILED_HOLD_MS - 1
    assert statuses(bench.send(1)) == [FAILED]
    bench.now_ms += 1
    told = bench.send(1)
    assert statuses(told) == [GAP]
    assert told[0].expected == 0


async def test_the_hold_outlasts_what_clients_keep_on_the_wire() -> None:
    """Kafka's delivery.timeout.ms is 120 s by default."""
    bench = Bench()
    bench.send(0)
    await bench.fail()
    bench.now_ms += 120_000 - 1
    assert statuses(bench.send(1)) == [FAILED]


async def test_a_failure_again_and_again() -> None:
    bench = Bench()
    for _ in range(4):
        told = [bench.send(0), bench.send(1)]
        await bench.fail()
        assert statuses(*told) == [FAILED, FAILED]
        assert statuses(bench.send(2)) == [FAILED]
    told = [bench.send(0), bench.send(1)]
    await bench.flow()
    assert statuses(*told) == [APPENDED, APPENDED]


async def test_an_old_unknown_producer_whose_first_batch_failed_waits_for_it() -> None:
    bench = Bench()
    bench.leases.ages[PID] = Age.OLD
    first = bench.send(7)
    await bench.fail()
    second = bench.send(8)
    assert statuses(first, second) == [FAILED, FAILED]
    again = [bench.send(7), bench.send(8)]
    await bench.flow()
    assert statuses(*again) == [APPENDED, APPENDED]
    assert bench.sequences() == [7, 8]


# Once a bug: both were refused until the hold ended.
async def test_a_batch_before_the_failed_one_is_admitted() -> None:
    """Another server had it first, and did not store it."""
    bench = Bench()
    bench.leases.ages[PID] = Age.OLD
    bench.send(8)
    await bench.fail()
    again = [bench.send(7), bench.send(8), bench.send(9)]
    await bench.flow()
    assert statuses(*again) == [APPENDED] * 3
    assert bench.sequences() == [7, 8, 9]


async def test_a_higher_generation_ends_the_hold() -> None:
    bench = Bench()
    bench.send(0)
    await bench.flow()
    bench.send(1)
    await bench.fail()
    told = [bench.send(0, epoch=1), bench.send(1, epoch=1)]
    await bench.flow()
    assert statuses(*told) == [APPENDED, APPENDED]
    assert statuses(bench.send(1, epoch=0)) == [Status.FENCED]


# Once a bug: its admission takes the hold away.
async def test_a_lower_generation_does_not_end_the_hold_of_a_higher_one() -> None:
    bench = Bench()
    bench.send(0)
    await bench.flow()
    bench.send(0, epoch=1)
    await bench.fail()
    bench.send(1, epoch=0)  # a zombie, or the rest of a connection
    assert statuses(bench.send(1, epoch=1)) == [FAILED]


async def test_a_bump_that_fails_falls_back_to_the_generation_in_the_log() -> None:
    bench = Bench()
    bench.send(0)
    await bench.flow()
    bump = bench.send(0, epoch=3)
    await bench.fail()
    assert statuses(bump) == [FAILED]
    assert unpack(KAFKA, bench.partition.producers[PID]).generation == 0
    again = bench.send(0, epoch=3)
    await bench.flow()
    assert statuses(again) == [APPENDED]
    assert unpack(KAFKA, bench.partition.producers[PID]).generation == 3


async def test_a_callback_that_produces_finds_one_append_at_a_time() -> None:
    """A door answers, takes the next request out of its buffer, and produces: from the callback."""
    bench = Bench()
    later: list[list[Outcome]] = []
    data = make_batch([b"0"], pid=PID, epoch=0, first=0)
    header = read_header(data)

    def answer_and_go_on(_outcome: Outcome) -> None:
        later.append(bench.send(0, pid=OTHER))

    bench.partition.produce(Submitted(PID, header, data, batch_of(header), answer_and_go_on))
    await settle()
    third = bench.send(-1, pid=-1)
    bench.log.fail()
    fourth = bench.send(-1, pid=-1)
    await bench.flow()
    assert statuses(*later, third, fourth) == [APPENDED] * 3
    assert sorted(offsets(*later, third, fourth)) == [0, 1, 2]


async def test_a_callback_that_raises_keeps_nobody_waiting() -> None:
    bench = Bench()
    data = make_batch([b"0"], pid=OTHER, epoch=0, first=0)
    header = read_header(data)

    def broken(_outcome: Outcome) -> None:
        raise RuntimeError("a door's bug")

    bench.partition.produce(Submitted(OTHER, header, data, batch_of(header), broken))
    told = bench.send(0)
    await bench.flow()
    assert statuses(told) == [APPENDED]


# ---------------------------------------------------------------------- no PID, no lease, no log


@pytest.mark.parametrize("pid", [0, -1])
async def test_without_a_pid_everything_goes_straight_through(pid: int) -> None:
    bench = Bench()
    told = [bench.send(0, pid=pid) for _ in range(3)]
    await bench.flow()
    assert statuses(*told) == [APPENDED] * 3
    assert bench.partition.producers == {}
    failing = [bench.send(0, pid=pid), bench.send(0, pid=pid)]
    await bench.fail()
    again = bench.send(0, pid=pid)
    await bench.flow()
    assert statuses(*failing, again) == [FAILED, FAILED, APPENDED]


async def test_a_stopped_log_takes_nothing_and_what_was_in_flight_is_told() -> None:
    bench = Bench()
    flying = bench.send(0)
    await settle()
    behind = [bench.send(1), bench.send(0, pid=OTHER), bench.send(-1, pid=-1)]
    bench.log.stopped = "broken"
    await bench.fail(LogStoppedError("broken"))
    assert statuses(flying, *behind) == [Status.STOPPED] * 4
    assert statuses(bench.send(0), bench.send(0, pid=0)) == [Status.STOPPED] * 2
    assert bench.partition.in_flight == 0


async def test_a_full_ring_refuses_a_new_producer_and_no_known_one() -> None:
    bench = Bench()
    bench.send(0)
    await bench.flow()
    bench.leases.full = True
    known, new = bench.send(1), bench.send(0, pid=OTHER)
    assert statuses(new) == [Status.NO_LEASE]
    await bench.flow()
    assert statuses(known) == [APPENDED]
    assert OTHER not in bench.partition.producers


async def test_pids_of_no_policy_and_the_writers_are_malformed() -> None:
    bench = Bench()
    for pid in (5, make_pid(Policy.WRITER, 1), 6 << 48 | 1, 2 << 48):
        assert statuses(bench.send(0, pid=pid)) == [Status.MALFORMED], pid


async def test_a_pid_that_nobody_leased_is_unknown() -> None:
    bench = Bench()
    bench.leases.ages[PID] = Age.NEVER
    assert statuses(bench.send(0)) == [Status.UNKNOWN]


# ---------------------------------------------------------------------- by seed


@pytest.mark.parametrize("seed", range(60))
async def test_any_interleaving_stores_every_sequence_once_and_in_order(seed: int) -> None:
    """Two producers retry until all is acknowledged, while appends fail at random."""
    print(f"seed {seed}")
    random = Random(seed)
    bench = Bench()
    goals = {PID: 0, OTHER: 0}
    while min(goals.values()) < 12:
        pid = random.choice(list(goals))
        sent = [bench.send(goals[pid] + index, pid=pid) for index in range(random.randint(1, 5))]
        extra = bench.send(goals[pid] + random.randrange(len(sent)), pid=pid)
        while bench.partition.in_flight:
            await settle()
            if bench.log.waiting is not None:
                bench.log.fail() if random.random() < 0.3 else bench.log.succeed()
            if random.random() < 0.2:
                await settle()
        found = statuses(*sent)
        successes = [status in (APPENDED, DUPLICATE) for status in found]
        assert successes == sorted(successes, reverse=True), found
        assert set(found) <= {APPENDED, DUPLICATE, FAILED}
        assert statuses(extra)[0] in {APPENDED, DUPLICATE, FAILED}
        goals[pid] += sum(successes)
        assert bench.sequences(pid)[: goals[pid]] == list(range(goals[pid]))
        assert bench.sequences(pid) == list(range(len(bench.sequences(pid))))


async def test_a_producer_that_found_no_slot_comes_first_again() -> None:
    """Once a bug: a slot became free in between, its second batch was let in as the first ever
    seen, and the first was refused for ever."""
    bench = Bench()
    bench.leases.ages[PID] = Age.OLD
    bench.leases.full = True
    first = bench.send(7)
    bench.leases.full = False
    second = bench.send(8)
    assert statuses(first, second) == [Status.NO_LEASE, FAILED]
    again = [bench.send(7), bench.send(8)]
    await bench.flow()
    assert statuses(*again) == [APPENDED, APPENDED]
    assert bench.sequences() == [7, 8]


@pytest.mark.parametrize("slow", [True, False])
async def test_what_has_ended_during_a_slow_append_is_not_appended(
    monkeypatch: pytest.MonkeyPatch, *, slow: bool
) -> None:
    """Its client has sent the records again, under a higher epoch: they would be there twice."""
    monkeypatch.setattr(group_appender, "SLOW_SECONDS", -1.0 if slow else 1000.0)
    bench = Bench()
    first = bench.send(0)
    await settle()
    ended, later, other = bench.send(1), bench.send(2), bench.send(0, pid=OTHER)
    bench.pendings[1].superseded = True
    await bench.flow()
    lost = FAILED if slow else APPENDED
    assert statuses(first, ended, later, other) == [APPENDED, lost, lost, APPENDED]
    assert bench.sequences() == ([0] if slow else [0, 1, 2])
    again = [bench.send(1), bench.send(2)]
    await bench.flow()
    assert statuses(*again) == [APPENDED if slow else DUPLICATE] * 2
