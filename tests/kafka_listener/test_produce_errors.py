"""The design's table of errors at the Kafka door, and what a broker answers to odd requests."""

import pytest

from tests.kafka_listener.batches import batch, changed, sequenced
from tests.kafka_listener.client import INIT, WireClient, answers_of, produced
from tests.kafka_listener.harness import Server
from tests.kafka_listener.messages import INIT_PRODUCER_ID, PRODUCE

_KAFKA = 2 << 48
_SEQUENCE_MAX = 2**31 - 1


async def _send(
    client: WireClient, pid: int, epoch: int, first: int, count: int = 1
) -> tuple[int, int, str]:
    values = [b"%d" % place for place in range(count)]
    answer = await client.produce("t", batch(values, pid, epoch, first))
    return answer.code, answer.offset, answer.message or ""


async def _started(client: WireClient) -> int:
    await client.create("t")
    return await client.lease()


async def test_appended_and_duplicates_with_the_original_offset(client: WireClient) -> None:
    pid = await _started(client)
    sent = [(place * 2, 2) for place in range(5)]
    for first, count in sent:
        assert await _send(client, pid, 0, first, count) == (0, first, "")
    for first, count in sent:
        assert await _send(client, pid, 0, first, count) == (0, first, "")
    assert (await client.fetch("t")).end == 10


async def test_a_forgotten_duplicate_is_46(client: WireClient) -> None:
    pid = await _started(client)
    for first in range(6):
        assert (await _send(client, pid, 0, first))[:2] == (0, first)
    assert (await _send(client, pid, 0, 0))[:2] == (46, -1)
    # Also a range that lies wholly behind, but was never one batch.
    assert (await _send(client, pid, 0, 2, 3))[:2] == (46, -1)
    assert (await client.fetch("t")).end == 6


@pytest.mark.parametrize(("first", "count"), [(4, 1), (_SEQUENCE_MAX, 1), (2, 2), (0, 4)], ids=str)
async def test_gap_and_overlap_are_45_with_the_expected_sequence(
    client: WireClient, first: int, count: int
) -> None:
    pid = await _started(client)
    assert (await _send(client, pid, 0, 0, 3))[0] == 0
    code, offset, message = await _send(client, pid, 0, first, count)
    if first == _SEQUENCE_MAX:  # behind by the half space, and below all that was admitted: a gap
        assert code == 45
    assert (code, offset) == (45, -1)
    assert "expected sequence 3" in message


async def test_the_first_batch_of_a_fresh_pid_is_0_on_every_partition(client: WireClient) -> None:
    pid = await _started(client)
    await client.create("u", 2)
    assert (await _send(client, pid, 0, 0, 3))[0] == 0
    answer = await client.produce("u", batch([b"v"], pid, 0, 3), partition=1)
    assert (answer.code, answer.offset) == (45, -1)
    assert "expected sequence 0" in (answer.message or "")


async def test_every_refusal_names_pid_generation_and_expected_sequence(
    client: WireClient,
) -> None:
    pid = await _started(client)
    assert (await _send(client, pid, 3, 0, 3))[0] == 0
    code, _, message = await _send(client, pid, 3, 7)
    assert (code, str(pid) in message, "3" in message) == (45, True, True), message
    code, _, message = await _send(client, pid, 2, 3)
    assert (code, str(pid) in message, "3" in message) == (47, True, True), message


async def test_fenced_is_47(client: WireClient) -> None:
    pid = await _started(client)
    assert (await _send(client, pid, 5, 0))[0] == 0
    code, offset, message = await _send(client, pid, 4, 1)
    assert (code, offset) == (47, -1)
    assert "5" in message


async def test_an_epoch_may_jump_at_sequence_0_only(client: WireClient) -> None:
    pid = await _started(client)
    assert (await _send(client, pid, 0, 0, 2))[0] == 0
    code, _, message = await _send(client, pid, 3, 2)
    assert code == 45
    assert "expected sequence 0" in message
    assert (await _send(client, pid, 3, 0))[:2] == (0, 2)
    assert (await _send(client, pid, 0, 2))[0] == 47
    assert (await _send(client, pid, 3, 1))[:2] == (0, 3)


async def test_sequences_wrap_at_2_to_the_31(server: Server, client: WireClient) -> None:
    await client.create("t")
    pid = await client.lease()
    # Nothing shorter than a lease away may start anywhere; so let the lease end first.
    server.let_leases_end()
    assert await _send(client, pid, 0, _SEQUENCE_MAX - 10, 21) == (0, 0, "")
    assert await _send(client, pid, 0, _SEQUENCE_MAX - 10, 21) == (0, 0, "")
    assert await _send(client, pid, 0, 10) == (0, 21, "")
    assert (await _send(client, pid, 0, 0))[0] == 46
    code, _, message = await _send(client, pid, 0, 12)
    assert (code, "expected sequence 11" in message) == (45, True)


async def test_the_wrap_between_two_batches(server: Server, client: WireClient) -> None:
    await client.create("t")
    pid = await client.lease()
    server.let_leases_end()
    assert await _send(client, pid, 0, _SEQUENCE_MAX, 1) == (0, 0, "")
    assert (await _send(client, pid, 0, 1))[0] == 45
    assert await _send(client, pid, 0, 0) == (0, 1, "")
    assert await _send(client, pid, 0, _SEQUENCE_MAX) == (0, 0, "")


@pytest.mark.parametrize(
    ("pid", "code"),
    [
        (1, 59),  # Kafka's own range
        ((1 << 48) - 1, 59),
        (_KAFKA, 87),  # a policy, but no number
        (-2, 87),
        (-(2**63), 87),
        (6 << 48 | 1, 87),  # no such policy
        (2**63 - 1, 87),
        (5 << 48 | 1, 87),  # the proxy's own
        (1 << 48 | 1, 87),  # policies of other doors
        (3 << 48 | 1, 87),
        (4 << 48 | 1, 87),
        (_KAFKA | 10**9, 59),  # never leased by anybody
    ],
)
async def test_pids_that_nobody_was_given(client: WireClient, pid: int, code: int) -> None:
    await client.create("t")
    answer = await client.produce("t", batch([b"v"], pid, 0, 0))
    assert (answer.code, answer.offset) == (code, -1)
    assert answer.log_start == 0
    assert answer.message
    assert (await client.fetch("t")).end == 0


@pytest.mark.parametrize("pid", [0, -1])
async def test_without_a_pid_everything_is_appended(client: WireClient, pid: int) -> None:
    await client.create("t")
    for place in range(3):
        answer = await client.produce("t", batch([b"v"], pid, -1, -1))
        assert (answer.code, answer.offset) == (0, place)


@pytest.mark.parametrize(("epoch", "first"), [(-1, 0), (0, -1), (-1, -1), (-5, 0), (0, -(2**31))])
async def test_half_an_identity_is_87(client: WireClient, epoch: int, first: int) -> None:
    pid = await _started(client)
    data = sequenced(batch([b"v"]), pid, epoch, first)
    answer = await client.produce("t", data)
    assert (answer.code, answer.offset) == (87, -1)


@pytest.mark.parametrize("acks", [2, -2, 32_767, -32_768])
async def test_acks_that_make_no_sense_are_21(client: WireClient, acks: int) -> None:
    await client.create("t")
    answer = await client.produce("t", batch([b"v"]), acks=acks)
    assert (answer.code, answer.offset) == (21, -1)
    assert (await client.fetch("t")).end == 0


@pytest.mark.parametrize("version", [3, 8, 12])
async def test_a_transactional_id_is_53(client: WireClient, version: int) -> None:
    await client.create("t")
    answer = await client.produce("t", batch([b"v"]), transactional_id="x", version=version)
    assert (answer.code, answer.offset) == (53, -1)
    assert (await client.fetch("t")).end == 0


@pytest.mark.parametrize(("topic", "partition"), [("absent", 0), ("t", 1), ("t", -1), ("", 0)])
async def test_an_unknown_partition_is_3(client: WireClient, topic: str, partition: int) -> None:
    await client.create("t")
    answer = await client.produce(topic, batch([b"v"]), partition=partition)
    assert (answer.code, answer.offset) == (3, -1)


async def test_one_bad_part_does_not_hinder_the_others(client: WireClient) -> None:
    await client.create("t", 3)
    good = batch([b"v"])
    parts = [("t", 0, good), ("t", 1, changed(good, magic=1)), ("t", 2, good), ("no", 0, good)]
    body = await client.call(PRODUCE, 9, **produced(parts))
    assert [(part.code, part.offset) for part in answers_of(body)] == [
        (0, 0),
        (87, -1),
        (0, 0),
        (3, -1),
    ]


# ---------------------------------------------------------------------- InitProducerId


@pytest.mark.parametrize("version", range(6))
async def test_init_producer_id_always_gives_a_fresh_pid(client: WireClient, version: int) -> None:
    found = set()
    for _ in range(3):
        body = await client.call(INIT_PRODUCER_ID, version, **INIT)
        assert (body.error_code, body.producer_epoch, body.producer_id >> 48) == (0, 0, 2)
        found.add(body.producer_id)
    # Also to a client that says which one it has (KIP-360), and is not the only one to know it.
    if version >= 3:
        again = {**INIT, "producer_id": min(found), "producer_epoch": 0}
        body = await client.call(INIT_PRODUCER_ID, version, **again)
        assert (body.error_code, body.producer_epoch) == (0, 0)
        found.add(body.producer_id)
        assert len(found) == 4
    assert len(found) >= 3


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("name", ["mine", ""])
async def test_init_producer_id_refuses_a_transactional_id(
    client: WireClient, version: int, name: str
) -> None:
    values = {**INIT, "transactional_id": name}
    body = await client.call(INIT_PRODUCER_ID, version, **values)
    assert (body.error_code, body.producer_id, body.producer_epoch) == (53, -1, -1)


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("half", [{"producer_id": 7}, {"producer_epoch": 0}], ids=str)
async def test_half_a_producer_is_an_invalid_request(
    client: WireClient, version: int, half: dict[str, object]
) -> None:
    body = await client.call(INIT_PRODUCER_ID, version, **{**INIT, **half})
    assert (body.error_code, body.producer_id, body.producer_epoch) == (42, -1, -1)


async def test_pids_are_unique_when_many_ask_at_once(server: Server) -> None:
    clients = [await server.connect() for _ in range(5)]
    for client in clients:
        for _ in range(60):
            client.send(INIT_PRODUCER_ID, 4, **INIT)
    given = []
    for client in clients:
        bodies = [await client.receive() for _ in range(60)]
        assert {int(body.error_code) for body in bodies} <= {0, 14}
        given += [body.producer_id for body in bodies if body.error_code == 0]
        await client.__aexit__()
    assert len(set(given)) == len(given) >= 100
