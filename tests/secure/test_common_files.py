"""Users, ACLs and quotas that servers have in common: two data directories, and a coordinator."""

import asyncio
import shutil
from functools import partial
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any, Final

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from pidlease.coordination.common_files import CommonFilesError, CommonFileTooLongError
from pidlease.coordination.journal.journal import JournalError, Row
from pidlease.coordination.journal.journal_files import JournalFiles
from pidlease.storage.files import LockedError, RealFiles
from proxy.security.acls import ACL_FILE, Acl, Operation, Pattern, ResourceKind
from proxy.security.common_file import CommonFile
from proxy.security.entry_file import EntryFile, EntryFileError
from proxy.security.quota_rules import QUOTA_FILE, REQUESTS, Entity, Quota
from proxy.security.scram_credentials import SHA_256, USER_FILE, Credential, changed
from proxy.security.security import Security
from proxy.security.security_config import SecurityConfig
from tests.client.harness import until
from tests.crash.seeds import new_random
from tests.secure.secured import LOGIN, allow, write_acls
from tests.unit.coordination.memory_journal import MemoryJournal

_A, _B, _C, _D = (allow(each, Operation.READ, ResourceKind.TOPIC, "t") for each in "abcd")


class _Server:
    """The ACLs of a server."""

    def __init__(self, folder: Path, journal: MemoryJournal) -> None:
        self.journal = MemoryJournal(journal)
        self._folder = folder
        self.use(RealFiles())

    def use(self, files: RealFiles) -> None:
        """Start with the file of this folder."""
        self.file: EntryFile[Acl] = EntryFile(files, self._folder / "security", ACL_FILE)
        self.start()

    def start(self) -> None:
        """As after a restart: nothing is in memory."""
        self.common = CommonFile(self.file, JournalFiles(self.journal))

    def edit(self, *acls: Acl) -> None:
        """As by an operator, who knows nothing of other servers."""
        self.file.change(lambda _: acls)

    def sync(self) -> frozenset[Acl]:
        self.common.sync()
        return self.file.read()

    @property
    def needs_sync(self) -> bool:
        self.journal.refresh()
        return self.common.needs_sync()


@pytest.fixture
def pair(tmp_path: Path) -> tuple[_Server, _Server]:
    rows = MemoryJournal()
    return _Server(tmp_path / "one", rows), _Server(tmp_path / "two", rows)


def _agreed(pair: tuple[_Server, _Server], *acls: Acl) -> tuple[_Server, _Server]:
    """Both servers, when they have these ACLs in common."""
    one, two = pair
    one.edit(*acls)
    one.sync()
    two.sync()
    return one, two


def test_what_one_changes_the_other_has(pair: tuple[_Server, _Server]) -> None:
    one, two = pair
    assert one.sync() == two.sync() == frozenset()
    assert not one.file.path.exists(), "nothing was made of nothing"
    one.edit(_A, _B)
    assert one.sync() == two.sync() == {_A, _B}
    two.edit(_B, _C)
    assert two.sync() == {_B, _C}
    assert one.needs_sync
    assert one.sync() == two.sync() == {_B, _C}
    assert one.sync() == two.sync() == {_B, _C}
    assert not one.needs_sync
    assert not two.needs_sync
    one.edit(_B, _C)
    assert one.needs_sync
    assert one.common.change(lambda acls: acls | {_D}) == {_B, _C, _D}
    assert one.file.read() == two.sync() == {_B, _C, _D}
    puts = one.journal.puts + two.journal.puts
    assert one.sync() == two.sync() == {_B, _C, _D}
    assert one.journal.puts + two.journal.puts == puts, "there was nothing to do"


def test_changes_at_both_servers_are_made_together(pair: tuple[_Server, _Server]) -> None:
    one, two = _agreed(pair, _A, _B)
    one.edit(_B, _C)  # A is removed here, and B there
    two.edit(_A, _D)
    assert one.sync() == {_B, _C}
    assert two.sync() == one.sync() == {_C, _D}


def test_a_change_by_a_request_has_what_others_have_changed(pair: tuple[_Server, _Server]) -> None:
    one, two = _agreed(pair, _A)
    one.edit(_B)
    one.sync()
    assert two.common.change(lambda acls: acls | {_C}) == {_B, _C}
    two.edit(_D)
    assert two.common.change(lambda acls: acls | {_A}) == {_A, _D}
    # Just before it is stored, another server stores something.
    two.journal.meanwhile = lambda: one.common.change(lambda acls: acls | {_B})
    assert two.common.change(lambda acls: acls - {_D}) == {_A, _B}
    assert one.sync() == {_A, _B}


def test_a_server_with_a_file_of_its_own(pair: tuple[_Server, _Server]) -> None:
    """The first server's file becomes the common one. That of another server is kept aside."""
    one, two = pair
    one.edit(_A)
    two.edit(_B)
    one.sync()
    with capture_logs() as lines:
        assert two.sync() == {_A}
    assert [each["event"] for each in lines] == [
        "the servers have another file in common; this one's does not count any more"
    ]
    kept = two.file.path.with_name("acls.before-common")
    assert two.file.parse(kept.read_bytes()) == {_B}
    assert kept.stat().st_mode & 0o077 == 0
    assert two.sync() == one.sync() == {_A}
    two.edit(_B)  # from now on it is a change like any other
    assert two.sync() == one.sync() == {_B}


def test_a_file_that_is_missing_is_restored(pair: tuple[_Server, _Server]) -> None:
    one, two = _agreed(pair, _A)
    two.file.path.unlink()
    with capture_logs() as lines:
        assert two.sync() == one.sync() == {_A}
    assert [each["event"] for each in lines] == [
        "a file that servers have in common was missing here"
    ]
    two.file.path.write_text("")  # whoever wants none says so
    assert two.sync() == one.sync() == frozenset()


def test_a_change_while_the_server_is_stopped_counts(pair: tuple[_Server, _Server]) -> None:
    one, two = _agreed(pair, _A)
    two.edit(_A, _B)
    one.edit(_A, _C)
    one.sync()
    two.start()
    assert two.sync() == one.sync() == {_A, _B, _C}


def test_comments_are_kept(pair: tuple[_Server, _Server]) -> None:
    one, two = pair
    one.edit(_A)
    one.file.path.write_text("# ours\n" + one.file.path.read_text())
    one.sync()
    two.sync()
    assert two.file.path.read_bytes() == one.file.path.read_bytes()
    two.common.change(lambda acls: acls | {_B})
    one.sync()
    assert one.file.path.read_text().startswith("# ours\n{")


def test_a_broken_file_is_passed_on_by_nobody(pair: tuple[_Server, _Server]) -> None:
    one, two = _agreed(pair, _A)
    good = two.file.path.read_bytes()
    two.file.path.write_text("nonsense\n")
    with pytest.raises(EntryFileError, match=r"line 1: .* remove it to have theirs"):
        two.sync()
    with pytest.raises(EntryFileError, match="line 1"):
        two.common.change(lambda acls: acls)
    assert one.sync() == {_A}
    two.file.path.write_bytes(good)
    assert two.sync() == {_A}
    for content in ("nonsense", "eJwD", "", None):
        one.journal.put([Row("file", "acls", {"content": content})])
        with pytest.raises(CommonFilesError, match="what the coordinator has as acls"):
            two.sync()
        assert two.file.read() == {_A}
    two.journal.put([Row("file", "acls", _stored(b"nonsense\n"))])
    with pytest.raises(EntryFileError, match="the acls of all servers, line 1"):
        two.sync()
    assert two.file.read() == {_A}
    assert not two.needs_sync, "nothing is tried again until a file changes"
    two.edit(_B)  # as an operator repairs it
    assert two.sync() == one.sync() == {_B}


def _stored(content: bytes) -> dict[str, Any]:
    journal = MemoryJournal()
    JournalFiles(journal).replace("acls", content, None)
    return journal.rows["file", "acls"]


@pytest.mark.parametrize("fails", ["before", "after"])
def test_an_unknown_outcome_is_settled_by_the_next_sync(
    pair: tuple[_Server, _Server], fails: str
) -> None:
    one, two = _agreed(pair, _A)
    two.journal.fails = fails
    with pytest.raises(CommonFilesError, match="no response"):
        two.common.change(lambda acls: acls | {_B})
    assert two.file.read() == {_A}, "it is not in force before it is known to be stored"
    expected = {_A} if fails == "before" else {_A, _B}
    assert two.sync() == one.sync() == expected
    two.edit(_C)
    two.journal.fails = fails
    with pytest.raises(CommonFilesError, match="no response"):
        two.sync()
    two.start()
    assert two.sync() == one.sync() == {_C}


def test_while_the_coordinator_is_away_the_files_stay(pair: tuple[_Server, _Server]) -> None:
    _, two = _agreed(pair, _A)
    two.journal.replaced = True
    for call in (two.common.sync, lambda: two.common.change(lambda acls: acls)):
        with pytest.raises(CommonFilesError, match="another server serves this cluster"):
            call()
    with pytest.raises(JournalError):
        two.journal.refresh()
    assert two.file.read() == {_A}


def test_another_process_that_changes_the_file_is_waited_for(
    pair: tuple[_Server, _Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = pair
    one.edit(_A)
    lock = one.file.lock()
    other = Thread(target=one.sync)
    other.start()
    other.join(0.2)
    assert other.is_alive()
    lock.release()
    other.join()
    assert one.journal.rows
    lock = one.file.lock()
    monkeypatch.setattr("proxy.security.entry_file._LOCK_SECONDS", 0.1)
    with pytest.raises(LockedError, match="a change of the ACLs"):
        one.sync()
    lock.release()


def test_the_outcome_of_a_lost_answer_is_found_out(pair: tuple[_Server, _Server]) -> None:
    """The put is repeated below, and conflicts with itself: the change was made all the same."""
    one, two = _agreed(pair, _A, _B)
    removed: list[frozenset[Acl]] = []

    def without(acls: frozenset[Acl]) -> frozenset[Acl]:
        removed.append(acls & {_A})
        return acls - {_A}

    def already() -> None:
        content = two.file.render([_B], b"")
        JournalFiles(one.journal).replace("acls", content, JournalFiles(one.journal).read("acls"))

    two.journal.meanwhile = already
    assert two.common.change(without) == {_B}
    assert removed == [{_A}], "it is asked once, so it knows what it has removed"


def test_an_edit_while_the_file_is_made_the_same_is_not_lost(
    pair: tuple[_Server, _Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = _agreed(pair, _A)
    one.edit(_A, _B)
    one.sync()
    read = two.common._common.read

    def slow(name: str) -> bytes | None:
        monkeypatch.undo()
        found = read(name)
        two.file.replace(two.file.render([_A, _C], b""))  # an editor takes no lock
        return found

    monkeypatch.setattr(two.common._common, "read", slow)
    assert two.sync() == {_A, _B, _C}
    assert one.sync() == {_A, _B, _C}


@pytest.mark.parametrize("point", range(1, 9))
def test_a_crash_while_the_coordinator_s_file_is_taken(
    pair: tuple[_Server, _Server], monkeypatch: pytest.MonkeyPatch, point: int
) -> None:
    """What was taken counts as no edit, whatever of it is there: so nothing comes back."""
    one, two = _agreed(pair, _A)
    one.edit(_A, _B)
    one.sync()
    left = [point]

    class Crash(BaseException):
        pass

    def dying(call: Any) -> Any:
        def done(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise Crash
            return call(*given, **named)

        return done

    for name in ("rename", "remove", "fsync_folder"):
        monkeypatch.setattr(two.file.files, name, dying(getattr(two.file.files, name)))
    try:
        two.sync()
        crashed = False
    except Crash:
        crashed = True
    monkeypatch.undo()
    one.edit(_A)  # B is revoked before the other server starts again
    one.sync()
    two.start()
    assert two.sync() == one.sync() == {_A}
    assert not list(two.file.path.parent.glob("*.before-common*"))
    assert crashed or point > 5


def test_a_file_that_is_kept_aside_is_never_replaced(pair: tuple[_Server, _Server]) -> None:
    one, two = pair
    one.edit(_A)
    one.sync()
    for acl in (_B, _C):
        two.edit(acl)
        shutil.rmtree(two.file.path.parent / "common", ignore_errors=True)
        assert two.sync() == {_A}
    kept = sorted(two.file.path.parent.glob("acls.before-common*"))
    assert [two.file.parse(each.read_bytes()) for each in kept] == [{_B}, {_C}]


class _NotedModes(RealFiles):
    """Notes the permissions of files from before they have their names."""

    def __init__(self) -> None:
        super().__init__()
        self.modes: list[int] = []

    @override
    def rename(self, source: Path, target: Path) -> None:
        self.modes.append(source.stat().st_mode & 0o777)
        super().rename(source, target)


def test_no_file_is_readable_by_others_for_a_moment(pair: tuple[_Server, _Server]) -> None:
    one, two = pair
    one_files, two_files = _NotedModes(), _NotedModes()
    one.use(one_files)
    two.use(two_files)
    for acl in (_A, _B):
        one.edit(acl)
        one.sync()
        two.sync()
    assert len(one_files.modes) >= 4
    assert len(two_files.modes) >= 4
    assert {*one_files.modes, *two_files.modes} == {0o600}
    two.file.path.chmod(0o640)
    two_files.modes.clear()
    two.edit(_C)
    assert two_files.modes == [0o640]


def test_the_mode_of_a_file_stays(pair: tuple[_Server, _Server]) -> None:
    one, two = _agreed(pair, _A)
    two.file.path.chmod(0o600)
    one.edit(_B)
    one.sync()
    two.sync()
    assert two.file.path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_too_long_is_refused(tmp_path: Path) -> None:
    random = Random(7)
    users = [
        Credential(f"u{number}", SHA_256, 4096, *(random.randbytes(32) for _ in range(3)))
        for number in range(9000)
    ]
    file = EntryFile(RealFiles(), tmp_path / "security", USER_FILE)
    common = CommonFile(file, JournalFiles(MemoryJournal()))
    common.change(lambda known: changed(known, users[:4000]))
    with pytest.raises(CommonFileTooLongError, match="at most 900000 are possible"):
        common.change(lambda known: changed(known, users))
    assert len(file.read()) == 4000


def test_a_quota_that_both_have_changed(tmp_path: Path) -> None:
    """The one that comes later counts; the file never has two lines of an entity."""
    rows = MemoryJournal()
    files = [EntryFile(RealFiles(), tmp_path / each, QUOTA_FILE) for each in "ab"]
    one, two = (CommonFile(file, JournalFiles(MemoryJournal(rows))) for file in files)
    entity = Entity("alice")

    def edit(file: EntryFile[Quota], limit: float) -> None:
        file.change(lambda _: [Quota(entity, ((REQUESTS, limit),))])

    edit(files[0], 1.0)
    one.sync()
    two.sync()
    edit(files[0], 2.0)
    edit(files[1], 3.0)
    one.sync()
    two.sync()
    one.sync()
    for file in files:
        assert file.read() == {Quota(entity, ((REQUESTS, 3.0),))}


_NAMES: Final = [allow(name, Operation.WRITE, ResourceKind.TOPIC, "t", pattern=Pattern.PREFIXED)
                 for name in "abcdefgh"]  # fmt: skip


def _without(acl: Acl, acls: frozenset[Acl]) -> frozenset[Acl]:
    return acls - {acl}


def test_random_histories(tmp_path: Path) -> None:
    """Each entry is of one server: so whatever comes in between, its last change counts."""
    random = new_random("common files")
    rows = MemoryJournal()
    servers = [_Server(tmp_path / str(number), rows) for number in range(3)]
    servers[0].edit(_D)
    for each in servers:
        each.sync()
    wanted: set[Acl] = set()
    for _ in range(400):
        number = random.randrange(3)
        server, acl = servers[number], _NAMES[number * 2 + random.randrange(2)]
        match random.choice(["add", "remove", "edit in", "edit out", "sync", "sync", "restart"]):
            case "add":
                server.common.change({acl}.union)
                wanted.add(acl)
            case "remove":
                server.common.change(partial(_without, acl))
                wanted.discard(acl)
            case "edit in":
                server.edit(*server.file.read(), acl)
                wanted.add(acl)
            case "edit out":
                server.edit(*(server.file.read() - {acl}))
                wanted.discard(acl)
            case "sync":
                server.sync()
            case _:
                server.start()
    for each in (*servers, *servers):
        each.sync()
    assert [each.file.read() for each in servers] == [wanted | {_D}] * 3


class _Away(JournalFiles):
    """A coordinator that can be away, as ZooKeeper: then nothing is known of a file."""

    away = False

    def version(self, name: str) -> object:
        if self.away:
            raise CommonFilesError("it is away")
        return super().version(name)


async def _shared(folder: Path, rows: MemoryJournal) -> tuple[Security, _Away]:
    config = SecurityConfig(kafka=LOGIN, acls=True, super_users=("User:root",))
    security = Security(config, RealFiles(), folder / "security")
    files = _Away(MemoryJournal(rows))
    await security.start()
    await security.share(files)
    return security, files


async def test_an_edit_while_the_coordinator_is_away_is_passed_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.security.security._WATCH_SECONDS", 0.02)
    rows = MemoryJournal()
    write_acls(tmp_path / "one", _A)
    one, there = await _shared(tmp_path / "one", rows)
    two, _ = await _shared(tmp_path / "two", rows)
    assert one.authorizer is not None
    assert two.authorizer is not None
    assert two.authorizer.acls == {_A}
    there.away = True
    write_acls(tmp_path / "one", _B)
    await until(lambda: one.authorizer.acls == {_B})  # type: ignore[union-attr]
    assert two.authorizer.acls == {_A}
    there.away = False
    await until(lambda: _seen_by(two) == {_B})
    for each in (one, two):
        await each.close()


def _seen_by(security: Security) -> frozenset[Acl]:
    """Read the rows, as a shared journal does in the background; return the ACLs in force."""
    files: Any = security._common[security._acls.path]._common
    files._journal.refresh()
    assert security.authorizer is not None
    return security.authorizer.acls


async def test_processes_that_share_a_folder_begin_with_the_same(tmp_path: Path) -> None:
    """As the workers of a machine: one waits for the other one's lock."""
    rows = MemoryJournal()
    write_acls(tmp_path / "other", _A)
    other, _ = await _shared(tmp_path / "other", rows)
    await other.change_acls(lambda _: [_B])
    write_acls(tmp_path / "workers", _A)
    both = await asyncio.gather(*(_shared(tmp_path / "workers", rows) for _ in range(2)))
    for security, _ in both:
        assert _seen_by(security) == {_B}
        await security.close()
    await other.close()


_SCRAM: Final = SecurityConfig(kafka=LOGIN, mechanisms=(SHA_256,))


async def _salts(
    folder: Path, rows: MemoryJournal | None, config: SecurityConfig = _SCRAM, *, away: bool = False
) -> tuple[bytes, bytes]:
    """The salts of two users that do not exist, after a server's start."""
    security = Security(config, RealFiles(), folder / "security")
    await security.start()
    if rows is not None:
        files = _Away(MemoryJournal(rows))
        files.away = away
        await security.share(files)
    await security.keep_stand_ins()
    found = [security.stand_ins.of(user, SHA_256).salt for user in ("nobody", "nobody2")]
    await security.close()
    return found[0], found[1]


async def test_an_unknown_user_has_the_same_salt_at_all_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user has: otherwise two of them show which users exist. And after a restart."""
    monkeypatch.setattr("proxy.security.security._WATCH_SECONDS", 0.0)
    rows = MemoryJournal()
    first = await _salts(tmp_path / "one", rows)
    assert first[0] != first[1]
    with capture_logs() as lines:
        for folder in ("one", "two", "two"):
            assert await _salts(tmp_path / folder, rows) == first
        assert await _salts(tmp_path / "two", rows, away=True) == first
    assert not any(each["log_level"] == "warning" and "stand-ins" in str(each.get("file"))
                   and "another file" in each["event"] for each in lines)  # fmt: skip
    alone = await _salts(tmp_path / "alone", None)
    assert alone != first
    assert await _salts(tmp_path / "alone", None) == alone
    stored = tmp_path / "alone" / "security" / "stand-ins"
    assert stored.stat().st_mode & 0o777 == 0o600
    stored.write_bytes(b"damaged")  # it refuses no start
    assert await _salts(tmp_path / "alone", None) != alone
    await _salts(tmp_path / "none", None, SecurityConfig(kafka=LOGIN, mechanisms=("OAUTHBEARER",)))
    assert not (tmp_path / "none").exists()


async def test_stand_ins_are_stored_when_the_coordinator_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.security.security._WATCH_SECONDS", 0.0)
    rows = MemoryJournal()
    first = await _salts(tmp_path / "one", rows)
    security = Security(_SCRAM, RealFiles(), tmp_path / "two" / "security")
    await security.start()
    files = _Away(MemoryJournal(rows))
    files.away = True
    await security.share(files)
    await security.keep_stand_ins()
    assert security.stand_ins.of("nobody", SHA_256).salt != first[0]
    files.away = False
    await until(lambda: security.stand_ins.of("nobody", SHA_256).salt == first[0])
    await security.close()
