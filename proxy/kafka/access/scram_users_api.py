"""DescribeUserScramCredentials (50), AlterUserScramCredentials (51).

Source: KIP-554. `kafka-configs.sh --entity-type users` sends them.
"""

from collections import Counter
from functools import partial
from typing import Any, Final

import structlog
from kio.schema.errors import ErrorCode

from pidlease.kafka.api import (
    API_ALTER_USER_SCRAM_CREDENTIALS,
    API_DESCRIBE_USER_SCRAM_CREDENTIALS,
)
from pidlease.kafka.codec.messages import Response
from pidlease.kafka.codec.primitives import RequestHeader
from proxy.kafka.access.failed_changes import reason_of
from proxy.security.authorizer import Caller
from proxy.security.entry_file import EntryFileError
from proxy.security.scram_credentials import (
    MECHANISMS,
    Credential,
    CredentialError,
    credential_of,
)
from proxy.security.security import Security, principal_of

_NUMBERS: Final = {name: number for number, name in MECHANISMS.items()}

_log = structlog.get_logger(__name__)


#: The error of each user, and its message.
_Errors = dict[str, tuple[ErrorCode, str | None]]


def _invalid_users(request: Any) -> _Errors:
    """Return all users of a request, with the errors of those that it names wrongly."""
    changes = (*request.deletions, *request.upsertions)
    names = Counter((each.name, int(each.mechanism)) for each in changes)
    errors: _Errors = {name: (ErrorCode.none, None) for name, _ in names}
    for (name, number), count in names.items():
        if count > 1:
            errors[name] = ErrorCode.duplicate_resource, "named twice with one mechanism"
        elif number not in MECHANISMS:
            errors[name] = ErrorCode.unsupported_sasl_mechanism, f"no mechanism is {number}"
    return errors


def _upserted(errors: _Errors, upsertion: Any) -> Credential | None:
    """Return the credential of a change; None, with an error: it is invalid."""
    name = upsertion.name
    if errors[name][0] is not ErrorCode.none:
        return None
    try:
        return credential_of(
            name, MECHANISMS[int(upsertion.mechanism)], bytes(upsertion.salted_password),
            bytes(upsertion.salt), upsertion.iterations,
        )  # fmt: skip
    except CredentialError as error:
        errors[name] = ErrorCode.unacceptable_credential, str(error)
        return None


class ScramUsersApi:
    """Handles requests about users' credentials.

    Parameters:
        security: keeps the users.
    """

    def __init__(self, security: Security) -> None:
        self._security: Final = security

    async def describe(self, _: Caller, header: RequestHeader, request: Any) -> bytes:
        """Return the mechanisms of users, with their iterations."""
        response = Response(API_DESCRIBE_USER_SCRAM_CREDENTIALS, header.version)
        credentials = self._security.credentials
        by_user: dict[str, list[Any]] = {}
        for (user, mechanism), credential in sorted(credentials.items()):
            by_user.setdefault(user, []).append(
                response.part(
                    "CredentialInfo", mechanism=_NUMBERS[mechanism],
                    iterations=credential.iterations,
                )
            )  # fmt: skip
        named = Counter(each.name for each in request.users or ())
        rows = []
        for user in named or by_user:
            code, message = ErrorCode.none, None
            if named[user] > 1:
                code, message = ErrorCode.duplicate_resource, f"{user} is named twice"
            elif user not in by_user:
                code, message = ErrorCode.resource_not_found, f"there is no user {user}"
            infos = () if code is not ErrorCode.none else tuple(by_user[user])
            rows.append(
                response.part(
                    "DescribeUserScramCredentialsResult", user=user, error_code=code,
                    error_message=message, credential_infos=infos,
                )
            )  # fmt: skip
        return response.encode(
            header.correlation_id, error_code=ErrorCode.none, error_message=None,
            results=tuple(rows),
        )  # fmt: skip

    async def alter(self, caller: Caller, header: RequestHeader, request: Any) -> bytes:
        """Change credentials: of all users without an error, together."""
        errors = _invalid_users(request)
        upserted = [each for each in map(partial(_upserted, errors), request.upsertions) if each]
        deleted = [each for each in map(partial(self._deleted, errors), request.deletions) if each]
        good = {name for name, (code, _) in errors.items() if code is ErrorCode.none}
        upserted = [each for each in upserted if each.user in good]
        deleted = [each for each in deleted if each[0] in good]
        if upserted or deleted:
            try:
                await self._security.change_users(upserted, deleted)
            except (OSError, EntryFileError) as error:
                _log.error("a change of users was not stored", error=str(error))
                errors |= dict.fromkeys(good, (ErrorCode.unknown_server_error, reason_of(error)))
        self._audit(caller, errors, {each.user for each in upserted})
        response = Response(API_ALTER_USER_SCRAM_CREDENTIALS, header.version)
        rows = tuple(
            response.part(
                "AlterUserScramCredentialsResult", user=user, error_code=code,
                error_message=message,
            )
            for user, (code, message) in errors.items()
        )  # fmt: skip
        return response.encode(header.correlation_id, results=rows)

    def _deleted(self, errors: _Errors, deletion: Any) -> tuple[str, str] | None:
        """Return the key of a credential to delete; None, with an error: it cannot be deleted."""
        name = deletion.name
        if errors[name][0] is not ErrorCode.none:
            return None
        key = name, MECHANISMS[int(deletion.mechanism)]
        if key not in self._security.credentials:
            errors[name] = ErrorCode.resource_not_found, "there is no such credential"
            return None
        return key

    def _audit(self, caller: Caller, errors: _Errors, upserted: set[str]) -> None:
        for user, (code, _) in errors.items():
            self._security.audit.write(
                "change", *caller, "SET_USER" if user in upserted else "REMOVE_USER",
                principal_of(user), code.name,
            )  # fmt: skip
