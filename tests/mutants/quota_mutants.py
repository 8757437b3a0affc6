"""Broken quotas: something that a client uses is not counted, or does not throttle it."""

from typing import Final

from tests.mutants.mutant import Mutant

_CONNECTION: Final = "proxy/kafka/access/metered_connection.py"
_METER: Final = "proxy/http/access/request_meter.py"
_QUOTAS: Final = "proxy/security/quotas.py"
_RULES: Final = "proxy/security/quota_rules.py"
_KAFKA_TESTS: Final = "tests/secure/test_quotas.py"
_HTTP_TESTS: Final = "tests/secure/test_http_quotas.py"
_RULE_TESTS: Final = "tests/secure/test_quota_rules.py"

QUOTAS: Final = (
    Mutant(
        "a connection is read while its client is throttled",
        _CONNECTION,
        "        if self._unmute is None and self._awaited is None:\n",
        "        if self._awaited is None:\n",
        (f"{_KAFKA_TESTS}::test_the_response_says_how_long_and_then_nothing_is_read",),
    ),
    Mutant(
        "a new connection has a request free",
        _CONNECTION,
        "        if overdrawn is not None and self._put_back(frame):\n",
        "        if overdrawn is not None and not self._start:\n",
        (f"{_KAFKA_TESTS}::test_a_new_connection_has_no_request_free",),
    ),
    Mutant(
        "a new connection has a large request free",
        _CONNECTION,
        " else _overdrawn(buckets, header.api_key, now)\n",
        " else None\n",
        (f"{_KAFKA_TESTS}::test_a_new_connection_has_no_request_free",),
    ),
    Mutant(
        "a large request is not counted when it begins",
        _CONNECTION,
        "                buckets.produced.take(size, now)\n",
        "                buckets.produced.take(0, now)\n",
        (f"{_KAFKA_TESTS}::test_many_large_requests_cannot_begin_at_once",),
    ),
    Mutant(
        "a large request with half a header gets its buffer",
        _CONNECTION,
        "                return  # the rest of the header comes; then this is decided\n",
        "                pass\n",
        (f"{_KAFKA_TESTS}::test_a_large_request_that_arrives_in_drops",),
    ),
    Mutant(
        "any number of connections waits for a quota",
        _CONNECTION,
        "        if len(bucket.waiting) >= WAITING_MAX:\n",
        "        if len(bucket.waiting) < 0:\n",
        (f"{_KAFKA_TESTS}::test_requests_that_wait_do_so_in_order_and_only_so_many",),
    ),
    Mutant(
        "fetches that wait together all get records",
        _CONNECTION,
        "        seconds = bucket.debt_seconds(now)\n        if seconds > 0:\n",
        "        seconds = bucket.debt_seconds(now)\n        if seconds < 0:\n",
        (f"{_KAFKA_TESTS}::test_fetches_that_wait_together_share_the_quota",),
    ),
    Mutant(
        "a fetch may take more than a window has",
        _CONNECTION,
        "        most = min(most, max(int(bucket.size), 1))\n",
        "        most = min(most, 1 << 30)\n",
        (f"{_KAFKA_TESTS}::test_a_fetch_beyond_the_quota_is_empty",),
    ),
    Mutant(
        "a change of quotas frees nobody",
        _CONNECTION,
        "            self._unmute.cancel()\n            self._end_mute()\n",
        "            pass\n",
        (f"{_KAFKA_TESTS}::test_a_change_frees_those_that_are_throttled",),
    ),
    Mutant(
        "each client id of a user has its quota",
        _QUOTAS,
        "            ABSENT if entity.client_id == ABSENT else client_id,\n",
        "            client_id,\n",
        (f"{_RULE_TESTS}::test_a_quota_of_a_user_is_shared_by_its_client_ids",),
    ),
    Mutant(
        "a debt is forgotten when there are many clients",
        _QUOTAS,
        " if not each.is_full(now)\n",
        " if each.waiting\n",
        (f"{_RULE_TESTS}::test_memory_is_bounded_and_no_debt_is_forgotten",),
    ),
    Mutant(
        "the default of users comes before a client id of the user",
        _RULES,
        "        Entity(user, client_id), Entity(user, None), Entity(user),\n",
        "        Entity(user, client_id), Entity(None), Entity(user, None), Entity(user),\n",
        (f"{_RULE_TESTS}::test_the_most_specific_quota_counts",),
    ),
    Mutant(
        "a debt at one listener is none at the other",
        _METER,
        "            if bucket is not None and (seconds := bucket.debt_seconds(now)) > 0:\n",
        "            if bucket is not None and (seconds := bucket.debt_seconds(now)) > 1e9:\n",
        (f"{_HTTP_TESTS}::test_both_listeners_share_a_quota",),
    ),
    Mutant(
        "appends at once are not bounded",
        _METER,
        "        if buckets.produced.is_overdrawn(now):\n",
        "        if seconds < 0:\n",
        (f"{_HTTP_TESTS}::test_appends_that_began_together_are_bounded",),
    ),
    Mutant(
        "a compressed body counts as it came",
        "proxy/http/current_caller.py",
        "        current.count_produced(batch_bytes - body_bytes)\n",
        "        current.count_produced(0)\n",
        (f"{_HTTP_TESTS}::test_a_compressed_body_counts_as_what_is_stored",),
    ),
    Mutant(
        "reads at once are not bounded",
        _METER,
        "                if seconds > 0 and not self._streams:\n",
        "                if seconds < 0 and not self._streams:\n",
        (f"{_HTTP_TESTS}::test_reads_that_began_together_are_bounded",),
    ),
    Mutant(
        "a user leases any number of PIDs",
        "pidlease/engine/leases/leases.py",
        "            raise UserBoundError(_USER_BOUND, refusal)\n        pid = make_pid(",
        "            self.expire()\n        pid = make_pid(",
        ("tests/secure/test_lease_bounds.py::test_leases_of_a_user_are_bounded",),
    ),
    Mutant(
        "a Kafka client leases for no user",
        "proxy/kafka/access/secured_apis.py",
        "        if header.api_key != API_INIT_PRODUCER_ID:\n",
        "        if header.api_key == API_INIT_PRODUCER_ID:\n",
        ("tests/secure/test_lease_bounds.py::test_leases_of_a_user_are_bounded",),
    ),
    Mutant(
        "an ended lease stays counted",
        "pidlease/engine/leases/leases.py",
        "                self.owners.ended(pid)\n",
        "                pass\n",
        ("tests/secure/test_lease_bounds.py::test_what_is_counted_is_forgotten_with_the_lease",),
    ),
    Mutant(
        "events do not wait",
        _METER,
        "                    await self._wait(check)\n",
        "                    check()\n",
        (f"{_HTTP_TESTS}::test_an_event_waits_until_what_is_owed_is_paid",),
    ),
)
