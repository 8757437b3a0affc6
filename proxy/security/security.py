"""What the listeners share for authentication and authorisation, kept up to date.

A task looks at the files once a second: users, ACLs, quotas, and certificates. A changed file is
read in a thread; one that is broken changes nothing. Servers with one coordinator have users, ACLs
and quotas in common.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from pidlease.coordination.common_files import CommonFiles, CommonFileTooLongError
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.files import Files
from proxy.security.acls import ACL_FILE, Acl
from proxy.security.audit_log import AuditLog
from proxy.security.authorizer import Authorizer
from proxy.security.certificate_names import PrincipalMapper
from proxy.security.common_file import CommonFile
from proxy.security.entry_file import EntryFile, EntryFileError, file_version
from proxy.security.password_check import PasswordCheck
from proxy.security.quota_rules import QUOTA_FILE, Quota, Rules, rules_of
from proxy.security.quotas import Quotas
from proxy.security.scram_credentials import (
    MECHANISMS,
    STAND_IN_FILE,
    USER_FILE,
    Credential,
    Credentials,
    StandIns,
    by_user,
    changed,
    new_secret,
)
from proxy.security.security_config import SecurityConfig, SecurityError
from proxy.security.server_certificates import ServerCertificates
from proxy.security.token_validator import TokenValidator

if TYPE_CHECKING:
    from proxy.security.kafka_acls import KafkaAcls
    from proxy.security.member_certificates import MemberContext

#: How often the files are looked at.
_WATCH_SECONDS: Final = 1.0
#: How often a start asks for the coordinator's users, ACLs and quotas, if it does not answer.
_SHARE_ATTEMPTS: Final = 30
ANONYMOUS: Final = "User:ANONYMOUS"
_USER_PREFIX: Final = "User:"

_log = structlog.get_logger(__name__)
_EntryT = TypeVar("_EntryT")


def principal_of(user: str) -> str:
    """Return the principal of a user."""
    return _USER_PREFIX + user


def _unexpected(error: Exception) -> Exception | None:
    """Return an error if the log needs its traceback."""
    return None if isinstance(error, OSError | SecurityError | EntryFileError) else error


def user_of(principal: str) -> str:
    """Return the user of a principal."""
    return principal.removeprefix(_USER_PREFIX)


class Security:
    """Users, certificates, ACLs, quotas and the audit log of a server.

    Parameters:
        folder: `security` of the data directory.

    Attributes:
        authorizer: decides by ACLs; None: everything is allowed.
        kafka_acls: puts Kafka's own ACLs in force; None: those of the file count, or none.
        certificates: of the listeners with TLS; None: there are none.
        on_users_removed: called with the names of users that have no credential any more.
    """

    def __init__(self, config: SecurityConfig, files: Files, folder: Path) -> None:
        self.config: Final = config
        self.audit: Final = AuditLog(config.audit_log)
        self.mapper: Final = PrincipalMapper(config.mapping_rules)
        self.stand_ins: Final = StandIns()
        self.credentials: Credentials = {}
        self.passwords: Final = PasswordCheck(lambda: self.credentials, self.stand_ins)
        self.tokens: Final = TokenValidator(config.tokens) if config.tokens else None
        self.certificates: ServerCertificates | None = None
        self.authorizer: Final = (
            Authorizer(config.super_users, allow_if_none=config.allow_if_none, audit=self.audit)
            if config.acls
            else None
        )
        self.kafka_acls: Final = self._kafka_acls()
        self.on_users_removed: Final[list[Callable[[frozenset[str]], None]]] = []
        self.quotas: Final = Quotas(
            (config.quota_window_num - 1) * config.quota_window_seconds,
            throttle_seconds_max=config.quota_window_seconds,
        )
        self._users: Final = EntryFile(files, folder, USER_FILE)
        self._acls: Final = EntryFile(files, folder, ACL_FILE)
        self._quotas: Final = EntryFile(files, folder, QUOTA_FILE)
        self._secrets: Final = EntryFile(files, folder, STAND_IN_FILE)
        #: Whether clients of Kafka see the salts of users.
        self._has_scram: Final = config.kafka_login and any(
            each in config.mechanisms for each in MECHANISMS.values()
        )
        #: Whether the secret of stand-ins has yet to be stored.
        self._keeps_secret = False
        #: The files that other servers have as well, by their paths; none: they are this one's own.
        self._common: dict[Path, CommonFile[Any]] = {}
        #: While a file and the coordinator's are made the same, or a request changes them.
        self._syncing: Final = asyncio.Lock()
        #: While entries are put in force.
        self._changing: Final = asyncio.Lock()
        self._marks: dict[Path, object] = {}
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read all files, and watch them from now on.

        Raises:
            CertificateError: a certificate cannot be used.
            SecurityError: the users, the ACLs or the quotas cannot be read, or the audit log not
                written.
        """
        config = self.config
        if config.tls_files is not None and any(each.tls for each in config.listeners):
            self.certificates = await asyncio.to_thread(
                ServerCertificates, config.tls_files, config.members, self.mapper
            )
        try:
            await asyncio.to_thread(self.audit.start)
            self._marks = await asyncio.to_thread(self._present_marks)
            self.credentials = by_user(await asyncio.to_thread(self._users.read))
            if self.authorizer is not None and self.kafka_acls is None:
                self.authorizer.replace(await asyncio.to_thread(self._acls.read))
            self.quotas.replace(rules_of(await asyncio.to_thread(self._quotas.read)))
        except (OSError, EntryFileError) as error:
            raise SecurityError(str(error)) from error
        if self._has_scram:
            await self._is_read("stand-ins", self._reload_stand_ins)
        self._watching = asyncio.create_task(self._watch())

    @property
    def to_members(self) -> "MemberContext | None":
        """The TLS context of connections to other active servers; None: they have no TLS."""
        return None if self.certificates is None else self.certificates.to_members

    async def close(self) -> None:
        """Stop watching, and write the rest of the audit log."""
        try:
            if self._watching is not None:
                self._watching.cancel()
                with suppress(asyncio.CancelledError):
                    await self._watching
            if self.kafka_acls is not None:
                await self.kafka_acls.close()
            self.passwords.close()
        finally:
            await asyncio.to_thread(self.audit.close)

    # ------------------------------------------------------------------ changes by requests

    async def change_users(
        self, upserted: Iterable[Credential], deleted: Iterable[tuple[str, str]]
    ) -> None:
        """Change credentials, durably.

        Raises:
            EntryFileError: the file is broken now, or there would be too many.
            OSError: the credentials may have been changed or not.
        """
        async with self._syncing:
            found = await self._change(self._users, lambda known: changed(known, upserted, deleted))
        async with self._changing:
            self._use(by_user(found))

    async def change_acls(self, alter: Callable[[frozenset[Acl]], Iterable[Acl]]) -> None:
        """Replace the ACLs durably by those that a function returns.

        Raises:
            EntryFileError: the file is broken now, or there would be too many.
            OSError: the ACLs may have been changed or not.
        """
        async with self._syncing:
            found = await self._change(self._acls, alter)
        async with self._changing:
            if self.authorizer is not None:
                self.authorizer.replace(found)

    async def change_quotas(self, alter: Callable[[Rules], Iterable[Quota]]) -> None:
        """Replace the quotas durably by those that a function returns.

        Raises:
            EntryFileError: the file is broken now, or there would be too many.
            OSError: the quotas may have been changed or not.
        """
        async with self._syncing:
            found = await self._change(self._quotas, lambda quotas: alter(rules_of(quotas)))
        async with self._changing:
            self.quotas.replace(rules_of(found))

    async def _change(
        self,
        file: EntryFile[_EntryT],
        alter: Callable[[frozenset[_EntryT]], Iterable[_EntryT]],
    ) -> frozenset[_EntryT]:
        common: CommonFile[_EntryT] | None = self._common.get(file.path)
        return await asyncio.to_thread(file.change if common is None else common.change, alter)

    # ------------------------------------------------------------------ what servers have in common

    async def share(self, files: CommonFiles) -> None:
        """Have users, ACLs and quotas in common with all servers of a coordinator from now on.

        While the coordinator does not answer, this waits, but not for ever: then the files of the
        last time count.
        """
        shared: list[EntryFile[Any]] = [self._users, self._quotas]
        if self._has_scram:
            shared.append(self._secrets)
        if self.authorizer is not None and self.kafka_acls is None:
            shared.append(self._acls)
        self._common = {each.path: CommonFile(each, files) for each in shared}
        for _ in range(_SHARE_ATTEMPTS):
            if not await self._sync_changed():
                break
            await asyncio.sleep(_WATCH_SECONDS)
        await self.reload()

    async def keep_stand_ins(self) -> None:
        """Store the secret of stand-ins, unless there is one, now or as soon as possible.

        Call it after `share`, if that is called: another server's secret may be there.
        """
        self._keeps_secret = self._has_scram
        await self._store_secret()

    async def _store_secret(self) -> None:
        if not self._keeps_secret:
            return
        try:
            async with self._syncing:
                if not await asyncio.to_thread(self._secrets.read):
                    await self._change(self._secrets, lambda known: known or [new_secret()])
            await self._reload_stand_ins()
        except Exception as error:  # noqa: BLE001 - clients log in without it
            what = "unknown users have other salts after a restart, or at other servers"
            LINES.write(_log, "warning", what, kind_of(error), _unexpected(error),
                        file=str(self._secrets.path), error=str(error))  # fmt: skip
            return
        self._keeps_secret = False

    async def _sync_changed(self) -> bool:
        """Make those files the same that have changed, here or at the coordinator.

        Returns:
            Whether a file must be tried again.
        """
        again = False
        for path, common in self._common.items():
            try:
                async with self._syncing:
                    if await asyncio.to_thread(common.needs_sync):
                        await asyncio.to_thread(common.sync)
            except (EntryFileError, CommonFileTooLongError) as error:
                _log.error("a file is not the same as on the other servers", file=str(path),
                           error=str(error))  # fmt: skip
            except Exception as error:  # noqa: BLE001 - it keeps no other file from being synced
                again = True
                what = "a file may not be the same as on the other servers"
                LINES.write(_log, "warning", what, (path.name, kind_of(error)), _unexpected(error),
                            file=str(path), error=str(error))  # fmt: skip
        return again

    # ------------------------------------------------------------------ changes of files

    async def reload(self, *, everything: bool = True) -> None:
        """Read the files again: all, or those that have changed or could not be read."""
        async with self._changing:
            marks = await asyncio.to_thread(self._present_marks)
            for what, paths, read in self._watched():
                new = {path: marks[path] for path in paths}
                changed = any(self._marks.get(path) != new[path] for path in paths)
                if (everything or changed) and await self._is_read(what, read):
                    self._marks |= new

    def _watched(self) -> list[tuple[str, list[Path], Callable[[], Awaitable[None]]]]:
        """Return what the files have, for the log, their paths, and what reads them again."""
        found: list[tuple[str, list[Path], Callable[[], Awaitable[None]]]] = [
            ("users", [self._users.path], self._reload_users),
            ("ACLs", [self._acls.path], self._reload_acls),
            ("quotas", [self._quotas.path], self._reload_quotas),
        ]
        if self._has_scram:
            found.append(("stand-ins", [self._secrets.path], self._reload_stand_ins))
        if self.certificates is not None:
            reload = partial(asyncio.to_thread, self.certificates.reload)
            found.append(("certificates", self.certificates.paths, reload))
        return found

    async def _is_read(self, what: str, read: Callable[[], Awaitable[None]]) -> bool:
        """Read files again; False: this must be tried again, even if they stay the same."""
        failure = f"the {what} were not reloaded; the previous ones stay in force"
        try:
            await read()
        except EntryFileError as error:
            _log.error(failure, error=str(error))
        except Exception as error:  # noqa: BLE001 - it keeps no other file from being read
            LINES.write(_log, "error", failure, kind_of(error), _unexpected(error),
                        error=str(error))  # fmt: skip
            return False
        return True

    async def _reload_users(self) -> None:
        users = by_user(await asyncio.to_thread(self._users.read))
        if users != self.credentials:
            self._note_change(self._users.path)
        self._use(users)

    async def _reload_stand_ins(self) -> None:
        for secret in await asyncio.to_thread(self._secrets.read):
            self.stand_ins.use(secret)

    async def _reload_quotas(self) -> None:
        rules = rules_of(await asyncio.to_thread(self._quotas.read))
        if rules != self.quotas.rules:
            self._note_change(self._quotas.path)
        self.quotas.replace(rules)
        _log.info("quotas reloaded", entities=len(self.quotas.rules))

    async def _reload_acls(self) -> None:
        authorizer = self.authorizer
        if authorizer is None or self.kafka_acls is not None:
            return
        acls = await asyncio.to_thread(self._acls.read)
        if acls != authorizer.acls:
            self._note_change(self._acls.path)
        authorizer.replace(acls)
        _log.info("ACLs reloaded", entries=len(authorizer.acls))

    def _note_change(self, path: Path) -> None:
        """Audit the change of a file by a command, an editor, or another server."""
        self.audit.write("change", "", "", "READ_FILE", f"FILE:{path.name}", "success")

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            try:
                await self.reload(everything=False)
                if self._common:
                    await self._sync_changed()
                    await self.reload(everything=False)
                await self._store_secret()
            except Exception as error:  # noqa: BLE001 - a bug of ours: the next time it may succeed
                LINES.write(_log, "error", "changed files were not read; they are tried again",
                            kind_of(error), error, error=repr(error))  # fmt: skip

    def _present_marks(self) -> dict[Path, object]:
        """Return what changes when a file is changed. Blocks."""
        return {path: file_version(path) for _, paths, _ in self._watched() for path in paths}

    def _kafka_acls(self) -> "KafkaAcls | None":
        if self.authorizer is None or not self.config.acls_of_kafka:
            return None
        # Here, because other servers need no client of Kafka.
        from proxy.security.kafka_acls import KafkaAcls  # noqa: PLC0415

        return KafkaAcls(self.authorizer)

    def _use(self, credentials: Credentials) -> None:
        before = {user for user, _ in self.credentials}
        self.credentials = credentials
        removed = frozenset(before - {user for user, _ in credentials})
        if removed:
            for each in self.on_users_removed:
                each(removed)
