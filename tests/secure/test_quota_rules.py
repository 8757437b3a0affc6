"""The precedence of quotas, their file, and the buckets of use."""

import itertools
import random
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from pidlease.kafka.api import API_PRODUCE
from pidlease.kafka.codec.messages import read_request
from pidlease.kafka.codec.primitives import INT32, read_request_header
from pidlease.kafka.codec.produce import (
    PartitionResponse,
    read_produce_request,
    write_produce_response,
)
from pidlease.kafka.codec.time_slices import at_once
from pidlease.storage.files import RealFiles
from proxy.kafka.access.refused_responses import refused_response
from proxy.kafka.access.throttle_time import has_throttle_time, with_throttle_time
from proxy.security import quotas as quotas_module
from proxy.security import token_bucket
from proxy.security.entry_file import EntryFile, EntryFileError
from proxy.security.quota_rules import (
    FETCHED_BYTES,
    PRODUCED_BYTES,
    QUOTA_FILE,
    REQUESTS,
    Entity,
    QuotaError,
    checked_limit,
    effective,
    rules_of,
)
from proxy.security.quotas import Quotas
from proxy.security.token_bucket import TokenBucket
from tests.kafka_listener.messages import decode_response, encode_request
from tests.secure import rights_requests
from tests.secure.test_rights_matrix import VERSIONS


class _Clock:
    """The monotonic clock of quotas, which a test moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (quotas_module, token_bucket):
            monkeypatch.setattr(module, "monotonic", lambda: self.now)


#: From the most specific to the least, as the class comment of Kafka's ClientQuotaManager has them.
_IN_ORDER = [
    Entity("alice", "app"), Entity("alice", None), Entity("alice"),
    Entity(None, "app"), Entity(None, None), Entity(None),
    Entity(client_id="app"), Entity(client_id=None),
]  # fmt: skip


def test_the_most_specific_quota_counts() -> None:
    """Of each of the 256 sets of entities that there may be."""
    others = {Entity("bob", "app"): {PRODUCED_BYTES: 99.0}, Entity("alice", "x"): {REQUESTS: 98.0}}
    for size in range(len(_IN_ORDER) + 1):
        for present in itertools.combinations(range(len(_IN_ORDER)), size):
            rules = {_IN_ORDER[place]: {PRODUCED_BYTES: place + 1.0} for place in present}
            found = effective({**rules, **others}, PRODUCED_BYTES, "alice", "app")
            assert found == ((_IN_ORDER[present[0]], present[0] + 1.0) if present else None)


def test_each_key_has_its_own_precedence() -> None:
    rules = {Entity("alice"): {FETCHED_BYTES: 1.0}, Entity(None): {PRODUCED_BYTES: 2.0}}
    assert effective(rules, PRODUCED_BYTES, "alice", "") == (Entity(None), 2.0)
    assert effective(rules, FETCHED_BYTES, "alice", "") == (Entity("alice"), 1.0)
    assert effective(rules, FETCHED_BYTES, "bob", "") is None


def test_a_quota_of_a_user_is_shared_by_its_client_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    _Clock(monkeypatch)
    quotas = Quotas(10.0, 1.0)
    quotas.replace({
        Entity("alice"): {REQUESTS: 1.0}, Entity("bob", None): {REQUESTS: 1.0},
        Entity(None): {REQUESTS: 1.0}, Entity(client_id="app"): {PRODUCED_BYTES: 1.0},
    })  # fmt: skip

    def bucket(user: str, client_id: str, key: str = "requests") -> object:
        found = quotas.buckets(user, client_id)
        assert found is not None
        return getattr(found, key)

    assert bucket("alice", "a") is bucket("alice", "b")
    assert bucket("bob", "a") is not bucket("bob", "b")  # each client id of bob
    assert bucket("carol", "a") is bucket("carol", "b")
    assert bucket("carol", "a") is not bucket("dora", "a")  # the default is no common quota
    assert bucket("carol", "app", "produced") is bucket("dora", "app", "produced")
    assert bucket("carol", "app2", "produced") is None


@pytest.mark.parametrize(("key", "value"), [
    (REQUESTS, 0.0), (REQUESTS, -1.0), (REQUESTS, float("nan")), (REQUESTS, float("inf")),
    (PRODUCED_BYTES, 1.5), (PRODUCED_BYTES, 0.0), ("request_percentage", 10.0),
    ("controller_mutation_rate", 1.0), ("nonsense", 1.0),
])  # fmt: skip
def test_invalid_limits(key: str, value: float) -> None:
    with pytest.raises(QuotaError, match=key):
        checked_limit(key, value)


_GOOD = '{"user": "a", "request_rate": 5}'


@pytest.mark.parametrize("line", [
    "{", "[]", "1", "{}", '{"user": "a"}', '{"request_rate": 5}', '{"user": "", "request_rate": 5}',
    '{"user": 1, "request_rate": 5}', '{"user": "a", "request_rate": "5"}',
    '{"user": "a", "request_rate": true}', '{"user": "a", "request_rate": NaN}',
    '{"user": "a", "rate": 5}', '{"group": "a", "request_rate": 5}',
    '{"user": "a", "client-id": "b", "leases_max": 5}', '{"client-id": null, "leases_max": 5}',
    '{"user": "a", "leases_max": 5.5}', '{"user": "a", "request_rate": 1%s}' % ("0" * 309),
    '{"user": "%s", "request_rate": 5}' % ("x" * 250), '{"user": "a", "request_rate": null}',
])  # fmt: skip
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    file = EntryFile(RealFiles(), tmp_path, QUOTA_FILE)
    file.path.write_text(f"{_GOOD}\n{line}\n")
    with pytest.raises(EntryFileError, match="line 2"):
        file.read()


def test_two_lines_of_an_entity_are_an_error(tmp_path: Path) -> None:
    file = EntryFile(RealFiles(), tmp_path, QUOTA_FILE)
    file.path.write_text(f'{_GOOD}\n{{"user": "a", "consumer_byte_rate": 5}}\n')
    with pytest.raises(EntryFileError, match="line 2: there are two lines of the same one"):
        file.read()


def test_the_file_keeps_comments_and_defaults(tmp_path: Path) -> None:
    file = EntryFile(RealFiles(), tmp_path, QUOTA_FILE)
    file.path.write_text(
        f"# ours\n{_GOOD}\n"
        '{"user": null, "client-id": null, "request_rate": 0.5, "producer_byte_rate": 1e6}\n'
    )
    rules = rules_of(file.read())
    assert rules == {
        Entity("a"): {REQUESTS: 5}, Entity(None, None): {REQUESTS: 0.5, PRODUCED_BYTES: 1e6},
    }  # fmt: skip
    file.change(lambda quotas: quotas)
    assert rules_of(file.read()) == rules
    assert file.path.read_text().startswith("# ours\n{")


def test_a_bucket_throttles_as_kafkas_window_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka: throttle = (rate in the window - bound) / bound * window, from an idle start."""
    clock = _Clock(monkeypatch)
    bound, window = 1000.0, 10.0
    for used in (10_000, 10_001, 25_000, 1_000_000):
        bucket = TokenBucket(bound, window)
        expected = max((used / window - bound) / bound * window, 0)
        assert bucket.take(used, clock.now) == pytest.approx(expected)
        later = clock.now + expected / 2
        assert bucket.debt_seconds(later) == pytest.approx(expected / 2)
        assert bucket.debt_seconds(clock.now + expected) == pytest.approx(0, abs=1e-9)
    bucket = TokenBucket(bound, window)
    bucket.take(30_000, clock.now)
    bucket.change_rate(2000)
    assert bucket.debt_seconds(clock.now) == pytest.approx(10)
    assert not bucket.is_full(clock.now + 19.9)
    assert bucket.is_full(clock.now + 20.1)


def test_use_is_bounded_whatever_the_client_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """In no span of time more than its rate, a full window, and what is handled in debt."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    clock = _Clock(monkeypatch)
    rate, window, largest = 100.0, 10.0, 500
    quotas = Quotas(window, 1.0)
    quotas.replace({Entity(None): {PRODUCED_BYTES: rate}})
    used: list[tuple[float, int]] = []
    for _ in range(5000):
        clock.now += chance.choice((0, 0, 0.001, 0.1, 3))
        buckets = quotas.buckets("alice", f"client-{chance.randrange(100)}")
        assert buckets is not None
        assert buckets.produced is not None
        if not buckets.produced.is_overdrawn(clock.now):
            size = chance.randrange(largest)
            used.append((clock.now, size))
            buckets.produced.take(size, clock.now)
    for first in range(0, len(used), 50):
        total = 0
        for at, size in used[first:]:
            total += size
            assert total <= 2 * rate * window + largest + rate * (at - used[first][0]) + 1e-6


def test_memory_is_bounded_and_no_debt_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(monkeypatch)
    monkeypatch.setattr(quotas_module, "_BUCKETS_MAX", 100)
    monkeypatch.setattr(quotas_module, "_CLIENTS_MAX", 100)
    quotas = Quotas(10.0, 1.0)
    quotas.replace({Entity("mallory", None): {REQUESTS: 1.0}, Entity("alice"): {REQUESTS: 1.0}})

    def use(user: str, client_id: str, times: int = 1) -> float:
        found = quotas.buckets(user, client_id)
        assert found is not None
        assert found.requests is not None
        return found.requests.take(times, clock.now)

    use("alice", "", 1000)
    for number in range(1000):
        use("mallory", f"{number}" * 1000, 11)
    assert len(quotas._buckets) <= 100
    assert len(quotas._shared) == 1
    assert len(quotas._clients) <= 100
    assert all(len(client_id) <= 250 for _, client_id in quotas._clients)
    # Those that found no room share one quota, and owe what they used.
    assert use("mallory", "another", 0) > 1000
    assert use("alice", "", 0) == pytest.approx(990)
    clock.now += 50  # all but alice owe nothing, so there is room again
    assert use("mallory", "yet another", 0) == 0
    assert use("alice", "", 0) == pytest.approx(940)


def test_quotas_that_are_gone_are_counted_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    _Clock(monkeypatch)
    quotas = Quotas(10.0, 1.0)
    changes: list[bool] = []
    quotas.on_change.append(lambda: changes.append(quotas.active))
    quotas.replace({Entity("alice"): {REQUESTS: 1.0}})
    assert quotas.buckets("alice", "") is not None
    quotas.replace({Entity("alice"): {REQUESTS: 1.0}})
    quotas.replace({})
    assert quotas.buckets("alice", "") is None
    assert changes == [True, False]
    assert not quotas._buckets


@pytest.mark.parametrize(("key", "version"), [
    (key, version)
    for key, (low, high) in sorted(VERSIONS.items())
    if key in rights_requests.REQUESTS
    for version in range(low, high + 1)
])  # fmt: skip
def test_every_response_says_for_how_long(key: int, version: int) -> None:
    """Whole and in parts, as they are sent."""
    frame = bytearray(encode_request(key, version, rights_requests.REQUESTS[key], 7))
    header = read_request_header(frame)
    if key == API_PRODUCE:
        request = read_produce_request(frame, header.body, version)
        answer = write_produce_response(version, 7, request, [PartitionResponse(0, 5, 0)])
    else:
        answer = at_once(refused_response(header, read_request(header, frame), ErrorCode.none))
    has = hasattr(decode_response(key, version, answer)[1], "throttle_time")
    assert has_throttle_time(key, version) == has
    whole = INT32.pack(len(answer)) + answer
    for cuts in ((), (4,), (4, 8), (4, 9), (4, 10), (2, 6, 10, 11)):
        places = [0, *cuts, len(whole)]
        parts = [whole[start:end] for start, end in itertools.pairwise(places)]
        changed = b"".join(with_throttle_time(parts, key, version, 1.2345))
        assert len(changed) == len(whole)
        correlation, body = decode_response(key, version, changed[4:])
        assert correlation == 7
        if has:
            assert body.throttle_time.total_seconds() == pytest.approx(1.234, abs=0.001)
        else:
            assert changed == whole


def test_logins_have_no_throttle_time() -> None:
    """Nor has ApiVersions here, whose connection is not read all the same."""
    assert VERSIONS.keys() - rights_requests.REQUESTS.keys() == {17, 18, 36}
    for key in (17, 18, 36):
        for version in range(VERSIONS[key][0], VERSIONS[key][1] + 1):
            assert not has_throttle_time(key, version)
