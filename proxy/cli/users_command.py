"""`pidlease users`: the users that log in with a password."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from pidlease.storage.files import RealFiles
from proxy.cli.console import cannot_run
from proxy.cli.standard_streams import stdin
from proxy.security.entry_file import EntryFile, EntryFileError
from proxy.security.scram_credentials import (
    ITERATIONS_DEFAULT,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SHA_256,
    SHA_512,
    USER_FILE,
    Credential,
    CredentialError,
    by_user,
    changed,
    check_user,
    credential_for,
)
from proxy.security.security_config import SECURITY_FOLDER

_PASSWORD_VARIABLE: Final = "PIDLEASE_USER_PASSWORD"  # noqa: S105 - a variable's name
_MECHANISMS: Final = (SHA_256, SHA_512)
#: More than a password may have.
_FILE_BYTES_MAX: Final = 4096

users_cli = typer.Typer(
    no_args_is_help=True,
    help="Add, remove and list users. A running server notices a change within two seconds.",
)

_DataDir = Annotated[
    Path, typer.Option(envvar="PIDLEASE_DATA_DIR", help="The server's data directory.")
]
_User = Annotated[str, typer.Argument(help="The user's name.")]


@contextmanager
def _as_owner(data_dir: Path) -> Iterator[None]:
    """Let root act as the owner of the data directory: the server has to read what is written."""
    owner = data_dir.stat() if os.geteuid() == 0 and data_dir.is_dir() else None
    group = os.getegid()
    mask = os.umask(0o077)
    if owner is not None:
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        if owner is not None:
            os.seteuid(0)
            os.setegid(group)
        os.umask(mask)


def _file(data_dir: Path) -> EntryFile[Credential]:
    return EntryFile(RealFiles(), data_dir.absolute() / SECURITY_FOLDER, USER_FILE)


@users_cli.command("add")
def add(
    user: _User,
    data_dir: _DataDir,
    *,
    password_file: Annotated[
        Path | None, typer.Option(help="A file with the password; without it, see below.")
    ] = None,
    iterations: Annotated[
        int,
        typer.Option(min=ITERATIONS_MIN, max=ITERATIONS_MAX, help="Of the hash; more are slower."),
    ] = ITERATIONS_DEFAULT,
) -> None:
    """Add a user, or change a user's password.

    The password comes from the file, from PIDLEASE_USER_PASSWORD, or from standard input: its first
    line. It is not stored, only what verifies it (SCRAM-SHA-256 and SCRAM-SHA-512).

    Exit codes:
    0: done
    2: it could not be done
    """
    try:
        check_user(user)
        password = _password(password_file)
        credentials = [credential_for(user, each, password, iterations) for each in _MECHANISMS]
        with _as_owner(data_dir):
            _file(data_dir).change(lambda known: changed(known, credentials))
    except (CredentialError, EntryFileError, OSError, UnicodeDecodeError) as error:
        raise cannot_run(str(error)) from None
    typer.echo(f"user {user} can log in")


@users_cli.command("remove")
def remove(user: _User, data_dir: _DataDir) -> None:
    """Remove a user; a running server closes the user's connections.

    Exit codes:
    0: done
    2: it could not be done, or there is no such user
    """
    file = _file(data_dir)
    try:
        if not any(each.user == user for each in file.read()):
            raise cannot_run(f"there is no user {user}")
        with _as_owner(data_dir):
            file.change(lambda known: changed(known, (), [(user, each) for each in _MECHANISMS]))
    except (EntryFileError, OSError) as error:
        raise cannot_run(str(error)) from None
    typer.echo(f"user {user} is removed")


@users_cli.command("list")
def list_users(data_dir: _DataDir) -> None:
    """List the users, with their mechanisms.

    Exit codes:
    0: done
    2: it could not be done
    """
    try:
        found = by_user(_file(data_dir).read())
    except (EntryFileError, OSError) as error:
        raise cannot_run(str(error)) from None
    for user in sorted({user for user, _ in found}):
        mechanisms = ", ".join(
            f"{mechanism} ({found[user, mechanism].iterations} iterations)"
            for mechanism in _MECHANISMS
            if (user, mechanism) in found
        )
        typer.echo(f"{user}: {mechanisms}")


def _password(file: Path | None) -> str:
    """Read a password.

    Raises:
        OSError: the file cannot be read.
    """
    if file is not None:
        with file.open("rb") as opened:
            text = opened.read(_FILE_BYTES_MAX).decode()
    elif _PASSWORD_VARIABLE in os.environ:
        return os.environ[_PASSWORD_VARIABLE]
    elif stdin().isatty():
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))
    else:
        text = stdin().readline(_FILE_BYTES_MAX)
    return text.split("\n", 1)[0].removesuffix("\r")
