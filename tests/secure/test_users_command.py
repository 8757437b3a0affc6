"""`pidlease users`: passwords come from files, the environment or stdin, and are not kept."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from proxy.cli.users_command import users_cli


def _run(folder: Path, *command: str, stdin: str = "", **env: str) -> Result:
    options = [*command, "--data-dir", str(folder)]
    return CliRunner().invoke(users_cli, options, input=stdin, env=env)


def test_users_are_added_listed_and_removed(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("From-a-file\nand more\n")
    data = tmp_path / "data"
    for result in (
        _run(data, "add", "a", stdin="From-stdin\n"),
        _run(data, "add", "b", "--password-file", str(file)),
        _run(data, "add", "c", PIDLEASE_USER_PASSWORD="From-the-environment"),
        _run(data, "add", "a", "--iterations", "8192", stdin="Changed\n"),
    ):
        assert result.exit_code == 0, result.output
    listed = _run(data, "list").output.splitlines()
    assert [line.partition(":")[0] for line in listed] == ["a", "b", "c"]
    assert "8192" in listed[0]
    content = (data / "security" / "users").read_bytes()
    for secret in (b"From-", b"Changed", b"and more"):
        assert secret not in content
    assert _run(data, "remove", "b").exit_code == 0
    assert "b:" not in _run(data, "list").output


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_leaves_the_files_to_the_owner_of_the_data_directory(tmp_path: Path) -> None:
    """Files of root ended the next start of a server that runs as another user."""
    data, owner = tmp_path / "data", 12345
    data.mkdir()
    os.chown(data, owner, owner)
    tmp_path.chmod(0o755)
    for each in (data, *data.parents):
        if each.stat().st_mode & 0o001 == 0 and each.stat().st_uid != owner:
            each.chmod(each.stat().st_mode | 0o011)  # of pytest's folders, for this run
    file = tmp_path / "password"
    file.write_text("only root may read it\n")
    file.chmod(0o600)
    assert _run(data, "add", "a", "--password-file", str(file)).exit_code == 0
    assert (os.geteuid(), os.getegid()) == (0, os.getgid())
    for each in (data / "security", *(data / "security").iterdir()):
        assert (each.stat().st_uid, each.stat().st_gid) == (owner, owner), each
    assert (data / "security" / "users").stat().st_mode & 0o777 == 0o600
    assert _run(data, "remove", "a").exit_code == 0
    assert (data / "security" / "users").stat().st_uid == owner


@pytest.mark.parametrize(("command", "stdin", "message"), [
    (("remove", "nobody"), "", "there is no user nobody"),
    (("add", "*"), "x\n", "no name that a user can have"),
    (("add", " a"), "x\n", "no space around it"),
    (("add", "a"), "\n", "1 to 1024 bytes"),
    (("add", "a", "--password-file", "/absent"), "", "absent"),
    (("add", "a", "--iterations", "100"), "x\n", "4096"),
    (("add", "a\u00aa"), "x\n", "SASLprep"),
])  # fmt: skip
def test_what_is_refused(
    tmp_path: Path, command: tuple[str, ...], stdin: str, message: str
) -> None:
    result = _run(tmp_path, *command, stdin=stdin)
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "security" / "users").exists()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    assert _run(tmp_path, "add", "a", stdin="x\n").exit_code == 0
    path = tmp_path / "security" / "users"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    for command in (("list",), ("remove", "a"), ("add", "b")):
        result = _run(tmp_path, *command, stdin="x\n")
        assert result.exit_code == 2
        assert "is damaged" in result.output
