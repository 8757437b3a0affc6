"""Each error code that Kafka may answer to a batch: nothing lost, nothing twice, all in order."""

import pytest
from kio.schema.errors import ErrorCode

from pidlease.engine.append_outcome import UNKNOWN_OUTCOME, Status
from pidlease.engine.pending_batches import not_taken
from pidlease.kafka.codec.produce import PartitionResponse, RecordError
from pidlease.kafka.error_codes import CONTENT, FENCED, STALE_LEADER
from pidlease.kafka.produce_errors import (
    PRODUCE_ERRORS,
    Stored,
    produce_error,
)
from pidlease.log.kafka.kafka_partition_log import not_appended
from pidlease.log.ports import Forwarded
from tests.crash.seeds import SOAK, new_random
from tests.unit.engine.kafka_sim import CodeFault, World, outcome_of

#: Codes that a broker gives before it appends, and never after. Read from its source; not from the
#: table under test.
BEFORE_APPEND = {2, 10, 17, 18, 19, 29, 31, 32, 43, 76, 87}
#: Codes that a broker gives after it has appended to its own log, and before it acknowledges.
AFTER_APPEND = {-1, 3, 6, 7, 20, 56}
_ALL = sorted({code.value for code in ErrorCode} - {0})
_NO_CODES = (-2, 999, 2**15 - 1)
CODES = sorted({*(_ALL if SOAK else PRODUCE_ERRORS.keys() - {0}), *_NO_CODES})
FAULTS = [
    CodeFault(code, stored)
    for code in CODES
    for stored in (False, True)
    if not (stored and code in BEFORE_APPEND)
]
_STEPS = 400


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_a_code_for_kafka_s_clients(fault: CodeFault) -> None:
    random = new_random(f"produce error {fault.code} {fault.stored}, Kafka's clients")
    await _survives(World(random, producers=2, batches=30, fault=fault), fault)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_a_code_under_the_writer(fault: CodeFault) -> None:
    """Policies strict, monotonic and epoch."""
    random = new_random(f"produce error {fault.code} {fault.stored}, the writer")
    await _survives(World(random, producers=0, batches=20, strict=2, epoch=1, fault=fault), fault)


async def _survives(world: World, fault: CodeFault) -> None:
    await world.run(_STEPS)
    world.check()
    assert world.fault_told, world.happened
    errors = {error for client in world.clients for error in client.errors}
    if fault.code in BEFORE_APPEND:
        assert (Status.REFUSED, fault.code) in errors, "the client gets Kafka's own code"
    else:
        assert {code for status, code in errors if status is Status.REFUSED} <= {19}
        assert (Status.FAILED, UNKNOWN_OUTCOME) in errors, "the client sends it again"


@pytest.mark.parametrize("code", [*_ALL, *_NO_CODES])
def test_what_is_certain_of_a_code(code: int) -> None:
    """An offset beside an error code says nothing: DelayedProduce leaves it there."""
    for offset in (-1, 7):
        answer = outcome_of(code, offset)
        assert (answer.code, answer.offset) == (code, -1)
        assert answer.definite == (code in BEFORE_APPEND)
    row = produce_error(code)
    assert row.code == code
    assert row.reason
    if code in AFTER_APPEND:
        assert row.stored is Stored.MAYBE


def test_an_answer_without_an_offset_is_not_certain() -> None:
    assert outcome_of(0, 5) == Forwarded(0, 5)
    answer = outcome_of(0, -1)
    assert (answer.code, answer.offset, answer.definite) == (0, -1, False)


def test_what_kafka_says_of_records_reaches_the_outcome() -> None:
    errors = (RecordError(1, "no key"), RecordError(4, "no"))
    answer = not_appended(PartitionResponse(87, message="invalid", record_errors=errors))
    outcome = not_taken(answer)
    assert outcome.record_errors == errors
    assert (
        outcome.reason
        == "Kafka answers INVALID_RECORD (87): invalid; record 1: no key; record 4: no"
    )


def test_the_sets_fit_the_table() -> None:
    """What a batch holds is found before the append; a newer epoch says nothing of older writes."""
    assert all(produce_error(code).stored is Stored.NO for code in CONTENT)
    assert all(produce_error(code).stored is not Stored.NO for code in FENCED | STALE_LEADER)
