"""Kafka's rules of ACLs: a table, and the cache of decisions."""

from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pidlease.kafka.api import API_DELETE_ACLS
from pidlease.kafka.codec.messages import Response
from pidlease.kafka.errors import UpstreamRefusedError
from pidlease.storage.files import RealFiles
from proxy.security.acls import (
    ACL_FILE,
    Acl,
    AclIndex,
    Operation,
    Pattern,
    Permission,
    ResourceKind,
)
from proxy.security.audit_log import AuditLog
from proxy.security.authorizer import NOTED_NAME_MAX, Authorizer, Caller, Right
from proxy.security.entry_file import EntryFile, EntryFileError
from proxy.security.kafka_acls import acl_in
from tests.secure.secured import allow

_OP, _T, _X = Operation, ResourceKind.TOPIC, ResourceKind.TRANSACTIONAL_ID
_PREFIXED, _DENY = Pattern.PREFIXED, Permission.DENY
_HOST = "10.0.0.1"


@pytest.mark.parametrize(("acls", "operation", "name", "expected"), [
    ([], _OP.READ, "t", None),
    ([allow("bob", _OP.READ, _T, "t")], _OP.READ, "t", False),
    ([allow("alice", _OP.READ, _T, "t")], _OP.READ, "t", True),
    ([allow("alice", _OP.READ, _T, "t")], _OP.READ, "t2", None),
    ([allow("alice", _OP.READ, _T, "t")], _OP.WRITE, "t", False),
    ([allow("*", _OP.READ, _T, "t")], _OP.READ, "t", True),
    ([allow("alice", _OP.READ, _T, "*")], _OP.READ, "t", True),
    ([allow("alice", _OP.ALL, _T, "t")], _OP.DELETE, "t", True),
    ([allow("alice", _OP.READ, _T, "t")], _OP.DESCRIBE, "t", True),
    ([allow("alice", _OP.WRITE, _T, "t")], _OP.DESCRIBE, "t", True),
    ([allow("alice", _OP.ALTER_CONFIGS, _T, "t")], _OP.DESCRIBE_CONFIGS, "t", True),
    ([allow("alice", _OP.CREATE, _T, "t")], _OP.DESCRIBE, "t", False),
    ([allow("alice", _OP.DESCRIBE, _T, "t")], _OP.READ, "t", False),
    ([allow("alice", _OP.READ, _T, "or", pattern=_PREFIXED)], _OP.READ, "orders", True),
    ([allow("alice", _OP.READ, _T, "or", pattern=_PREFIXED)], _OP.READ, "o", None),
    ([allow("alice", _OP.READ, _T, "or")], _OP.READ, "orders", None),
    ([allow("alice", _OP.READ, _T, "t", host=_HOST)], _OP.READ, "t", True),
    ([allow("alice", _OP.READ, _T, "t", host="10.0.0.2")], _OP.READ, "t", False),
    ([allow("alice", _OP.READ, _T, "t"), allow("alice", _OP.READ, _T, "*", permission=_DENY)],
     _OP.READ, "t", False),
    ([allow("alice", _OP.ALL, _T, "*"), allow("*", _OP.ALL, _T, "t", permission=_DENY)],
     _OP.READ, "t", False),
    ([allow("alice", _OP.READ, _T, "t"),
      allow("alice", _OP.READ, _T, "t", permission=_DENY, host="10.9.9.9")], _OP.READ, "t", True),
    # A denial of Describe denies no Read; a denial of Read denies no Describe by another entry.
    ([allow("alice", _OP.READ, _T, "t"), allow("alice", _OP.DESCRIBE, _T, "t", permission=_DENY)],
     _OP.READ, "t", True),
    ([allow("alice", _OP.WRITE, _T, "t"), allow("alice", _OP.READ, _T, "t", permission=_DENY)],
     _OP.DESCRIBE, "t", True),
    ([allow("alice", _OP.READ, ResourceKind.GROUP, "t")], _OP.READ, "t", None),
    # Prefixes of several lengths; the longest is the whole name.
    ([allow("bob", _OP.READ, _T, "o", pattern=_PREFIXED),
      allow("alice", _OP.READ, _T, "orders", pattern=_PREFIXED),
      allow("bob", _OP.READ, _T, "orders-2", pattern=_PREFIXED)], _OP.READ, "orders", True),
    ([allow("alice", _OP.ALL, _T, "*"),
      allow("alice", _OP.READ, _T, "orde", permission=_DENY, pattern=_PREFIXED)],
     _OP.READ, "orders", False),
    # Kafka lets * be a prefix.
    ([allow("alice", _OP.READ, _T, "*", pattern=_PREFIXED)], _OP.READ, "t", None),
])  # fmt: skip
def test_decisions(acls: list[Acl], operation: Operation, name: str, expected: bool | None) -> None:
    assert AclIndex(acls).decide("User:alice", _HOST, operation, _T, name) is expected


@pytest.mark.parametrize(("host", "client", "expected"), [
    ("0:0:0:0:0:0:0:1", "::1", True), ("::1", "::1", True), ("FE80::0:1", "fe80::1", True),
    ("::2", "::1", False), ("10.0.0.1", "::1", False), ("localhost", "::1", False),
])  # fmt: skip
def test_an_address_counts_however_it_is_written(host: str, client: str, expected: bool) -> None:
    """Kafka compares with Java's text of an address, so its ACLs have that."""
    entries = [allow("alice", _OP.READ, _T, "t"),
               allow("alice", _OP.READ, _T, "t", host=host, permission=_DENY)]  # fmt: skip
    denied = not AclIndex(entries).decide("User:alice", client, _OP.READ, _T, "t")
    assert denied is expected


@pytest.mark.parametrize(("acls", "expected"), [
    ([], None),
    ([allow("alice", _OP.WRITE, _T, "t")], True),
    ([allow("bob", _OP.WRITE, _T, "t")], None),
    ([allow("alice", _OP.WRITE, _T, "t"), allow("alice", _OP.WRITE, _T, "t", permission=_DENY)],
     None),
    ([allow("alice", _OP.WRITE, _T, "t"), allow("alice", _OP.ALL, _T, "*", permission=_DENY)],
     False),
    ([allow("alice", _OP.WRITE, _T, "abc"),
      allow("*", _OP.WRITE, _T, "ab", permission=_DENY, pattern=_PREFIXED)], None),
    ([allow("alice", _OP.WRITE, _T, "a", pattern=_PREFIXED),
      allow("*", _OP.WRITE, _T, "ab", permission=_DENY, pattern=_PREFIXED)], True),
    ([allow("alice", _OP.WRITE, _T, "*"),
      allow("*", _OP.WRITE, _T, "ab", permission=_DENY, pattern=_PREFIXED)], True),
    ([allow("alice", _OP.WRITE, _T, "*", pattern=_PREFIXED),
      allow("*", _OP.WRITE, _T, "*", permission=_DENY, pattern=_PREFIXED)], None),
])  # fmt: skip
def test_decisions_about_any_topic(acls: list[Acl], expected: bool | None) -> None:
    """KIP-679: Write on any topic allows an idempotent producer."""
    assert AclIndex(acls).decide_any("User:alice", _HOST, _OP.WRITE, _T) is expected


def _authorizer(*acls: Acl, allow_if_none: bool = False) -> Authorizer:
    made = Authorizer(["User:root"], allow_if_none=allow_if_none, audit=AuditLog(None))
    made.replace(acls)
    return made


def test_super_users_and_the_server_s_own_ids() -> None:
    root, alice = Caller("User:root", _HOST), Caller("User:alice", _HOST)
    authorizer = _authorizer(allow("*", _OP.ALL, _X, "*"))
    assert authorizer.allows(root, Right(_OP.WRITE, _T, "t"))
    assert not authorizer.allows(alice, Right(_OP.WRITE, _T, "t"))
    assert authorizer.allows(alice, Right(_OP.WRITE, _X, "x"))
    for caller in (root, alice):
        assert not authorizer.allows(caller, Right(_OP.WRITE, _X, "pidlease/writer"))


def test_without_an_entry_all_may_only_if_so_configured() -> None:
    alice = Caller("User:alice", _HOST)
    entry = allow("bob", _OP.WRITE, _T, "t")
    assert not _authorizer(entry).allows(alice, Right(_OP.WRITE, _T, "u"))
    relaxed = _authorizer(entry, allow_if_none=True)
    assert relaxed.allows(alice, Right(_OP.WRITE, _T, "u"))
    assert not relaxed.allows(alice, Right(_OP.WRITE, _T, "t"))


def test_before_the_first_entries_only_super_users_may_do_something() -> None:
    """With Kafka's ACLs, the HTTP listener is open before Kafka has returned them."""
    made = Authorizer(["User:root"], allow_if_none=True, audit=AuditLog(None))
    alice, right = Caller("User:alice", _HOST), Right(_OP.DESCRIBE, ResourceKind.CLUSTER)
    assert made.allows(Caller("User:root", _HOST), right)
    assert not made.allows(alice, right)
    made.replace(())
    assert made.allows(alice, right)


def _row(response: Response, **fields: Any) -> Any:
    given = {
        "error_code": ErrorCode.none, "error_message": None, "resource_type": 2,
        "resource_name": "t", "pattern_type": 3, "principal": "User:a", "host": "*",
        "operation": 3, "permission_type": 3, **fields,
    }  # fmt: skip
    return response.part("DeleteAclsMatchingAcl", **given)


def test_an_acl_of_a_newer_kafka() -> None:
    """What nothing here has counts for nothing; what might deny anything is not left out."""
    response = Response(API_DELETE_ACLS, 3)
    known = _row(response)
    assert acl_in(known, known) == allow("a", _OP.READ, _T, "t")
    for fields in ({"operation": 99}, {"resource_type": 99}):
        newer = _row(response, **fields)
        assert acl_in(newer, newer) is None
    for fields in ({"pattern_type": 5}, {"permission_type": 4}):
        newer = _row(response, **fields)
        with pytest.raises(UpstreamRefusedError, match="does not know"):
            acl_in(newer, newer)


def test_a_change_drops_all_cached_decisions() -> None:
    alice, right = Caller("User:alice", _HOST), Right(_OP.WRITE, _T, "t")
    authorizer = _authorizer(allow("alice", _OP.WRITE, _T, "t"))
    assert authorizer.allows(alice, right)
    before = authorizer.version
    authorizer.replace(())
    assert authorizer.version is not before
    assert not authorizer.allows(alice, right)


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.security.authorizer._DECISIONS_MAX", 10)
    authorizer = _authorizer(allow("alice", _OP.WRITE, _T, "t", pattern=_PREFIXED))
    alice = Caller("User:alice", _HOST)
    for number in range(100):
        assert authorizer.allows(alice, Right(_OP.WRITE, _T, f"t{number}"))
    assert len(authorizer._decisions) <= 10


def test_long_names_are_not_remembered() -> None:
    """Once a client without any right filled the memory, with names as long as its requests."""
    authorizer = _authorizer(allow("alice", _OP.WRITE, _T, "t"))
    alice = Caller("User:alice", _HOST)
    for number in range(100):
        assert not authorizer.permits(alice, Right(_OP.WRITE, _T, f"{number}" + "x" * 1_000_000))
    assert not authorizer._decisions
    assert not authorizer.allows(alice, Right(_OP.WRITE, _T, "x" * NOTED_NAME_MAX))
    assert len(authorizer._decisions) == 1


def test_the_file_keeps_comments_and_entries(tmp_path: Path) -> None:
    file = EntryFile(RealFiles(), tmp_path / "security", ACL_FILE)
    assert file.read() == frozenset()
    entry = allow("alice", _OP.READ, _T, "ö", pattern=_PREFIXED, host=_HOST)
    file.change(lambda _: [entry])
    text = file.path.read_text()
    file.path.write_text(f"# ours\n\n{text}\n# and this\n")
    assert file.read() == {entry}
    other = allow("bob", _OP.ALL, _T, "*", permission=_DENY)
    assert file.change(lambda acls: acls | {other}) == {entry, other}
    assert file.path.read_text().startswith("# ours\n\n{")
    assert file.read() == {entry, other}


_GOOD = '{"principal": "User:a", "operation": "read", "kind": "topic", "name": "t"}'


@pytest.mark.parametrize("line", [
    "{", "[]", "1", '{"principal": "User:a"}', _GOOD.replace("read", "reed"),
    _GOOD.replace("topic", "any"), _GOOD.replace("User:a", "a"), _GOOD.replace("User:a", "User:"),
    _GOOD.replace("User:a", "Group:a"), _GOOD.replace('"t"', '""'), _GOOD.replace('"t"', "1"),
    _GOOD.replace("}", ', "hosts": "x"}'), _GOOD.replace("topic", "cluster"),
    _GOOD.replace("}", ', "pattern": "prefixed"}').replace('"t"', '"*"'), "[" * 100_000,
])  # fmt: skip
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    file = EntryFile(RealFiles(), tmp_path, ACL_FILE)
    file.path.write_text(f"{_GOOD}\n{line}\n")
    with pytest.raises(EntryFileError, match="line 2"):
        file.read()
    with pytest.raises(EntryFileError, match="line 2"):
        file.change(lambda acls: acls)
    file.path.write_text(f"{_GOOD}\n")
    assert file.read() == {allow("a", _OP.READ, _T, "t")}
