"""Broken bodies of HTTP, and idempotency keys: keys in flight, the scope, the capacity."""

from typing import Final

from tests.mutants.mutant import Mutant

_KEYS: Final = "pidlease/core/idempotency_keys.py"
_IN_FLIGHT: Final = "pidlease/engine/keys_in_flight.py"
_OUTCOMES: Final = "pidlease/engine/append_outcome.py"
_TESTS: Final = "tests/http_api/test_idempotency_key.py"
_OTHER: Final = f"{_TESTS}::test_another_body_is_refused"
_ADDED: Final = f"{_TESTS}::test_a_key_is_known_after_partitions_were_added"
_CAPACITY: Final = f"{_TESTS}::test_keys_have_a_capacity_of_their_own"
_BATCH: Final = "proxy/http/request_batch.py"
_UNIQUE: Final = "tests/http_api/test_unique_keys.py"

IDEMPOTENCY: Final = (
    Mutant(
        "the body of a request with a key does not count",
        _KEYS,
        "    found.update(body)\n",
        "",
        (_OTHER,),
    ),
    Mutant(
        "the type of a body does not count",
        _KEYS,
        '    found = hashlib.sha256(kind + b"\\0")\n',
        "    found = hashlib.sha256(kind[:0])\n",
        (_OTHER,),
    ),
    Mutant(
        "an idempotency key is a Producer-Id",
        _KEYS,
        "        return KEY_MARK + key\n",
        "        return key\n",
        (f"{_TESTS}::test_a_key_is_no_producer_id", _OTHER),
    ),
    Mutant(
        "another body with a smaller digest counts as a duplicate",
        _OUTCOMES,
        "    if kind is Kind.OVERLAP or (kind is Kind.DUPLICATE and verdict.offset < 0):\n",
        "    if kind is Kind.OVERLAP:\n",
        (_OTHER,),
    ),
    Mutant(
        "a key in flight is sent again",
        _IN_FLIGHT,
        "        if partition in partitions:\n",
        "        if not partitions is partitions:\n",
        (f"{_TESTS}::test_a_key_in_flight_is_refused_for_now",),
    ),
    Mutant(
        "a key in flight stays in flight",
        _IN_FLIGHT,
        "            partitions.remove(partition)\n",
        "",
        (f"{_TESTS}::test_the_same_request_is_stored_once",),
    ),
    Mutant(
        "a key is not looked for on other partitions",
        _IN_FLIGHT,
        "        if pid is None:\n",
        "        if pid != 0:\n",
        (_ADDED,),
    ),
    Mutant(
        "keys take the slots of leases",
        "pidlease/engine/leases/leases.py",
        "        return self.keys if is_of_key(pid) else self.ring\n",
        "        return self.ring\n",
        (_CAPACITY,),
    ),
    Mutant(
        "keys never end",
        "pidlease/engine/leases/leases.py",
        "        gone += self.keys.expire(self._clock_ms(), self._stays_until_ms)\n",
        "",
        (_CAPACITY,),
    ),
    Mutant(
        "a key that is twice in a body of records drops the first value",
        _BATCH,
        "        if not _has_unique_keys(body, request.records, 1,"
        " len(request.model_fields_set)):\n",
        "        if False:\n",
        (_UNIQUE,),
    ),
    Mutant(
        "a key that is twice in a body with an object of base64 is not noticed",
        _BATCH,
        "    return found_keys == keys + found_objects - objects\n",
        "    return found_keys <= keys + found_objects\n",
        (_UNIQUE,),
    ),
    Mutant(
        "a lease with a key twice is granted ahead of the framework",
        "proxy/http/direct_leases.py",
        " if keys_and_objects(body) == (len(wanted.model_fields_set), 1) else None\n",
        "\n",
        (_UNIQUE,),
    ),
    Mutant(
        "a first record without a time gets the time of the second one",
        _BATCH,
        "                shift = int(time_ms == _NO_TIMESTAMP)\n",
        "                shift = 0\n",
        ("tests/http_api/test_records_append.py::test_what_is_read_can_be_written",),
    ),
)
