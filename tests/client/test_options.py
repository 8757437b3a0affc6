"""Options that make no sense are refused before anything is connected."""

from random import Random
from typing import Any

import pytest
from aiokafka.partitioner import murmur2 as theirs

from pidlease.client import LeasedProducer
from pidlease.client.partitioner import Partitioner
from pidlease.core.key_partition import murmur2

GIVEN = {"bootstrap_servers": "127.0.0.1:1", "leases": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"policy": "kafka"}, "policy"),
        ({"policy": "monotonic"}, "needs a name"),
        ({"name": ""}, "name"),
        ({"name": "\u00e4" * 129}, "name"),
        ({"name": "n", "pid": 5}, "cannot both"),
        ({"leases": "127.0.0.1:8080"}, "leases.*'127.0.0.1:8080'"),
        ({"leases": "kafka://127.0.0.1:8080"}, "leases"),
        ({"leases": "http://:8080"}, "leases"),
        ({"leases": "http://127.0.0.1:http"}, "leases"),
        ({"leases": "http://user:secret@127.0.0.1:99999"}, "it is '127.0.0.1:99999'"),
        ({"pid": 0}, "pid"),
        ({"pid": -1}, "pid"),
        ({"generation": 5}, "pid"),
        ({"sequences": {("t", 0): 1}}, "pid"),
        ({"pid": 5, "sequences": {("t", 0): -1}}, "sequences"),
        ({"pid": 5, "generation": 2**63}, "generation"),
        ({"initial_sequence_id": 5}, "initial_sequence_id"),
        ({"name": "n", "policy": "monotonic", "initial_sequence_id": -2}, "initial_sequence_id"),
        ({"compression_type": "brotli"}, "compression_type"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"max_in_flight": 6}, "max_in_flight"),
        ({"renew_before": 0}, "renew_before"),
        ({"renew_before": 0.51}, "renew_before"),
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"max_batch_size": 2000, "max_request_size": 1999}, "max_batch_size"),
        ({"max_request_size": -1}, "max_request_size"),
        ({"buffer_memory": 0}, "buffer_memory"),
        ({"delivery_timeout_ms": 0}, "delivery_timeout_ms"),
        ({"request_timeout_ms": float("nan")}, "request_timeout_ms"),
        ({"linger_ms": -1}, "linger_ms"),
        ({"retry_backoff_ms": 50, "retry_backoff_max_ms": 49}, "retry_backoff_max_ms"),
        ({"security_protocol": "SSL"}, "ssl_context"),
        ({"acks": 1}, "acks"),
    ],
)
def test_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        LeasedProducer(**{**GIVEN, **wrong})


@pytest.mark.parametrize("missing", list(GIVEN))
def test_what_must_be_given(missing: str) -> None:
    left = {name: value for name, value in GIVEN.items() if name != missing}
    with pytest.raises(ValueError, match=missing):
        LeasedProducer(**left)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "hashed"),
    # Kafka's UtilsTest.testMurmur2
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536),
     (b"a-little-bit-longer-string", -1486304829), (b"abc", 479470107)],
)  # fmt: skip
def test_keys_are_spread_as_the_java_client_does(key: bytes, hashed: int) -> None:
    for count in (1, 3, 7, 1000):
        partitioner = Partitioner(range(count), range(count), 100)
        assert partitioner.of(key, 5) == (hashed & 0x7FFFFFFF) % count


def test_the_hash_is_aiokafka_s() -> None:
    random = Random(3)
    for size in range(40):
        key = random.randbytes(size)
        assert murmur2(key) == theirs(key) & 0xFFFFFFFF, key


def test_without_a_key_a_partition_gets_a_batch() -> None:
    partitioner = Partitioner(range(100), [3, 5, 8], 1000)
    chosen = [partitioner.of(None, 100) for _ in range(1000)]
    assert set(chosen) == {3, 5, 8}
    assert all(len(set(chosen[at : at + 10])) == 1 for at in range(0, 1000, 10))


def test_with_no_leader_at_all_any_partition() -> None:
    assert Partitioner([4], [], 10).of(None, 1) == 4
